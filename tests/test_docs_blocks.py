"""Generated parts: cut out of reports, put between markers, found stale."""

from __future__ import annotations

from pathlib import Path

import pytest
from docsite import figures, reference

import docs as tool
from harness.report.blocks import cells, markers, replaced, sections, table
from projector.errors import InputError
from tests.docs_tools import ROOT

PAGE = "a\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nb\n"


def test_markers_and_replacement() -> None:
    assert markers(PAGE) == ("speed",)
    assert replaced(PAGE, "speed", "new", "p.md") == PAGE.replace("old", "new")
    for page in (PAGE + PAGE, PAGE.replace("end", "and"), "nothing"):
        with pytest.raises(InputError, match="speed"):
            replaced(page, "speed", "new", "p.md")


def test_sections_and_tables() -> None:
    text = "# T\n\n## One\n\n| a | b |\n| --- | ---: |\n| x \\| y | 3 % |\n\nwords\n\n## Two\n"
    assert list(sections(text)) == ["One", "Two"]
    assert cells(sections(text)["One"]) == [["a", "b"], ["x \\| y", "3 %"]]
    assert table(["n", "what"], [["3 %", "x"]]) == "| n | what |\n| ---: | --- |\n| 3 % | x |"
    assert table(["n"], [["≥ 5 GiB"], ["a100"]]).splitlines()[1] == "| ---: |"
    assert table(["n"], [["a100"], ["1f1b"]]).splitlines()[1] == "| --- |"


@pytest.mark.parametrize("name", [*figures.FIGURES, *reference.REFERENCE])
def test_every_part_can_be_made(name: str) -> None:
    made = tool.block(name)
    assert made.strip()
    rows = [line for line in made.splitlines() if line.startswith("|")]
    widths = {line.replace(r"\|", "").count("|") for line in rows}
    assert name == "commands" or len(widths) <= 1, "one width"


def test_a_missing_heading_or_report_is_named() -> None:
    with pytest.raises(InputError, match="no such heading"):
        figures.section("figures", "Nothing")
    with pytest.raises(InputError, match="no such file"):
        figures.report("nothing")
    with pytest.raises(InputError, match="in-short"):
        tool.block("in-shorts")


def test_stale_pages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(tool, "DOCS", tmp_path)
    monkeypatch.setattr(tool.names, "path_of", lambda page: page.name)
    page = tmp_path / "p.md"
    page.write_text(PAGE, encoding="utf-8")
    assert tool.main(["check"]) == 1
    assert "p.md: its generated parts are not current" in capsys.readouterr().err
    assert tool.main(["fill"]) == 0
    assert "DeepSeek-V3" in page.read_text(encoding="utf-8")
    assert tool.main(["check"]) == 0
    page.write_text(PAGE.replace("speed", "spede"), encoding="utf-8")
    assert tool.main(["check"]) == 2
    assert "speed" in capsys.readouterr().err


def test_one_part_is_shown(capsys: pytest.CaptureFixture) -> None:
    assert tool.main(["show", "thresholds"]) == 0
    assert "`kendall_tau`" in capsys.readouterr().out
    assert tool.main(["show"]) == 0
    assert set(capsys.readouterr().out.split()) == set(tool.BLOCKS)
    assert tool.main(["what"]) == 2


def test_shares_take_every_row_once() -> None:
    """The bins of a part of the step hold all held-out rows of simulate that have it."""
    import csv

    with (ROOT / "reports" / "results.csv").open(newline="", encoding="utf-8") as lines:
        rows = [r for r in csv.DictReader(lines) if r["predictor"] == "simulate" and r["fit"] == "heldout"]
    known = [r for r in rows if r["error"] and r["host_s"]]
    made = cells(figures.shares("host_s"))[1:]
    assert sum(int(row[1]) for row in made) == len(known) > 500


def test_a_docstring_explains_a_field() -> None:
    told = reference._explained("A row. ``error`` = x; ``a_b``: what ``it``\nis (see there). ``c``: three. More.")
    assert told["a_b"] == "what `it` is (see there)"
    assert told["c"] == "three"
