"""What the page is made of: the data inside it, and its text where no browser is asked."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from many import NASTY, RUNS
from tabled import tabled

from harness.contracts import frame
from harness.contracts.results import Evaluation, Row, RunFacts
from harness.report import files, html, payload, publish, view
from harness.report.pictures import Picture, drawn
from harness.report.plot import blank, plain
from harness.report.table import Column, Report, Table
from harness.report.verdict import verdict
from harness.score import ranking


def saved(evaluation: Evaluation) -> files.Saved:
    return files.Saved(evaluation=evaluation, gates={}, provenance={})


def test_the_payload_is_small_and_cannot_end_its_element(evaluation: Evaluation) -> None:
    text = payload.dumps(payload.build(evaluation))
    assert "<" not in text
    assert json.loads(text)["runs"]["model"]["words"][0] == NASTY
    assert len(text) < 500 * RUNS


def test_the_payload_holds_what_the_rows_hold(evaluation: Evaluation) -> None:
    data = json.loads(payload.dumps(payload.build(evaluation)))
    simulate = data["predictors"]["simulate"]
    held = [row for row in evaluation.rows if (row.predictor, row.fit) == ("simulate", "heldout")]
    assert data["runs"]["id"] == [r.run_id for r in held]
    for at, row in enumerate(held):
        assert simulate["heldout"][at] == (
            None if row.projected_tgs is None else pytest.approx(row.projected_tgs, rel=1e-4)
        )
        assert simulate["status"]["words"][simulate["status"]["at"][at]] == row.status
        stated = [data["recipes"]["words"][n] for n in data["recipes"]["at"][at]]
        assert dict(word.split("=", 1) for word in stated) == dict(evaluation.facts[row.run_id].differs)
    assert simulate["shares"][0] == [700, 0, 0, 300, 0, 0, 0, 0, 0, 0]
    assert simulate["shares"][9] is None
    taus = {g.group: g.tau for g in ranking.group_rankings(frame.of(held, evaluation.facts))}
    assert all(g["seen"] for g in data["groups"]["simulate"])
    assert {g["name"]: g["tau"] for g in data["groups"]["simulate"]} == pytest.approx(taus, rel=1e-4)


@pytest.mark.parametrize(("command", "inputs", "again"), tabled("documentation", "commands_again"))
def test_the_command_that_projects_a_run_again(command: str, inputs: str, again: str) -> None:
    provenance = {"command": ["harness", *command.split()], "inputs": dict.fromkeys(inputs.split(), "")}
    assert payload.again(provenance) == f"python -m harness {again}"


def test_the_page_names_no_other_place(evaluation: Evaluation) -> None:
    page = publish.page(view.build(evaluation), saved(evaluation))
    assert "://" not in page
    assert (
        re.search(r"""\b(src|href)\s*=\s*["'](?!#|data:)""", page.split('<script type="application/json"')[0]) is None
    )
    assert "default-src 'none'" in page


def test_no_rows_make_a_page_without_charts() -> None:
    empty = Evaluation(rows=(), facts={})
    page = publish.page(view.build(empty), saved(empty))
    assert "</html>" in page
    assert 'id="data"' not in page


def test_figures_of_written_tables_have_a_true_minus() -> None:
    columns = (Column("run-id", numeric=False), Column("n"))
    page = html.render(Report(title="t", tables=(Table(title="T", columns=columns, rows=(("-x", "-1.5 %"),)),)))
    assert '<td>-x</td><td class="n">−1.5 %</td>' in page


def test_a_verdict_without_a_comparison_says_so(make_row: Callable[..., Row]) -> None:
    row = make_row("a", None, None)
    said = verdict(Evaluation(rows=(row,), facts={"a": RunFacts(run_id="a")}))
    assert said.headline.startswith("No run of these 1 has both")
    assert said.lines == ()
    assert [figure.value for figure in said.figures] == ["–"] * 5


# Pictures: in several processes as in one, and drawn once for the same rows.

pd = pytest.importorskip("pandas")


def _line(heights: list[float]):
    figure = blank(2.0, 1.5)
    axes = figure.add_subplot()
    axes.plot(heights)
    plain(axes)
    return figure


def _pictures() -> list[Picture]:
    both = Picture("one", "a line", lambda: _line([1.0, 2.0]), ("png", "svg"))
    return [both, Picture("none", "nothing", lambda: None), Picture("two", "another", lambda: _line([2.0, 1.0]))]


def test_in_several_processes_as_in_one() -> None:
    rows = pd.DataFrame({"error": [0.1], "seconds_to_project": [1.0]})
    one, two = drawn(_pictures(), rows), drawn(_pictures(), rows, jobs=2)
    assert one == two
    assert [sorted(found) for found in one] == [["png", "svg"], [], ["png"]]
    assert one[0]["png"] != one[2]["png"]
    assert drawn([], rows) == []


def test_the_same_rows_are_drawn_once(cache: Path) -> None:
    rows = pd.DataFrame({"error": [0.1], "seconds_to_project": [1.0]})
    first = drawn(_pictures(), rows)
    known = [Picture(p.stem, p.caption, lambda: pytest.fail("drawn again"), p.kinds) for p in _pictures()]
    assert drawn(known, rows.assign(seconds_to_project=2.0)) == first
    other = [Picture(p.stem, p.caption, lambda: _line([3.0, 1.0, 2.0]), p.kinds) for p in _pictures()]
    assert drawn(other, rows.assign(error=0.1 + 1e-16))[0] != first[0], "the next number"
    assert [drawn([p], rows)[0] == found for p, found in zip(known, first, strict=True)] == [True] * 3
