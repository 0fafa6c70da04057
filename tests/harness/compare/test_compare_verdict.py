"""The interval of a ratio covers what it says, and the sentence says what can and cannot be known."""

from dataclasses import replace

import numpy as np
import pytest
from asked import says
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.compare.side import Series, Side, stability
from harness.compare.verdict import RATE, TIME, common, interval, ratio, verdict
from harness.evidence.ingest.steady import REASONS
from harness.evidence.medians import effective, resampled
from tests.logged import steady_state


def side(name: str, seconds: np.ndarray | None = None, **more: object) -> Side:
    """``seconds``: steps, all of them steady; without, a stated figure."""
    series = None
    if seconds is not None:
        series = Series(
            iteration=np.arange(1, len(seconds) + 1), seconds=np.asarray(seconds, float),
            reasons=np.zeros(len(seconds), np.uint8), names=REASONS, loss=np.full(len(seconds), np.nan),
        )  # fmt: skip
        more = {"step_seconds": float(np.median(seconds)), **more}
    return Side(name=name, origin="test", series=series, **more)  # type: ignore[arg-type]


def noisy(seed: int, middle: float, count: int = 200, spread: float = 0.01) -> np.ndarray:
    return middle * (1 + spread * np.random.default_rng(seed).standard_normal(count))


def correlated(seed: int, count: int, share: float) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal(count)
    for i in range(1, count):
        drawn[i] = share * drawn[i - 1] + np.sqrt(1 - share**2) * drawn[i]
    return drawn


def test_a_faster_run_is_faster_and_the_same_run_is_not() -> None:
    found = ratio(side("a", noisy(1, 5.0)), side("b", noisy(2, 6.0)))
    assert found.significant
    assert found.low < 1.2 < found.high
    assert found.high - found.low < 0.01
    assert ratio(side("a", noisy(1, 5.0)), side("b", noisy(2, 5.0))).significant is False


def test_the_interval_of_equal_runs_holds_one_as_often_as_it_says() -> None:
    held = sum(
        not ratio(side("a", noisy(2 * i, 5.0, 60)), side("b", noisy(2 * i + 1, 5.0, 60))).significant
        for i in range(300)
    )
    assert 0.85 <= held / 300 <= 0.97


def test_steps_that_resemble_their_neighbours_count_for_less() -> None:
    """With independent draws the interval of an AR(1) series of 0.8 would cover two times in three."""
    hits = 0
    for seed in range(200):
        values = 10 + 0.1 * correlated(seed, 400, 0.8)
        low, high = np.quantile(resampled(values, 1000, 0), [0.05, 0.95])
        hits += low <= 10 <= high
    assert 0.80 <= hits / 200 <= 0.97
    assert effective(10 + correlated(1, 400, 0.8)) < 120
    assert effective(np.random.default_rng(1).standard_normal(400)) > 250


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=80))
def test_the_effective_number_is_never_more_than_the_number(values: list[float]) -> None:
    found = np.asarray(values)
    assert 1.0 <= effective(found) <= len(found)
    drawn = resampled(found, 50, 0)
    assert found.min() <= drawn.min()
    assert drawn.max() <= found.max()


def test_a_stated_spread_stands_for_steps() -> None:
    first, other = side("a", step_seconds=5.0, rel_std=0.01), side("b", noisy(1, 6.0))
    found = ratio(first, other)
    assert found.high - found.low == pytest.approx(1.2 * 2 * 1.645 * 0.01, rel=0.1)
    assert interval(replace(first, rel_std=None)) is None
    low, high = interval(first) or (0, 0)
    assert (low, high) == (pytest.approx(1 - 0.01645, abs=0.002), pytest.approx(1 + 0.01645, abs=0.002))


def test_without_steps_and_spread_significance_cannot_be_stated() -> None:
    stated = side("b", step_seconds=6.0)
    found = ratio(side("a", noisy(1, 5.0)), stated)
    assert (found.significant, found.silent) == (None, ("b",))
    assert found.value == pytest.approx(1.2, rel=0.01)
    said = verdict([side("a", noisy(1, 5.0)), stated])
    assert "significance cannot be stated: no steps and no spread of b" in said
    assert "no spread of either" in verdict([side("a", step_seconds=5.0), stated])


WORK: dict[str, object] = {"tokens_per_step": 128 * 4096, "gpus": 8, "differs": {"model": "llama3_8b"}}


