"""Old rows against new rows."""

from __future__ import annotations

from harness import drift


def test_lost_gained_and_broken(make_row) -> None:
    old = [make_row("a", 100, 101), make_row("b", 100, 102), make_row("c", 100, None), make_row("gone", 100, 100)]
    new = [make_row("a", 100, 120), make_row("b", 100, None), make_row("c", 100, 100), make_row("fresh", 100, 100)]
    found = drift.compare(old, new)
    assert found.lost == (("simulate", "b"),)
    assert set(found.gained) == {("simulate", "c"), ("simulate", "fresh")}
    assert [m.run_id for m in found.broken] == ["a"]
    assert not found.passed


def test_a_better_mean_does_not_hide_a_broken_row(make_row) -> None:
    old = [make_row("a", 100, 150), make_row("b", 100, 100)]
    new = [make_row("a", 100, 100), make_row("b", 100, 110)]
    found = drift.compare(old, new)
    assert found.after < found.before
    assert not found.passed


def test_the_same_rows_pass(make_row) -> None:
    rows = [make_row("a", 100, 103), make_row("b", 100, None)]
    found = drift.compare(rows, rows)
    assert found.passed
    assert found.before == found.after
