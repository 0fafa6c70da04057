"""Scaling series: which runs make one, and what efficiency means."""

from __future__ import annotations

import pytest

from harness.contracts import frame
from harness.contracts.results import Evaluation, Row, RunFacts
from harness.report import view_switches
from harness.report.markdown import render
from harness.score.scaling import origin, scaling, within
from tests.harness.plain_rows import alone

PAPER = "A. Author 2022 arXiv:0000.00000 Table 1"


def row(run_id: str, gpus: int, measured: float, projected: float | None, **other: str) -> Row:
    return alone(run_id, measured, projected, gpus=gpus, **other)


def fact(run_id: str, source: str = "one", flops: float = 1.0, **configuration: str) -> RunFacts:
    return RunFacts(run_id=run_id, source=source, differs=configuration, flops_per_token=flops)


def test_efficiency_is_over_the_smallest_size() -> None:
    known = {k: fact(k, gpus=n, global_batch_size=b, tp="8") for k, n, b in (("a", "8", "64"), ("b", "64", "512"))}
    (series,) = scaling(frame.of([row("b", 64, 90.0, 110.0), row("a", 8, 100.0, 125.0)], known))
    (point,) = series.points
    assert (series.smallest, point.gpus, series.settings) == (8, 64, "tp 8")
    assert point.measured == pytest.approx(0.9)
    assert point.projected == pytest.approx(0.88)
    assert point.error == pytest.approx(0.88 / 0.9 - 1)
    assert within([series]) == (1, 1)
    assert within([series], 0.02) == (0, 1)


def test_the_median_of_several_runs_of_one_size_counts() -> None:
    known = {k: fact(k, gpus=n) for k, n in (("a", "8"), ("b", "16"), ("c", "16"), ("d", "16"))}
    rows = [row("a", 8, 100.0, 1.0), row("b", 16, 90.0, 1.0), row("c", 16, 10.0, 1.0), row("d", 16, 95.0, 1.0)]
    (point,) = scaling(frame.of(rows, known))[0].points
    assert (point.runs, point.measured) == (3, pytest.approx(0.9))


def test_other_configurations_sources_and_unprojected_runs_make_no_series() -> None:
    for other in (
        {"b": fact("b", gpus="16", tp="4")},
        {"b": fact("b", source="two", gpus="16", tp="8")},
        {"b": RunFacts(run_id="b", source="one", differs={"gpus": "16", "tp": "8"})},
    ):
        known = {"a": fact("a", gpus="8", tp="8")} | other
        assert not scaling(frame.of([row("a", 8, 1.0, 1.0), row("b", 16, 1.0, 1.0)], known))
    known = {"a": fact("a", gpus="8"), "b": fact("b", gpus="16")}
    assert not scaling(frame.of([row("a", 8, 1.0, 1.0), row("b", 16, 1.0, None)], known))


def test_rows_of_one_document_and_submissions_of_one_round_belong_together() -> None:
    assert origin("mlcommons/training_results_v5.0 A/results/x @abc") == origin("mlcommons/training_results_v5.0 B/y")
    assert origin("owner/project notes.md @abc line 1") == origin("owner/project notes.md @def line 9")
    assert origin("owner/project notes.md @abc") != origin("owner/project other.md @abc")


def test_models_that_grow_with_the_machine_are_compared_in_flops() -> None:
    known = {
        "a": fact("a", source=PAPER, flops=1.0, gpus="8", model="m1", pp="1"),
        "b": fact("b", source=PAPER, flops=10.0, gpus="64", model="m2", pp="8"),
    }
    rows = [row("a", 8, 100.0, 100.0, model="m1"), row("b", 64, 9.0, 11.0, model="m2")]
    (series,) = scaling(frame.of(rows, known))
    assert series.points[0].measured == pytest.approx(0.9)
    assert series.points[0].projected == pytest.approx(1.1)
    smaller = known | {"b": fact("b", source=PAPER, flops=0.5, gpus="64", model="m2", pp="8")}
    assert not scaling(frame.of(rows, smaller))
    elsewhere = {
        k: RunFacts(run_id=k, source="notes", differs=f.differs, flops_per_token=1.0) for k, f in known.items()
    }
    assert not scaling(frame.of(rows, elsewhere))


def test_the_report_marks_what_is_beyond_the_goal() -> None:
    known = {k: fact(k, gpus=n) for k, n in (("a", "8"), ("b", "16"), ("c", "32"))}
    rows = (row("a", 8, 100.0, 100.0), row("b", 16, 95.0, 96.0), row("c", 32, 80.0, 96.0))
    report, _ = view_switches.build(Evaluation(rows=rows, facts=known), "simulate")
    text = render(report)
    assert "1 of 2 sizes beyond the smallest" in text
    assert "+1.1 % |" in text
    assert "+20.0 % ✗" in text
