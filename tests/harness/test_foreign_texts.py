"""Texts that are not ours to trust: no cell becomes a formula, no line a command of the runner, no id breaks a line."""

import csv
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import command_line
import pytest
from asked import put
from hypothesis import given
from hypothesis import strategies as st

from harness.__main__ import main
from harness.contracts.results import COLUMNS, Row
from harness.evidence import csvcell
from harness.report import files, github, runner
from harness.report.github import Annotation
from harness.report.table import Column, Report, Table
from harness.score.drift import Drift, Moved
from harness.score.gate import Check

CASE = (
    "{model: llama3_8b, gpu: h100_sxm, gpus: 8,"
    " recipe: {micro_batch_size: 1, global_batch_size: 8, seq_length: 2048, tp: 8}"
)


@given(st.text() | st.sampled_from(["=1+1", "'=1", "''-2", "@SUM(A1)", "+x", "-", "\t=1", "'", "''", "plain"]))
def test_shielding_is_undone_and_leaves_no_formula(text: str) -> None:
    written = str(csvcell.shielded(text))
    assert csvcell.plain(written) == text
    assert not written.startswith(("=", "+", "-", "@", "\t", "\r"))


def test_numbers_stay_numbers_in_results() -> None:
    row = Row(
        run_id="=HYPERLINK(1)", suite="-s", group="@g", gpu="h100_sxm", gpus=8, model="m", family="f", precision="bf16",
        framework="nemo", predictor="simulate", fit="heldout", status="ok", error=-0.05,
    )  # fmt: skip
    (made,) = csv.DictReader(io.StringIO(files.csv_text([row])))
    assert (made["run_id"], made["suite"], made["group"], made["error"]) == ("'=HYPERLINK(1)", "'-s", "'@g", "-0.05")
    assert {name: csvcell.plain(made[name]) for name in ("run_id", "suite", "group")} == {
        "run_id": "=HYPERLINK(1)",
        "suite": "-s",
        "group": "@g",
    }
    assert tuple(made) == COLUMNS


PIECES = st.lists(
    st.sampled_from(["::", ":", "error", "\n", "\r", " ", "\t", "##[", "x", "::error::boom\n"]), max_size=30
)


@given(PIECES)
def test_no_line_is_a_command_however_it_is_written(pieces: list[str]) -> None:
    out = io.StringIO(newline="")
    stream = runner.Guarded(out)
    for piece in pieces:
        stream.write(piece)
    stream.write("\n")
    made = out.getvalue()
    assert not any(line.lstrip().startswith("::") for line in re.split(r"[\r\n]", made))
    assert "##[" not in made
    assert re.sub(r"\s", "", made) == re.sub(r"\s", "", "".join(pieces))


