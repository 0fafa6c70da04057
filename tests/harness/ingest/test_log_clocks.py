"""Steps by a clock: numbers printed late, two jobs in one file, a clock that is no summary."""

import re
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from asked import LOGS, put
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.evidence.ingest.dialects import read_records_of_log
from harness.evidence.ingest.logs.clock import CLOCK, STAMP, taken
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.steady import REASONS, state_of
from tests.logged import steady_state


def step(tmp_path: Path, text: str) -> float:
    _, (record,) = read_records_of_log(put(tmp_path / "a.log", text))
    state = state_of(record)
    return state.value


def clock(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def test_a_number_printed_late_waits_for_its_batch(tmp_path: Path) -> None:
    at = ((3, 1, 179), (4, 3, 204), (5, 3, 230), (6, 4, 256))
    text = "".join(
        f"Epoch 0: 5%|x| {bar}/62 [{clock(now)[2:]}<58:44, 0.02it/s, reduced_train_loss=6.9, global_step={index}.0]\n"
        for bar, index, now in at
    )
    assert step(tmp_path, text) == pytest.approx((25.5 + 26) / 2, abs=0.3)


def test_two_jobs_that_write_to_one_file(tmp_path: Path) -> None:
    rows = []
    for i in range(1, 30):  # the second is three prints behind
        for index, now in ((10 * i, 150 * i), (10 * (i - 3), 150 * i + 70)):
            if index > 0:
                rows.append(f'{{"current_steps": {index}, "total_steps": 900, "elapsed_time": "{clock(now)}"}}\n')
    assert step(tmp_path, "".join(rows)) == 15.0


def test_the_runtime_beside_a_loss_is_no_summary(tmp_path: Path) -> None:
    rows = [
        f"{{'loss': 2.5, 'epoch': {i / 9}, 'train_runtime': {4.0 * i}, 'train_tokens_per_second': 9.1}}\n"
        for i in range(1, 9)
    ]
    end = (
        "{'train_runtime': 40.0, 'train_samples_per_second': 8.0, 'train_steps_per_second': 0.500, 'train_loss': 2.1}\n"
    )
    assert step(tmp_path, "".join(rows) + end) == 2.0


@pytest.mark.parametrize(("pieces", "seconds"), [(1, 2.2), (8, 17.6)])
def test_batches_that_accumulate_to_a_step(tmp_path: Path, pieces: int, seconds: float) -> None:
    text = "".join(
        f"Epoch 0: 0%|x| {i}/9000 [01:00<9:48:45, 0.5it/s, global_step={i // pieces}.0, train_step_timing in s=2.200, x=1]\r"
        for i in range(9, 90)
    )
    assert step(tmp_path, text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "seconds"), tabled("readers", "clocks_of_all_forms"))
def test_clocks_of_all_forms(text: str, seconds: float) -> None:
    """A day that no calendar has is none."""
    forms = rf"at (?:{CLOCK}<|(?P<clock_ms>[0-9.,]+)ms|(?P<clock_s>[0-9.]+)s|{STAMP})"
    match = re.search(forms, text)
    said = {name: word for name, word in match.groupdict().items() if word is not None}
    assert (taken(said), said) == (seconds, {})


