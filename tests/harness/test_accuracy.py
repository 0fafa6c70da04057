"""Summaries on figures worked out by hand; macro averages; memory; verdicts; refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibrate import weights
from harness.score import accuracy


def test_a_summary_by_hand(make_row, facts_for, framed) -> None:
    rows = [
        make_row("a", 100, 110),
        make_row("b", 100, 80),
        make_row("c", 100, 140, family="g"),
        make_row("d", 100, None),
        make_row("e", None, 50),
        make_row("f", 100, None),
    ]
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
    case = make_row("b", None, 100)
    assert accuracy.summarise(framed([case])).coverage is None
    assert accuracy.summarise(framed([])).rows == 0


def macro(pairs: list[tuple[int, float]]) -> float:
    return weights.macro([value for _, value in pairs], [cell for cell, _ in pairs])


@given(st.integers(1, 5), st.lists(st.lists(st.floats(0, 5), min_size=5, max_size=5), min_size=1, max_size=6))
def test_macro_is_plain_where_the_cells_are_balanced(size: int, cells: list[list[float]]) -> None:
    pairs = [(i, v) for i, cell in enumerate(cells) for v in cell[:size]]
    assert macro(pairs) == pytest.approx(sum(v for _, v in pairs) / len(pairs))


@given(st.lists(st.floats(0, 5), min_size=1, max_size=6), st.integers(1, 20))
def test_macro_does_not_see_how_often_a_cell_repeats(cells: list[float], times: int) -> None:
    once = [(i, v) for i, v in enumerate(cells)]
    assert macro(once + [once[0]] * times) == pytest.approx(macro(once))


def test_memory_by_what_was_measured(make_row, facts_for, framed) -> None:
    rows = [make_row("a", memory_error=0.1), make_row("b", memory_error=-0.3), make_row("c", memory_error=0.5)]
    rows.append(make_row("d"))
    facts = facts_for(*rows, memory_kind="allocated")
    facts["c"] = replace(facts["c"], memory_kind=None)
    allocated, unknown = accuracy.memory(framed(rows, facts))
    assert (allocated.kind, allocated.compared, allocated.worst_id) == ("allocated", 2, "b")
    assert (allocated.mape, allocated.bias) == (pytest.approx(0.2), pytest.approx(-0.1))
    assert (unknown.kind, unknown.mape) == ("not stated", 0.5)


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
