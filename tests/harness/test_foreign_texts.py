"""Texts that are not ours to trust: no cell becomes a formula, no line a command of the runner, no id breaks a line."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.__main__ import main
from harness.contracts.results import COLUMNS, Row
from harness.evidence import csvcell
from harness.report import files, runner

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


def test_ids_are_no_commands_where_a_runner_reads_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_mistakes_are_no_commands_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text('suite: s\n"a\\n::error::boom": 1\n')
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["run", str(suite)]) == 2
    err = capsys.readouterr().err
    assert "error::boom" in err
    assert not any(line.lstrip().startswith("::") for line in err.splitlines())


def test_an_id_of_several_lines_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text(f'suite: s\ncases: [{CASE}, id: "a\\nb"}}]\n')
    assert main(["run", str(suite)]) == 2
    assert "cases[0].id: found 'a\\nb', expected printable text in one line" in capsys.readouterr().err
