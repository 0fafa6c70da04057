"""The report on sources: each is held out whole, the first look stays beside today's figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.contracts.results import Evaluation, Row, RunFacts
from harness.evaluation.first_look import Look
from harness.report import view_sources

Make = Callable[..., Row]


@pytest.fixture
def evaluation(make_row: Make) -> Evaluation:
    """Five sources of six runs, all projected 10 % too fast but for one at 60 %."""
    rows, facts = [], {}
    for s in range(5):
        for i in range(6):
            run = f"r{s}-{i}"
            off = 1.6 if s == 4 else 1.1
            rows.append(make_row(run, 100.0, 100.0 * off, fit="uncalibrated", family=f"f{i}", framework=f"fw{s}"))
            facts[run] = RunFacts(run_id=run, source=f"Owner/Repo{s} file{i}.md @1")
    return Evaluation(rows=tuple(rows), facts=facts)


def held_out(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, rows=tuple(replace(row, fit="heldout") for row in evaluation.rows))


def look(run: str, source: str, error: float, doubt: str = "") -> Look:
    return Look(
        run_id=run,
        publisher=source,
        gpu="g",
        framework="w",
        family="f",
        doubt=doubt,
        measured=100.0,
        projected=100.0 * (1 + error),
        error=error,
        expected=100.0,
        low=90.0,
        high=110.0,
    )


def test_every_source_is_held_out_whole(evaluation: Evaluation) -> None:
    made = view_sources.build(held_out(evaluation), [], "simulate")
    rows = {row[0]: row for row in made.tables[-1].rows}
    assert list(rows) == [f"owner/repo{s}" for s in range(5)]
    assert {row[1] for row in rows.values()} == {"6"}
    odd = float(rows["owner/repo4"][3].removesuffix(" %"))
    assert odd > 40.0
    assert all(float(rows[f"owner/repo{s}"][3].removesuffix(" %")) < odd for s in range(4))
    assert made.lines[0].startswith("By the code of today, which was made with most of them in sight: half of")
    assert "over 5 sources" in made.lines[0]


def test_the_first_look_stands_beside_today(evaluation: Evaluation) -> None:
    looks = [
        look("r0-0", "owner/repo0", 0.5),
        look("r0-1", "owner/repo0", -0.3),
        look("r1-0", "owner/repo1", 9.0, "doubted"),
    ]
    made = view_sources.build(held_out(evaluation), looks, "simulate")
    first = made.tables[0]
    assert [row[:6] for row in first.rows] == [
        (name, "2", "40.0 %", "40.0 %", "+10.0 %", "100 %") for name in ("owner/repo0", "all")
    ]
    assert [row[6] for row in first.rows] == ["2", "2"]
    assert "2 runs of 1 sources were off by 40.0 %" in made.lines[1]


def test_nothing_is_nothing() -> None:
    made = view_sources.build(Evaluation(rows=(), facts={}), [], "simulate")
    assert made.tables == ()
    assert made.lines == ("nothing to compare",)