def test_the_same_work_is_compared_by_step_time_other_work_by_throughput() -> None:
    first = side("a", noisy(1, 5.0), **WORK, tgs=100.0)
    same = side("b", noisy(2, 6.0), **WORK, tgs=83.3)
    larger = side("c", noisy(3, 8.0), **{**WORK, "tokens_per_step": 256 * 4096}, tgs=125.0)
    assert common([first, same]) == TIME
    assert common([first, same, larger]) == RATE
    said = verdict([first, larger])
    assert said.startswith(
        "No run can be called the faster: the batch differs (a: 524,288 tokens a step, c: 1,048,576 tokens a step)."
        " The figures alone: a 100, c 125 tokens/s/GPU (c over a 1.25, 90 % interval 1.24"
    )
    assert ratio(first, larger, what=RATE).significant
    assert verdict([first, same]).startswith("a is ")


UNLIKE = tabled("refusals", "unlike_runs")


@pytest.mark.parametrize(("changes", "words"), UNLIKE)
def test_no_winner_where_the_work_differs_or_is_not_stated(changes: dict[str, object], words: str) -> None:
    whole = {**WORK, "gpu": "mi300x", "tgs": 90.0, "differs": {"model": "llama3_8b", "seq_length": "4096"}}
    first, same = side("a", noisy(1, 5.0), **whole), side("b", noisy(2, 6.0), **whole)
    assert "a is 20." in verdict([first, same])
    said = verdict([first, side("b", noisy(2, 6.0), **{**whole, **changes})])
    assert said.startswith("No run can be called the faster: ")
    assert words in said
    assert "faster than" not in said
    assert "times as fast" not in said


@pytest.mark.parametrize(
    ("steps", "spread", "work", "words"),
    [
        ((5.0, 6.0), {}, {}, "the model is not stated; the batch is not stated; the number of GPUs is not stated"),
        ((5.0, 6.0), {}, {}, "The figures alone: a 5.0001 s, b 5.9984 s a step (b over a 1.2, "),
        ((5.0, 5.02), {"count": 4000, "spread": 0.001}, WORK, "a is 0.4 % faster than b"),
        (
            (5.0, 5.02), {"count": 4000, "spread": 0.001}, WORK,
            "significant within these runs, yet below the 1 % that repeats of a run differ by",
        ),
        ((5.0, 5.0), {}, WORK, " does not differ significantly from "),
    ],
)  # fmt: skip
def test_what_is_said_of_two(steps: tuple[float, float], spread: dict, work: dict, words: str) -> None:
    runs = [
        side(name, noisy(i, step, **spread), **work) for i, (name, step) in enumerate(zip("ab", steps, strict=True), 1)
    ]
    assert words in verdict(runs)


def test_of_three_the_best_stands_against_the_next_and_the_last() -> None:
    steps = {"slow": 12.0, "best": 5.0, "next": 5.5}
    said = verdict([side(name, noisy(i, step), **WORK) for i, (name, step) in enumerate(steps.items(), 1)])
    assert said.startswith("best is 10.")
    says(said, " % faster than next (by step time: ", " and 2.4", "times as fast as slow")
    assert said.count("95 % interval") == 2
    assert said.endswith(".")


def test_what_has_no_time_is_named() -> None:
    empty = side("out", status="out-of-memory")
    assert verdict([side("a", noisy(1, 5.0)), empty]).startswith("No two of these runs have a time to compare")
    said = verdict([side("a", noisy(1, 5.0)), side("b", noisy(2, 6.0)), empty])
    assert said.endswith("; nothing can be said of out, without a step time.")
    rates = [side("a", step_seconds=5.0), side("b", tgs=100.0)]
    assert verdict(rates).startswith("The step times cannot be compared")


def test_stability_counts_what_is_after_the_warm_up() -> None:
    values = np.concatenate(
        [np.full(5, 30.0), np.full(40, 10.0) + 0.05 * np.tile([-1, 1], 20), [16.0, 25.0], np.full(20, 10.0)]
    )
    state = steady_state(values)
    series = Series(
        iteration=np.arange(len(values)), seconds=values, reasons=state.reasons, names=REASONS, loss=values,
        first=frozenset(("warm-up",)),
    )  # fmt: skip
    found = stability(series)
    assert (found.steps, found.outliers, found.spikes) == (62, 2, 2)
    assert found.spread == pytest.approx(1.4826 * 0.005, rel=0.05)
    assert found.excess == pytest.approx((6 + 15 + 20 * 0.05) / (600 + 41), rel=0.02)


def test_a_slower_level_widens_the_throughput_downwards() -> None:
    levels = np.concatenate([np.full(90, 11.0), np.full(110, 10.0)]) + 0.01 * (np.arange(200) % 3)
    first, other = side("a", noisy(1, 10.0, 200, 0.001), **WORK, tgs=100.0), side("b", levels, **WORK, tgs=100.0)
    rate, time = ratio(first, other, what=RATE), ratio(first, other)
    assert rate.low == pytest.approx(10 / 11, abs=0.01)
    assert rate.high == pytest.approx(1.0, abs=0.01)
    assert (time.low, time.high) == (pytest.approx(1.0, abs=0.01), pytest.approx(1.1, abs=0.01))
