"""Conformal intervals: exact quantiles, harder rows wider, coverage as it came out, and the file that carries them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.calibrate import intervals
from harness.calibrate.folds import Bench, judge
from harness.calibrate.observe import of_rows
from harness.contracts import frame
from harness.contracts.estimates import Estimate, Observation
from harness.contracts.results import Evaluation, Row, RunFacts
from harness.evaluation import experience
from harness.score import accuracy
from harness.score.transfer import rows_of
from projector.experience import FEATURES, correct, features, traits
from projector.experience_file import parse, text
from tests.harness import plain_rows


def row(name: str, family: str, error: float | None, **changes: object) -> Row:
    measured = None if error is None else 1000.0 / (1.0 + error)
    own = {"gpu": "g", "framework": "f", "model": family, "family": family, "projected_step_seconds": 1.0}
    return plain_rows.row(name, measured, 1000.0, **{**own, "error": error, **changes})


def learn(residuals: list[float], x: np.ndarray | None = None) -> intervals.Learnt | None:
    """Every residual of a source of its own."""
    told = np.ones((len(residuals), 1)) if x is None else x
    each = list(range(len(residuals)))
    return intervals.learn(told, np.abs(residuals), each, each)


def test_the_half_width_is_the_conformal_quantile() -> None:
    residuals = [0.01 * i for i in range(1, 31)]
    found = learn(residuals)
    assert found is not None
    rank = math.ceil(intervals.LEVEL * (len(residuals) + 1) - 1e-9)
    assert intervals.half_widths(np.ones((1, 1)), found)[0] == pytest.approx(residuals[rank - 1])


@pytest.mark.parametrize("residuals", [[0.1], [0.1, 0.2], [0.05] * 8])
def test_too_few_sources_give_no_interval(residuals: list[float]) -> None:
    assert learn(residuals) is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_fewer_sources_widen(seed: int) -> None:
    """The same spread, known from fewer of them: the new one that counts as wide open weighs more."""
    residuals = np.sort(np.random.default_rng(seed).exponential(0.1, 10))
    few, many = learn(residuals.tolist()), learn(np.repeat(residuals, 10).tolist())
    assert few is not None
    assert many is not None
    one = np.ones((1, 1))
    assert intervals.half_widths(one, few)[0] >= intervals.half_widths(one, many)[0] * (1.0 - 1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), feature=st.floats(0.0, 1.0), more=st.floats(0.0, 0.5))
def test_widths_grow_with_every_sign_of_trouble(seed: int, feature: float, more: float) -> None:
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(60), generator.uniform(0.0, 1.0, 60)])
    found = learn((0.05 + 0.2 * x[:, 1] * generator.exponential(1.0, 60)).tolist(), x)
    assert found is not None
    half = intervals.half_widths(np.array([[1.0, feature], [1.0, feature + more]]), found)
    assert half[1] >= half[0]


@given(cp=st.integers(1, 64), ground=st.integers(0, 40), stack=st.integers(0, 40), less=st.integers(1, 40))
def test_less_evidence_never_narrows(cp: int, ground: int, stack: int, less: int) -> None:
    """Coefficients are not negative, so it is enough that no feature falls: an unknown framework is the widest."""
    parts = {"host_s": 0.2, "other_s": 0.1}
    told = traits(1.0, parts, ["vpp=1 (not stated)"], cp)
    known = features(told, ground, stack)
    for fewer in (
        features(told, max(ground - less, 0), stack),
        features(told, ground, max(stack - less, 0)),
        features(told, ground, 0),
        features(traits(1.0, parts, ["16 layers, seq_length=8192 (from the printed TFLOP/s)"], cp), ground, stack),
        features(traits(0.5, parts, [], 2 * cp), ground, stack),
    ):
        assert all(a >= b for a, b in zip(fewer, known, strict=True))


def test_a_harder_row_has_a_wider_interval() -> None:
    generator = np.random.default_rng(5)
    x = np.array([[1.0, 0.5 * (i % 2)] for i in range(40)])
    residuals = [float(generator.normal(0.0, 0.3 if i % 2 else 0.03)) for i in range(40)]
    found = learn(residuals, x)
    assert found is not None
    easy, hard = intervals.half_widths(np.array([[1.0, 0.0], [1.0, 0.5]]), found)
    assert hard > 2.0 * easy


def test_a_sign_of_trouble_is_not_extrapolated() -> None:
    x = np.array([[1.0, 0.001 * max(0, i - 15)] for i in range(30)])
    found = learn([1e-6] * 15 + [3.0] * 15, x)
    assert found is not None
    widest = intervals.half_widths(x, found).max()
    assert intervals.half_widths(np.array([[1.0, 1.0]]), found)[0] == pytest.approx(widest)


def test_rows_of_one_source_weigh_less_than_as_many_sources() -> None:
    residuals = [0.01 * i for i in range(1, 21)] + [1.0] * 40
    each = list(range(60))
    crowd = [*range(20), *([99] * 40)]
    alone = intervals.learn(np.ones((60, 1)), np.array(residuals), crowd, crowd)
    apart = intervals.learn(np.ones((60, 1)), np.array(residuals), each, each)
    assert alone is not None
    assert apart is not None
    assert alone.least < apart.least


def test_every_cell_of_a_source_weighs_one_and_the_new_source_as_much_as_one_of_them() -> None:
    """Ten sources, of which one has eleven cells: of 20 cells and a new source of 2, nine tenths are below the 20th."""
    sources, cells = [*range(9), *([9] * 11)], list(range(20))
    found = intervals.learn(np.ones((20, 1)), 0.01 * np.arange(1, 21), sources, cells)
    assert found is not None
    assert intervals.half_widths(np.ones((1, 1)), found)[0] == pytest.approx(0.2)


def test_weights_by_source_and_by_cell_inside() -> None:
    found = intervals.by_source(["a", "a", "a", "b"], ["x", "x", "y", "x"])
    assert found.tolist() == [0.25, 0.25, 0.5, 1.0]


def estimate(half: float) -> Estimate:
    return Estimate(law="one", log=0.0, key="g", level=0, half=half)


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
    """One uncalibrated row a source."""
    rows = [row(f"r{i}", f"m{i % 5}", e, fit="uncalibrated", tp_s=0.1, compute_s=0.9) for i, e in enumerate(errors)]
    return rows, {r.run_id: RunFacts(run_id=r.run_id, arch="a", vendor="v", source=f"s{r.run_id}") for r in rows}


def test_exchangeable_sources_are_covered_as_promised() -> None:
    """Sources of a bias and a spread of their own, three rows each: a new one is inside nine times in ten."""
    generator = np.random.default_rng(3)
    inside = []
    for _ in range(40):
        own = generator.normal(0.1, 0.15, 31)
        seen = [
            Observation(
                run_id=f"{s}-{i}",
                family="m",
                framework="f",
                levels=("g", "all"),
                log_ratio=float(own[s] + 0.05 * generator.normal()),
                source=f"s{s}",
            )
            for s in range(31)
            for i in range(3)
        ]
        learnt, new = [o for o in seen if o.source != "s30"], [o for o in seen if o.source == "s30"]
        fold = Bench.of(learnt).fold(None)
        inside += [abs(o.log_ratio - found.log) <= found.half for o in new for found in [fold.estimate(o)]]
    assert 0.82 <= np.mean(inside) <= 0.98


def test_the_file_of_experience_reads_back_and_says_what_the_fold_says() -> None:
    rows, facts = corpus([-0.01 * i for i in range(1, 31)])
    seen = of_rows(frame.of(rows, facts))
    fold, _ = judge(seen)
    made = Evaluation(rows=tuple(rows), facts=facts, laws={"simulate": fold})
    written = experience.text(made)
    assert written is not None
    found = parse(written, "made here")
    assert text(found) == written
    assert set(found.grounds) == {"g", "arch:a", "vendor:v", "all"}
    assert set(found.stacks) == {"f"}
    assert (found.law, found.evidence["rows"], found.evidence["cells"]) == (fold.law, "30", "5")
    one = seen[3]
    said = fold.estimate(one)
    ground, stack = found.grounds["g"], found.stacks["f"]
    assert correct(ground, stack) == pytest.approx(said.log, abs=1e-3) != 0.0
    told = features(one.traits, ground.sources, stack.sources)
    linear = sum(c * min(x, most) for c, x, most in zip(found.coefficients, told, found.seen, strict=True))
    assert found.quantile * max(linear, found.least) == pytest.approx(said.half, rel=0.02)
    assert len(found.coefficients) == len(FEATURES)


def test_two_sources_teach_no_interval() -> None:
    rows, facts = corpus([0.1, 0.2])
    fold, _ = judge(of_rows(frame.of(rows, facts)))
    assert experience.text(Evaluation(rows=tuple(rows), facts=facts, laws={"simulate": fold})) is None
    assert experience.text(Evaluation(rows=tuple(rows), facts=facts)) is None
