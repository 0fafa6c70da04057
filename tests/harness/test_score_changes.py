"""What a change brings: which runs make a pair, and how it is scored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from harness.contracts import frame
from harness.contracts.results import Evaluation, Row, RunFacts
from harness.report import view_whatif
from harness.score import changes

Make = Callable[..., Row]


def rows_of(make_row: Make, *runs: tuple[str, float, float, dict[str, str], dict[str, Any]]) -> Any:
    """Runs by id, measured, projected, configuration, and what else of the row or of its facts."""
    rows, facts = [], {}
    for run, measured, projected, differs, more in runs:
        known = {"source": more.pop("source", "a/b x.md"), "switches": more.pop("switches", ("version",))}
        rows.append(make_row(run, measured, projected, fit="uncalibrated", **more))
        facts[run] = RunFacts(run_id=run, differs=differs, **known)
    return frame.of(rows, facts)


def test_a_group_pairs_all_of_its_runs_and_a_model_those_of_one_kind(make_row: Make) -> None:
    loose = {"group": ""}
    found = changes.pairs(
        rows_of(
            make_row,
            ("a", 100, 100, {"tp": "1"}, {}),
            ("b", 110, 105, {"tp": "2", "pp": "2"}, {}),
            ("c", 90, 95, {"tp": "1", "precision": "fp8"}, dict(loose)),
            ("d", 90, 95, {"tp": "4", "precision": "fp8"}, {**loose, "source": "c/d"}),
            ("e", 90, 95, {"tp": "1", "precision": "fp8"}, {**loose, "model": "other"}),
        )
    )
    assert [(p.first, p.second, sorted(p.kinds), p.group) for p in found] == [
        ("a", "b", ["pp", "tp"], "g"),
        ("a", "c", ["precision"], ""),
    ]
    assert found[0].measured == pytest.approx(1.1)
    assert found[0].error == pytest.approx(math.log(1.05 / 1.1))


def test_what_no_recipe_field_holds_is_no_kind_and_parts_runs_outside_a_group(make_row: Make) -> None:
    hidden = {"switches": ("version", "env", "tp")}
    found = changes.pairs(
        rows_of(
            make_row,
            ("a", 100, 100, {"env": "x", "tp": "1"}, dict(hidden)),
            ("b", 110, 100, {"env": "y", "tp": "2"}, dict(hidden)),
            ("c", 110, 120, {"env": "y", "tp": "2", "pp": "2"}, {**hidden, "group": ""}),
            ("d", 100, 100, {"env": "x", "tp": "1", "version": "2"}, dict(hidden)),
        )
    )
    assert [(p.first, p.second, p.kind) for p in found] == [
        ("a", "b", "only what no recipe field holds"),
        ("a", "d", "only what no recipe field holds"),
        ("b", "c", "pp"),
        ("b", "d", "only what no recipe field holds"),
    ]


def test_a_score_is_of_the_ratio_and_of_the_sign_beyond_noise(make_row: Make) -> None:
    found = changes.pairs(
        rows_of(
            make_row,
            ("a", 100, 200, {"tp": "1"}, {}),
            ("b", 110, 220, {"tp": "2"}, {}),
            ("c", 101, 180, {"tp": "4"}, {}),
        )
    )
    of = changes.score(found)
    assert of is not None
    assert (of.pairs, of.real, of.right) == (3, 2, 2)  # a to c is within 2 %
    assert of.median == pytest.approx(1 - 0.9 / 1.01)
    assert {of.worst.first, of.worst.second} == {"a", "c"} or {of.worst.first, of.worst.second} == {"b", "c"}
    assert changes.score([]) is None


def test_a_factor_that_both_runs_share_changes_nothing(make_row: Make) -> None:
    runs = rows_of(make_row, ("a", 100, 130, {"tp": "1"}, {}), ("b", 110, 120, {"tp": "2"}, {}))
    one, other = changes.pairs(runs), changes.pairs(runs.assign(projected_tgs=3.7 * runs["projected_tgs"]))
    assert one[0].projected == pytest.approx(other[0].projected)


def test_the_report_names_headline_kinds_and_sources(make_row: Make) -> None:
    runs = [
        (f"r{i}{k}", 100.0 + 10 * k, 100.0 + 9 * k, {"tp": str(1 + k)}, {"group": f"g{i}", "source": f"o{i}/r"})
        for i in range(12)
        for k in range(3)
    ]
    rows = rows_of(make_row, *runs)
    kept = [Row(**{name: r[name] for name in Row.__dataclass_fields__}) for r in rows.to_dict("records")]
    facts = {
        run: RunFacts(run_id=run, source=source, differs=differs)
        for run, source, differs in zip(rows["run_id"], rows["source"], rows["differs"], strict=True)
    }
    made = view_whatif.build(Evaluation(rows=tuple(kept), facts=facts), "simulate")
    assert made.lines[0].startswith("Of 36 pairs of measured runs of 12 sources the projected ratio is off by 0.9 %")
    by = {t.title: t for t in made.tables}
    assert [row[0] for row in by["By kind of change, alone"].rows] == ["tp"]
    assert len(by["By source"].rows) == 12
    assert view_whatif.build(Evaluation(rows=(), facts={}), "simulate").tables == ()
