"""Conformal intervals: exact quantiles, no leakage between a family and its own interval, coverage as it came out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import experience, intervals
from harness.calibration import Factor
from harness.results import Evaluation, Row, RunFacts
from projector.experience import parse

OWN = Factor(key="g", value=1.0, rows=9, cells=4, spread=0.1)


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


def made(rows: list[Row], factor: Factor = OWN) -> list[Row]:
    return intervals.attach(rows, {(r.predictor, r.run_id): factor for r in rows})


def corpus(errors: list[float], changes: dict[int, dict[str, object]] | None = None) -> list[Row]:
    """One row a family, so that every cell is one row."""
    return [row(f"r{i}", f"m{i}", e, **(changes or {}).get(i, {})) for i, e in enumerate(errors)]


def test_the_half_width_is_the_conformal_quantile_of_the_other_families() -> None:
    errors = [0.01 * i for i in range(1, 31)]
    got = made(corpus(errors))
    for i, r in enumerate(got):
        others = sorted(math.log1p(e) for j, e in enumerate(errors) if j != i)
        rank = math.ceil(intervals.LEVEL * (len(others) + 1) - 1e-9)
        assert r.interval_high == pytest.approx(1000.0 * math.exp(others[rank - 1]))
        assert r.interval_low == pytest.approx(1000.0 * math.exp(-others[rank - 1]))


@settings(max_examples=40, deadline=None)
@given(errors=st.lists(st.floats(-0.6, 2.0), min_size=14, max_size=30), own=st.floats(-0.9, 9.0))
def test_what_a_family_measured_never_moves_its_own_interval(errors: list[float], own: float) -> None:
    plain, changed = made(corpus(errors)), made(corpus([own, *errors[1:]]))
    assert (plain[0].interval_low, plain[0].interval_high) == (changed[0].interval_low, changed[0].interval_high)


def test_a_harder_row_has_a_wider_interval() -> None:
    rng = np.random.default_rng(5)
    hard = {i: {"tp_s": 0.5} for i in range(40) if i % 2}
    errors = [float(rng.normal(0.0, 0.3 if i % 2 else 0.03)) for i in range(40)]
    got = made(corpus(errors, hard))
    width = [r.interval_high / r.interval_low for r in got if r.interval_high and r.interval_low]
    assert min(width[1::2]) > 2.0 * max(width[::2]) - 1.0
    assert intervals.features(got[1], OWN)[2] == 0.5


def test_too_few_families_give_no_interval() -> None:
    for errors in ([0.1], [0.1, 0.2], [0.05] * 8):
        assert all(r.interval_low is None for r in made(corpus(errors)))


def test_only_projected_held_out_rows_have_intervals_and_unmeasured_ones_do_too() -> None:
    rows = corpus([0.01 * i for i in range(1, 21)])
    rows += [row("new", "m-new", None), row("shipped", "m1", 0.1, fit="calibrated"), row("none", "m2", None)]
    rows[-1] = replace(rows[-1], projected_tgs=None, projected_step_seconds=None)
    got = {r.run_id: r for r in made(rows)}
    assert got["new"].interval_low is not None
    assert got["shipped"].interval_low is None
    assert got["none"].interval_low is None
    assert intervals.inside(got["new"]) is None


def test_a_run_in_two_suites_is_one_residual() -> None:
    errors = [0.01 * i for i in range(1, 31)]
    once = made(corpus(errors))
    twice = made(corpus(errors) + [replace(r, suite="again") for r in corpus(errors)])
    assert [r.interval_high for r in once] == pytest.approx([r.interval_high for r in twice[:30]])


def test_thin_ground_and_assumptions_count() -> None:
    plain = row("a", "m", 0.1, assumed="x=1; y=2", ep_s=0.25, dp_s=0.25, host_s=0.1)
    assert intervals.features(plain, OWN) == (1.0, 0.25, 0.5, 0.1, 0.5)
    assert intervals.features(plain, replace(OWN, level=1))[-1] == 1.0
    assert intervals.features(plain, None)[-1] == 1.0


def test_coverage_counts_rows_and_cells() -> None:
    bounds = {"interval_low": 900.0, "interval_high": 1100.0}
    rows = [row("a", "m1", 0.0, **bounds), row("b", "m1", 0.05, **bounds), row("c", "m2", 0.5, **bounds)]
    found = intervals.coverage([*rows, row("d", "m3", 0.0)])
    assert found is not None
    assert (found.rows, found.inside, found.macro) == (3, pytest.approx(2 / 3), 0.5)
    assert found.width == pytest.approx(1100 / 900 - 1)
    assert intervals.coverage([row("d", "m3", 0.0)]) is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.02, 0.4))
def test_exchangeable_families_are_covered_as_promised(seed: int, scale: float) -> None:
    errors = np.expm1(np.random.default_rng(seed).normal(0.0, scale, 80)).tolist()
    found = intervals.coverage(made(corpus(errors)))
    assert found is not None
    assert 0.8 <= found.inside <= 0.99


def test_what_is_learnt_from_all_serves_a_new_family() -> None:
    rows = corpus([0.01 * i for i in range(1, 31)])
    learnt = intervals.learn(rows, {(r.predictor, r.run_id): OWN for r in rows})
    assert learnt is not None
    new = made([*rows, row("new", "m-new", None)])[-1]
    half = learnt.quantile * sum(c * x for c, x in zip(learnt.coefficients, intervals.features(new, OWN), strict=True))
    assert new.interval_high == pytest.approx(1000.0 * math.exp(half))
    assert intervals.learn(rows[:1], {}) is None


def test_the_file_of_experience_reads_back() -> None:
    rows = corpus([0.01 * i for i in range(1, 31)])
    plain = [replace(r, fit="uncalibrated") for r in rows]
    facts = {r.run_id: RunFacts(run_id=r.run_id, arch="a", vendor="v") for r in rows}
    held = {(r.predictor, r.run_id): OWN for r in rows}
    text = experience.text(Evaluation(rows=(*plain, *rows), facts=facts, heldout=held))
    assert text is not None
    found = parse(text, "made here")
    median = math.exp(float(np.median([math.log1p(0.01 * i) for i in range(1, 31)])))
    assert found.grounds["g"].factor == pytest.approx(median, abs=1e-4)
    assert set(found.grounds) == {"g", "arch:a", "vendor:v", "all"}
    assert experience.text(Evaluation(rows=(plain[0], rows[0]), facts=facts, heldout=held)) is None


def test_a_sign_of_trouble_that_few_rows_show_does_not_blow_up() -> None:
    """Errors that go with one feature alone: a row without it is not exact, so its score stays finite."""
    errors = [1e-6] * 15 + [3.0] * 15
    rows = corpus(errors, {i: {"tp_s": 0.001 * i} for i in range(15, 30)})
    got = made([*rows, row("far", "m-far", 0.1, tp_s=1.0)])
    widths = [r.interval_high / r.interval_low for r in got if r.interval_high and r.interval_low]
    assert len(widths) == 31
    assert max(widths) < 1e6
