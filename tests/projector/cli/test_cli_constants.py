"""``projector constants``: names, filters, one document, lines that fit."""

from __future__ import annotations

import json

import pytest

from projector.cli import run
from projector.parameter import FIELDS


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    assert run(["constants", *words, "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["constants"]
    return found


def test_what_is_chosen_holds_or_matches_the_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    held = listed(capsys, "reach")
    assert [each["name"] for each in held] == ["kernels.neighbours.REACH"]
    assert set(held[0]) == {"name", *FIELDS}
    wild = listed(capsys, "gpus.mi355x.peak_tflops*")
    assert {each["unit"] for each in wild} == {"TFLOP/s"}
    assert {each["kind"] for each in wild} == {"datasheet"}


def test_kinds_and_scored_ones_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    fitted, scored = listed(capsys, "--kind", "fitted"), listed(capsys, "--scored")
    assert {each["kind"] for each in fitted} == {"fitted"}
    assert all(each["scored"] for each in scored)
    assert 0 < len(scored) < len(fitted)


def test_lines_fit_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["constants"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 4000
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []


def test_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["constants", "gemm.lop"]) == 2
    assert "a known name" in capsys.readouterr().err
