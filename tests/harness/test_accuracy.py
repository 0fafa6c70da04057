"""Summaries on figures worked out by hand; macro averages; memory; verdicts; refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.calibrate import weights
from harness.contracts.results import Row
from harness.evaluation.evaluate import Evaluation
from harness.report import view_causes, view_ranking
from harness.score import accuracy, causes, ranking, resample
from harness.score.changes import Pair
from harness.score.whatif import ceiling, repeats


def test_a_summary_by_hand(make_row, facts_for, framed) -> None:
    known = (("a", 100, 110), ("b", 100, 80), ("c", 100, 140), ("d", 100, None), ("e", None, 50), ("f", 100, None))
    rows = [make_row(*run, family="g" if run[0] == "c" else "f") for run in known]
    facts = facts_for(*rows)
    facts["f"] = replace(facts["f"], complete=False)
    s = accuracy.summarise(framed(rows, facts))
    assert (s.rows, s.incomplete, s.eligible, s.compared, s.cells) == (6, 1, 4, 3, 2)
    assert s.coverage == 0.75
    assert s.mape == pytest.approx((0.1 + 0.2 + 0.4) / 3)
    assert s.macro_mape == pytest.approx((0.15 + 0.4) / 2)
    assert s.bias == pytest.approx(0.1)
    assert s.macro_bias == pytest.approx((-0.05 + 0.4) / 2)
    assert (s.median, s.worst, s.worst_id) == (pytest.approx(0.2), pytest.approx(0.4), "c")
    assert s.p90 == pytest.approx(0.36)


def test_nothing_comparable_has_no_error_but_a_coverage(make_row, framed) -> None:
    refused = make_row("a", 100, None)
    assert accuracy.summarise(framed([refused])).coverage == 0.0
    assert accuracy.summarise(framed([refused])).mape is None
    assert accuracy.summarise(framed([make_row("b", None, 100)])).coverage is None
    assert accuracy.summarise(framed([])).rows == 0


def test_verdicts_are_a_confusion_of_what_both_know(make_row, facts_for, framed) -> None:
    rows = [
        make_row("fine", projected_memory_gib=1.0),
        make_row("alarm", projected_memory_gib=1.0, status="out-of-memory"),
        make_row("missed", None, 5, projected_memory_gib=1.0),
        make_row("right", None, 5, projected_memory_gib=1.0, status="out-of-memory"),
        make_row("no plan"),
    ]
    facts = facts_for(*rows)
    for name in ("missed", "right"):
        facts[name] = replace(facts[name], measured_status="out-of-memory")
    v = accuracy.verdicts(framed(rows, facts))
    assert (v.both_fit, v.both_out, v.false_alarm, v.missed, v.total) == (1, 1, ("alarm",), ("missed",), 4)


def test_refusals_are_grouped_by_each_reason(make_row, framed) -> None:
    rows = [
        make_row("a", 1, None, reason="no tp; no pp"),
        make_row("b", 1, None, reason="no pp"),
        make_row("c", 1, None, reason="odd", status="invalid"),
        make_row("d"),
    ]
    found = [(r.status, r.reason, r.run_ids) for r in accuracy.refusals(framed(rows))]
    assert found[0] == ("unsupported", "no pp", ("a", "b"))
    assert set(found[1:]) == {("unsupported", "no tp", ("a",)), ("invalid", "odd", ("c",))}


# What a projection without error would score.


def _pair(publisher: str, measured: float, kinds: frozenset[str] = frozenset()) -> Pair:
    return Pair(first="a", second="b", publisher=publisher, group="", kinds=kinds, measured=measured, projected=1.0)


def test_a_measurement_that_repeats_exactly_leaves_a_perfect_order_and_noise_takes_it_away(make_row, framed) -> None:
    rows = framed([make_row(f"r{i}", 100.0 * 1.03**i, 90.0 * 1.03**i) for i in range(6)])
    found = [ceiling(rows, spread) for spread in (0.0, 0.01, 0.03, 0.3, 10.0)]
    assert all(of is not None for of in found)
    lows, highs = ([getattr(of, end) for of in found] for end in ("low", "high"))
    assert lows[0] == highs[0] == pytest.approx(1.0)
    assert lows == sorted(lows, reverse=True)
    assert highs == sorted(highs, reverse=True)
    assert all(low <= high for low, high in zip(lows, highs, strict=True))
    assert highs[1] > highs[2] > highs[3]
    assert abs(lows[-1]) < 0.25, "noise alone orders nothing"


def test_the_spread_is_that_of_one_measurement_and_a_source_counts_once() -> None:
    generator = np.random.default_rng(1)
    drawn = np.exp(0.03 * (generator.standard_normal(4000) - generator.standard_normal(4000)))
    assert repeats([_pair("a", m) for m in drawn]) == (pytest.approx(0.03, rel=0.06), 4000, 1)
    many = repeats(
        [*(_pair("a", m) for m in drawn), _pair("b", 1.1), _pair("c", 1.2), _pair("d", 9.0, frozenset({"tp"}))]
    )
    assert many == (pytest.approx(np.log(1.1) / (0.67449 * 2**0.5)), 4002, 3)
    assert repeats([_pair("d", 9.0, frozenset({"tp"}))]) is None


# Weighted medians and quantiles against NumPy's and SciPy's.

VALUES = st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 3.0)), min_size=1, max_size=30)


@given(VALUES, st.floats(0.05, 0.95))
def test_quantiles_are_those_of_numpy(pairs: list[tuple[float, float]], level: float) -> None:
    x, w = (np.array(each) for each in zip(*pairs, strict=True))
    share = np.cumsum(w[np.argsort(x, kind="stable")]) / w.sum()
    if np.abs(share - level).min() > 1e-9:  # at a step both neighbours are right
        expected = np.quantile(x, level, weights=w, method="inverted_cdf")
        assert weights.quantile(x, w, level) == pytest.approx(expected, abs=1e-12)


@given(VALUES)
def test_the_median_lies_between_the_quantiles_about_it(pairs: list[tuple[float, float]]) -> None:
    x, w = (np.array(each) for each in zip(*pairs, strict=True))
    low, high = (float(np.quantile(x, at, weights=w, method="inverted_cdf")) for at in (0.5 - 1e-6, 0.5 + 1e-6))
    assert low - 1e-12 <= weights.median(x, w) <= high + 1e-12


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 4)), min_size=1, max_size=30))
def test_a_macro_mean_is_the_mean_of_the_means_of_cells(pairs: list[tuple[float, int]]) -> None:
    x, cells = zip(*pairs, strict=True)
    means = [np.mean([v for v, c in pairs if c == cell]) for cell in set(cells)]
    assert weights.macro(x, cells) == pytest.approx(float(np.mean(means)), abs=1e-12)


def test_the_bootstrap_is_the_percentile_bootstrap_of_scipy() -> None:
    """Other draws, so only as close as two thousand of them are."""
    values = np.random.default_rng(1).normal(0.2, 1.0, 60)
    found = resample.of_mean(values.tolist())
    resample._counts.cache_clear()
    assert resample.of_mean(values.tolist()) == found  # the seed is fixed: another process draws the same
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, confidence_level=0.9, method="percentile", rng=2
    ).confidence_interval
    assert found == pytest.approx((expected.low, expected.high), abs=0.03)


# Bootstrap intervals over groups, and where the reports show them.


def test_one_group_has_no_interval() -> None:
    assert resample.of_mean([0.5]) is None
    assert resample.of_ratio([0.0, 1.0], [0.0, 1.0]) is None
    assert resample.of_ratio([1.0, 2.0], [2.0, 4.0]) == (0.5, 0.5)


def test_the_summary_of_groups_carries_its_intervals(make_row, framed) -> None:
    rows = [make_row(f"{g}{i}", 100.0 + i, 100.0 + (i if g != "c" else -i), group=g) for g in "abc" for i in (0, 9)]
    found = ranking.summary(ranking.group_rankings(framed(rows)))
    assert found.tau == pytest.approx(1 / 3)
    assert found.tau_range == (pytest.approx(-1 / 3), 1.0)
    assert found.regret_range[0] <= found.regret <= found.regret_range[1]
    assert ranking.summary([]).tau_range is None


def test_order_by_suite_and_what_differs(make_row, facts_for) -> None:
    rows = [make_row(f"{g}{i}", 100.0 + i, 100.0 + i, group=g, suite="s" + g) for g in "ab" for i in (0, 9)]
    facts = facts_for(*rows)
    for r in rows:
        differs = {"tp": r.run_id, "numa": r.run_id}
        facts[r.run_id] = replace(facts[r.run_id], differs=differs, switches=("version", "numa"))
    evaluation = Evaluation(rows=tuple(rows), facts=facts)
    made = view_ranking.by_suite(evaluation, "simulate")
    assert [line[0] for line in made.rows] == ["all", "all, by a field seen", "sa", "sb"]
    chosen = view_ranking.by_suite(evaluation, "simulate", {"mine": {"a0", "a9"}})
    assert [(line[0], line[1]) for line in chosen.rows][-1] == ("mine", "1")
    *_, inside = view_ranking.of_predictor(evaluation, "simulate")
    first, _ = inside.rows
    assert first[-2:] == ("tp", "numa")


def test_memory_error_of_all_kinds_together(make_row, framed) -> None:
    rows = [make_row("a", memory_error=0.1), make_row("b", memory_error=-0.3, status="out-of-memory"), make_row("c")]
    rows.append(make_row("d", memory_error=0.6, family="g"))
    found = accuracy.memory_error(framed(rows))
    assert (found.compared, found.worst_id) == (3, "d")
    assert (found.mape, found.bias) == (pytest.approx(1.0 / 3), pytest.approx(0.4 / 3))
    assert found.macro_mape == pytest.approx((0.2 + 0.6) / 2)
    assert accuracy.memory_error(framed(rows[2:3])) is None


# What the error is made of: points add up, kin are told from the cell, a planted term is found, ablations only shrink.


@pytest.fixture
def rows(make_row) -> list[Row]:
    """Six families × three GPUs: one family is off everywhere, one cell scatters, one cell is a single odd row."""
    made = []
    for f in range(6):
        for g in range(3):
            for i in range(4 if (f, g) != (5, 2) else 1):
                off = (
                    1.3 if f == 0 else 1.0 + 0.4 * (i - 1.5) if (f, g) == (1, 0) else 3.0 if (f, g) == (5, 2) else 1.02
                )
                made.append(
                    make_row(
                        f"{f}{g}{i}", 100.0, 100.0 * off, family=f"m{f}", gpu=f"g{g}", framework="mlm", compute_s=0.6,
                        host_s=0.4,
                    )
                )  # fmt: skip
    return made


def test_points_add_up_to_the_macro_error(rows: list[Row], framed) -> None:
    points = causes.cells(framed(rows))["points"].tolist()
    assert math.fsum(points) == pytest.approx(accuracy.summarise(framed(rows)).macro_mape)
    assert points == sorted(points, reverse=True)


def test_where_to_look_is_told_by_kin(rows: list[Row], framed) -> None:
    faults = {(c.family, c.gpu): c.fault for c in causes.cells(framed(rows)).itertuples()}
    assert faults["m0", "g0"] == "the whole family"
    assert faults["m1", "g0"].startswith("scatter")
    assert faults["m5", "g2"].startswith("one row alone")


def test_ablations_never_leave_more_and_cells_leave_the_scatter(rows: list[Row], framed) -> None:
    found = {a.name: a for a in causes.ablations(framed(rows)).itertuples()}
    assert all(a.error <= found["nothing"].error + 1e-12 for a in found.values())
    assert found["cell"].values == 18
    assert found["family"].error < 0.6 * found["nothing"].error
    middle = np.median([math.log(1.0 + 0.4 * (i - 1.5)) for i in range(4)])
    odd = [r for r in rows if (r.family, r.gpu) == ("m1", "g0")]
    scatter = np.mean([abs(math.log1p(r.error) - middle) for r in odd]) / 18
    assert found["cell"].error == pytest.approx(scatter)


def test_bias_and_scatter_by_gpu(rows: list[Row], framed) -> None:
    found = causes.per_key(framed(rows), "gpu")
    assert set(found["key"]) == {"g0", "g1", "g2"}
    assert (found["without_cells"] <= found["error"] + 1e-12).all()
    assert set(found["cells"]) == {6}


def test_a_planted_part_is_found_and_holds_in_unseen_families(make_row, framed) -> None:
    generator = np.random.default_rng(3)
    made = []
    for f in range(10):
        for i in range(12):
            host = float(generator.uniform(0.0, 0.7))
            off = math.exp(0.4 * host + 0.02 * float(generator.normal()))
            parts = {"compute_s": 1.0 - host, "host_s": host}
            made.append(make_row(f"{f}-{i}", 100.0, 100.0 * off, family=f"m{f}", **parts))
    first = next(causes.terms(framed(made)).itertuples())
    assert first.name == "host"
    assert first.theta == pytest.approx(0.4, abs=0.1)
    assert first.held_out > 0.5 * first.saved > 0.0
    assert causes.terms(framed([make_row("x")])).empty


def test_conditions_split_rows_in_two(rows: list[Row], framed) -> None:
    made = framed(rows)
    tests = {"first": made["family"] == "m0", "none": made["family"] == ""}
    found = {c.name: c for c in causes.conditions(made, tests).itertuples()}
    assert set(found) == {"first"}
    first = found["first"]
    assert (first.rows, first.cells, first.mape) == (12, 3, pytest.approx(0.3))
    assert first.points == pytest.approx(3 * 0.3 / 18)
    assert first.range == (pytest.approx(0.3), pytest.approx(0.3))


def test_the_tables_are_made_of_complete_rows_only(rows: list[Row], facts_for) -> None:
    made = view_causes.of_predictor(Evaluation(rows=tuple(rows), facts=facts_for(*rows)), "simulate")
    titles = ["cells", "biases", "bias and scatter by GPU", "parts of the step", "conditions"]
    assert [t.title.split(": ")[1] for t in made] == titles
    assert len(made[0].rows) == 15
    incomplete = facts_for(*rows, complete=False)
    assert view_causes.of_predictor(Evaluation(rows=tuple(rows), facts=incomplete), "simulate") == []
    for table in made:
        assert all(len(line) == len(table.columns) for line in table.rows)