def test_ids_are_no_commands_where_a_runner_reads_along(tmp_path, monkeypatch, capsys) -> None:
    suite, table = tmp_path / "s.yaml", tmp_path / "t.csv"
    suite.write_text(f'suite: s\ncases: [{CASE}, id: "::error::boom"}}, {CASE}, id: "##[add-mask]x"}}]\n')
    table.write_text("id,gpu\n::error::boom,h100\n##[add-mask]x,h100\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert main(["run", str(suite), "--out", str(tmp_path / "out"), "--no-plots"]) == 0
    assert main(["ingest", str(table)]) == 1  # none of its rows is usable
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert any("error::boom" in line for line in lines)
    assert [line for line in lines if line.lstrip().startswith("::") and not line.startswith("::notice ")] == []
    assert not any("##[" in line for line in lines)
    assert sys.stdout.write("") == 0


def test_mistakes_are_no_commands_either(tmp_path, monkeypatch) -> None:
    suite = put(tmp_path / "s.yaml", 'suite: s\n"a\\n::error::boom": 1\n')
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    err = command_line.refused("harness", "run", suite)
    assert "error::boom" in err
    assert not any(line.lstrip().startswith("::") for line in err.splitlines())


def test_an_id_of_several_lines_is_a_mistake(tmp_path, capsys) -> None:
    assert main(["run", str(put(tmp_path / "s.yaml", f'suite: s\ncases: [{CASE}, id: "a\\nb"}}]\n'))]) == 2
    assert "cases[0].id: found 'a\\nb', expected printable text in one line" in capsys.readouterr().err


# Annotations and step summary: escaped as the runner reads them, bounded, and written where the runner says.


def check(name: str = "mape", passed: bool = False) -> Check:
    return Check(suite="dense", predictor="simulate", name=name, found=0.2, limit=0.1, passed=passed, detail="9 rows")


def drift(lost: int = 0, broken: int = 0) -> Drift:
    moved = tuple(Moved(run_id=f"m{i}", predictor="simulate", before=0.01, after=-0.2) for i in range(broken))
    return Drift(
        lost=tuple(("simulate", f"l{i}") for i in range(lost)), gained=(), moved=moved, broken=moved, before=None,
        after=None,
    )  # fmt: skip


@given(st.text(), st.text())
def test_a_runner_reads_back_what_was_written(title: str, message: str) -> None:
    line = str(Annotation("warning", title, message))
    assert "\n" not in line
    assert "\r" not in line
    head, _, data = line.removeprefix("::warning title=").partition("::")
    for code, mark in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        head, data = head.replace(code, mark), data if code in ("%2C", "%3A") else data.replace(code, mark)
    assert (head, data) == (title, message)


def test_failures_are_errors_and_passes_are_silent() -> None:
    (made,) = github.annotate([check(), check("coverage", passed=True)], lines=["fine"])
    assert (made.level, made.title) == ("error", "projection gate: dense simulate mape")
    assert made.message.startswith("FAIL dense simulate mape: 0.2, required <= 0.1")
    assert github.annotate([check(passed=True)]) == []
    assert [a.level for a in github.annotate([check()], level="warning")] == ["warning"]  # a gate that is waived
    (notice,) = github.annotate([check(passed=True)], drift(), ["15 % held out", "two"])
    assert (notice.level, notice.message) == ("notice", "15 % held out\ntwo")


def test_lost_and_broken_rows_are_named() -> None:
    lost, broken = github.annotate([], drift(lost=1, broken=1))
    assert lost.message == "l0, simulate: projected before, not now ()"
    assert broken.message.startswith("m0, simulate: TGS error +1.0 % before, -20.0 % now: 19 points worse")


def test_no_more_annotations_than_are_shown() -> None:
    made = github.annotate([check()], drift(lost=20))
    assert len(made) == github.MOST_ANNOTATIONS
    assert made[-1].message.startswith("and 12 more")
    assert len(github.annotate([], drift(lost=github.MOST_ANNOTATIONS))) == github.MOST_ANNOTATIONS


@pytest.fixture
def report() -> Callable[[int, str], Report]:
    def make(rows: int, cell: str) -> Report:
        def table(title: str, detail: bool) -> Table:
            return Table(title=title, columns=(Column("x"),), rows=((cell,),) * rows, detail=detail)

        return Report(
            title="Title", lines=("a line",), gate=("FAIL it",),
            tables=(table("Headline", False), table("Detail", True)), provenance=(("input", "0"),),
        )  # fmt: skip

    return make


def test_the_summary_holds_verdicts_and_headline_tables(report: Callable[[int, str], Report]) -> None:
    text = github.summary(report(50, "1|2"))
    assert "**FAIL** it" in text
    assert text.count(r"| 1\|2 |") == github.MOST_ROWS
    assert "… and 10 more rows" in text
    assert "Detail" not in text
    assert "SHA-256" not in text


def test_a_summary_that_is_too_long_keeps_the_verdicts(report: Callable[[int, str], Report]) -> None:
    text = github.summary(report(40, "x" * 50_000))
    assert len(text.encode()) < github.MOST_BYTES
    assert "**FAIL** it" in text


def test_the_summary_is_appended(tmp_path, report: Callable[[int, str], Report]) -> None:
    path = put(tmp_path / "summary.md", "before\n")
    github.write_summary(path, report(1, "1"))
    github.write_summary(path, report(1, "2"))
    text = path.read_text()
    assert text.startswith("before\n# Title")
    assert text.count("# Title") == 2


def test_only_a_runner_is_told() -> None:
    assert github.wanted({"GITHUB_ACTIONS": "true"})
    assert not github.wanted({"GITHUB_ACTIONS": "false"})
    assert not github.wanted({})
    assert github.summary_file({}) is None
    assert github.summary_file({"GITHUB_STEP_SUMMARY": ""}) is None
    assert github.summary_file({"GITHUB_STEP_SUMMARY": "a/b"}) == Path("a/b")
