"""Conformal intervals: exact quantiles, harder rows wider, coverage as it came out, and the file that carries them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.calibrate import intervals
from harness.calibrate.folds import Bench, judge
from harness.calibrate.observe import of_rows
from harness.contracts import frame
from harness.contracts.estimates import Estimate
from harness.contracts.results import Evaluation, Row, RunFacts
from harness.evaluation import experience
from harness.score import accuracy
from harness.score.transfer import rows_of
from projector.experience import FEATURES, correct, features
from projector.experience_file import parse, text


def row(name: str, family: str, error: float | None, **changes: object) -> Row:
    base = Row(
        run_id=name,
        suite="",
        group="",
        gpu="g",
        gpus=8,
        model=family,
        family=family,
        precision="bf16",
        framework="f",
        predictor="simulate",
        fit="heldout",
        status="ok",
        projected_step_seconds=1.0,
        projected_tgs=1000.0,
        measured_tgs=None if error is None else 1000.0 / (1.0 + error),
        error=error,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def learn(residuals: list[float], x: np.ndarray | None = None, error: float = 0.0) -> intervals.Learnt | None:
    told = np.ones((len(residuals), 1)) if x is None else x
    return intervals.learn(told, np.full(len(residuals), error), np.abs(residuals), list(range(len(residuals))))


def test_the_half_width_is_the_conformal_quantile() -> None:
    residuals = [0.01 * i for i in range(1, 31)]
    found = learn(residuals)
    assert found is not None
    rank = math.ceil(intervals.LEVEL * (len(residuals) + 1) - 1e-9)
    assert intervals.half_widths(np.ones((1, 1)), np.zeros(1), found)[0] == pytest.approx(residuals[rank - 1])


@pytest.mark.parametrize("residuals", [[0.1], [0.1, 0.2], [0.05] * 8])
def test_too_few_cells_give_no_interval(residuals: list[float]) -> None:
    assert learn(residuals) is None


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    feature=st.floats(0.0, 1.0),
    more=st.floats(0.0, 0.5),
    error=st.floats(0.0, 0.3),
    worse=st.floats(0.0, 0.3),
)
def test_widths_grow_with_every_sign_of_trouble(
    seed: int, feature: float, more: float, error: float, worse: float
) -> None:
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(60), generator.uniform(0.0, 1.0, 60)])
    found = learn((0.05 + 0.2 * x[:, 1] * generator.exponential(1.0, 60)).tolist(), x, 0.02)
    assert found is not None
    one = np.array([[1.0, feature], [1.0, feature + more], [1.0, feature]])
    half = intervals.half_widths(one, np.array([error, error, error + worse]), found)
    assert half[1] >= half[0]
    assert half[2] >= half[0]


def test_a_harder_row_has_a_wider_interval() -> None:
    generator = np.random.default_rng(5)
    x = np.array([[1.0, 0.5 * (i % 2)] for i in range(40)])
    residuals = [float(generator.normal(0.0, 0.3 if i % 2 else 0.03)) for i in range(40)]
    found = learn(residuals, x)
    assert found is not None
    easy, hard = intervals.half_widths(np.array([[1.0, 0.0], [1.0, 0.5]]), np.zeros(2), found)
    assert hard > 2.0 * easy


def test_a_sign_of_trouble_is_not_extrapolated() -> None:
    x = np.array([[1.0, 0.001 * max(0, i - 15)] for i in range(30)])
    found = learn([1e-6] * 15 + [3.0] * 15, x)
    assert found is not None
    widest = intervals.half_widths(x, np.zeros(30), found).max()
    assert intervals.half_widths(np.array([[1.0, 1.0]]), np.zeros(1), found)[0] == pytest.approx(widest)


def test_rows_of_one_cell_weigh_less_than_as_many_cells() -> None:
    residuals = [0.01 * i for i in range(1, 21)]
    crowd = [1.0] * 40
    cells = [*range(20), *(["one"] * 40)]
    alone = intervals.learn(np.ones((60, 1)), np.zeros(60), np.array(residuals + crowd), cells)
    apart = intervals.learn(np.ones((60, 1)), np.zeros(60), np.array(residuals + crowd), list(range(60)))
    assert alone is not None
    assert apart is not None
    assert alone.least < apart.least


def estimate(half: float) -> Estimate:
    return Estimate(law="pooled", log=0.0, error=0.0, key="g", level=0, cells=4, half=half)


def test_only_projected_held_out_rows_have_intervals() -> None:
    plain = {"fit": "uncalibrated"}
    rows = [row("a", "m", 0.1, **plain), row("b", "m", None, **plain), row("c", "m", 0.1, **plain)]
    rows += [row("d", "m", 0.1, **plain), row("e", "m", None, **plain, projected_tgs=None)]
    known = {name: estimate(0.1) for name in "abe"} | {"d": estimate(math.inf)}
    made = rows_of(frame.of(rows), known)
    assert set(made["fit"]) == {"heldout"}
    got = made.set_index("run_id")
    assert got.loc["a", ["interval_low", "interval_high"]].tolist() == pytest.approx(
        [1000 * math.exp(-0.1), 1000 * math.exp(0.1)]
    )
    assert got["interval_low"].notna().to_dict() == {"a": True, "b": True, "c": False, "d": False, "e": False}
    assert accuracy.coverage(made).rows == 1


def test_coverage_counts_rows_and_cells() -> None:
    bounds = {"interval_low": 900.0, "interval_high": 1100.0}
    rows = [row("a", "m1", 0.0, **bounds), row("b", "m1", 0.05, **bounds), row("c", "m2", 0.5, **bounds)]
    found = accuracy.coverage(frame.of([*rows, row("d", "m3", 0.0)]))
    assert found is not None
    assert (found.rows, found.inside, found.macro) == (3, pytest.approx(2 / 3), 0.5)
    assert found.width == found.macro_width == pytest.approx(1100 / 900 - 1)
    assert accuracy.coverage(frame.of([row("d", "m3", 0.0)])) is None


def corpus(errors: list[float]) -> tuple[list[Row], dict[str, RunFacts]]:
    """One uncalibrated row a family, so that every cell is one row."""
    rows = [row(f"r{i}", f"m{i}", e, fit="uncalibrated", tp_s=0.1, compute_s=0.9) for i, e in enumerate(errors)]
    return rows, {r.run_id: RunFacts(run_id=r.run_id, arch="a", vendor="v") for r in rows}


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.02, 0.4))
def test_exchangeable_families_are_covered_as_promised(seed: int, scale: float) -> None:
    errors = np.expm1(np.random.default_rng(seed).normal(0.0, scale, 40)).tolist()
    rows, facts = corpus(errors)
    seen = of_rows(frame.of(rows, facts))
    found = Bench.of(seen).held_out("pooled")
    inside = [abs(o.log_ratio - found[o.run_id].log) <= found[o.run_id].half for o in seen]
    assert 0.75 <= sum(inside) / len(inside) <= 1.0


def test_the_file_of_experience_reads_back_and_says_what_the_fold_says() -> None:
    rows, facts = corpus([0.01 * i for i in range(1, 31)])
    seen = of_rows(frame.of(rows, facts))
    fold, _ = judge(seen)
    made = Evaluation(rows=tuple(rows), facts=facts, laws={"simulate": fold})
    written = experience.text(made)
    assert written is not None
    found = parse(written, "made here")
    assert text(found) == written
    assert set(found.grounds) == {"g", "arch:a", "vendor:v", "all"}
    assert set(found.stacks) == {"f"}
    assert (found.law, found.evidence["rows"], found.evidence["cells"]) == (fold.law, "30", "30")
    one = seen[3]
    said = fold.estimate(one)
    ground, stack = found.grounds["g"], found.stacks["f"]
    corrected = correct(one.shares, ground, stack)
    assert corrected.value == pytest.approx(said.log, abs=1e-3)
    told = features(one.assumed, one.shares, ground, stack)
    linear = sum(c * min(x, most) for c, x, most in zip(found.coefficients, told, found.seen, strict=True))
    half = found.quantile * math.hypot(max(linear, found.least), corrected.error)
    assert half == pytest.approx(said.half, rel=0.02)
    assert len(found.coefficients) == len(FEATURES)


def test_two_families_teach_no_interval() -> None:
    rows, facts = corpus([0.1, 0.2])
    fold, _ = judge(of_rows(frame.of(rows, facts)))
    assert experience.text(Evaluation(rows=tuple(rows), facts=facts, laws={"simulate": fold})) is None
    assert experience.text(Evaluation(rows=tuple(rows), facts=facts)) is None