def test_micro_batches_that_every_rank_prints_are_summed_once(tmp_path: Path) -> None:
    row = "Epoch 1 | iter {i} step {s} | loss train: 1.6, val: n/a | iter time: {ms:.2f} ms{end}\n"
    lines = [
        row.format(i=i, s=i // 2, ms=4000.0 if i % 2 else 2000.0, end="" if i % 2 else " (step)") for i in range(1, 41)
    ]
    assert step(tmp_path, "".join(lines)) == 6.0
    assert step(tmp_path, "".join(line * 4 for line in lines)) == 6.0
    few = "".join(one + other for one, other in zip(lines[:6], ["", *lines], strict=False))
    assert list(read_records_of_log(put(tmp_path / "a.log", few))[1][0].value) == [6.0] * 3
    assert step(tmp_path, "".join(one + other for one, other in zip(lines, ["", *lines], strict=False))) == 6.0


# The rule of the steady state: what is cut, in which order, and the interval of the median.

NOISE = 2.0 + 0.001 * np.arange(40) % 0.005


def reason(state, step: int) -> str:
    return REASONS[state.reasons[step]]


def test_each_reason_in_its_order() -> None:
    values = NOISE.copy()
    values[30] = 9.0
    values[0] = 50.0
    flags = {name: np.zeros(40, bool) for name in ("skipped", "saved", "evaluated")}
    flags["skipped"][12] = flags["saved"][13] = flags["evaluated"][14] = True
    config = np.array([0] * 5 + [1] * 35)
    batch = np.array([128] * 7 + [256] * 32 + [0])
    segment = np.array([0] * 5 + [1] * 35)
    state = steady_state(values, config=config, batch=batch, segment=segment, **flags)
    found = {step: reason(state, step) for step in (0, 5, 7, 12, 13, 14, 30, 39)}
    assert found == {
        0: "other configuration", 5: "other batch size", 7: "warm-up", 12: "skipped", 13: "after a checkpoint",
        14: "after an evaluation", 30: "outlier", 39: "",
    }  # fmt: skip
    assert sum(cut.steps for cut in state.cuts) + state.kept == 40
    assert [cut.reason for cut in state.cuts] == list(REASONS[1:])


def test_every_start_has_its_warm_up() -> None:
    segment = np.repeat([0, 1, 2], [20, 3, 17])
    state = steady_state(NOISE, segment=segment)
    warm = [i for i in range(40) if reason(state, i) == "warm-up"]
    assert warm == [0, 1, 2, 3, 4, 20, 23, 24, 25, 26, 27]


@pytest.mark.parametrize(("steps", "kept"), [(1, 1), (2, 2), (3, 2), (6, 4), (15, 10), (16, 11)])
def test_short_logs_keep_something(steps: int, kept: int) -> None:
    assert steady_state(np.full(steps, 2.0)).kept == kept


def test_when_everything_is_exceptional_nothing_is() -> None:
    every = np.ones(6, bool)
    assert steady_state(np.full(6, 2.0), skipped=every).kept == 4
    assert steady_state(np.full(6, 2.0), evaluated=every).kept == 4


def test_two_levels_are_no_outliers() -> None:
    values = np.concatenate([np.full(155, 2.51), np.full(345, 2.35)]) + 0.001 * (np.arange(500) % 3)
    state = steady_state(values)
    assert state.kept == 495
    assert state.drift == pytest.approx(2.351 / 2.511 - 1, abs=1e-3)
    assert state.value == pytest.approx(2.351, abs=0.002)


def test_the_interval_is_that_of_resampling() -> None:
    values = np.random.default_rng(3).normal(5.0, 0.1, 101)
    state = steady_state(np.concatenate([np.full(5, 5.0), values]))
    kept = values[state.reasons[5:] == 0]
    drawn = np.median(np.random.default_rng(4).choice(kept, (4000, len(kept))), axis=1)
    assert state.low == pytest.approx(np.quantile(drawn, 0.05), abs=0.006)
    assert state.high == pytest.approx(np.quantile(drawn, 0.95), abs=0.006)
    assert state.rel_std == pytest.approx(drawn.std() / np.median(kept), rel=0.15)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=60))
def test_the_median_lies_inside_its_interval_and_the_steps(times: list[float]) -> None:
    state = steady_state(np.asarray(times))
    assert min(times) <= state.value <= max(times)
    if state.low is not None and state.high is not None:
        assert state.low <= state.high
        assert min(times) <= state.low
        assert state.high <= max(times)
    assert state.kept + sum(cut.steps for cut in state.cuts) == len(times)


def test_no_steps_have_no_steady_state() -> None:
    assert state_of(Logged()) is None


def test_of_two_steps_that_differ_the_first_is_warm_up() -> None:
    assert steady_state(np.array([60.0, 5.0])).value == 5.0
    assert steady_state(np.array([5.2, 5.0])).value == pytest.approx(5.1)


@pytest.mark.parametrize("log", sorted(LOGS.glob("*.log")), ids=lambda log: log.stem)
def test_a_step_has_the_time_of_day_of_its_line(tmp_path: Path, log: Path) -> None:
    """Whenever a reader tells it: DeepSpeed's steps count when none of Megatron-LM's came."""
    start, lines = datetime(2026, 1, 1), log.read_text().splitlines()
    text = "".join(f"[{start + timedelta(seconds=3 * at)},000] {line}\n" for at, line in enumerate(lines))
    plain, stamped = (read_records_of_log(each)[1] for each in (log, put(tmp_path / log.name, text)))
    assert [record.steps for record in stamped] == [record.steps for record in plain]
    assert log.stem.startswith("mllog") or not any(np.isnan(record.clock).any() for record in stamped)


BEFORE = (
    *("global step {}, epoch: 0, batch: 9", "[train] global step {}, epoch: 0, batch: 9"),
    "[train] epoch: [0/1], batch: [{}/50]",
)


@pytest.mark.parametrize("head", BEFORE)
def test_lines_of_paddle_before_its_trainer(tmp_path: Path, head: str) -> None:
    rest = "avg_batch_cost: 6.00000 sec, speed: 0.17 step/s, ips_total: 36409 tokens/s, max_memory_reserved: 600.0 MB"
    steps = (f"{head.format(at)}, loss: 10.9, {rest}" for at in range(10, 200, 10))
    text = "".join(f"[2023-05-10 14:28:37,123] [    INFO] - {line}\n" for line in steps)
    dialect, (record,) = read_records_of_log(put(tmp_path / "a.log", text))
    assert (dialect, record.steps, state_of(record).value) == ("paddlenlp", 19, 6.0)
    assert not record.memory
