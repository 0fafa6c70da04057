"""The project's own suites by name, wherever the command is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.evidence import shelf
from projector.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def test_a_bare_name_is_a_suite_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shelf.suite(Path("scaling")) == ROOT / "suites" / "scaling.yaml"
    assert shelf.folder("measured/runs") == ROOT / "measured" / "runs"
    monkeypatch.chdir(ROOT)
    assert shelf.suite(Path("scaling")) == Path("suites/scaling.yaml")
    assert shelf.folder("measured/runs") == Path("measured/runs")


def test_the_users_own_suite_comes_first(project_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = project_folder / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert shelf.suite(Path("tiny")) == project_folder.resolve() / "suites" / "tiny.yaml"
    for path in (Path("tiny.yaml"), Path("suites/tiny"), Path("./x/tiny")):
        assert shelf.suite(path) == path
    (inside / "tiny").write_text("suite: other")
    assert shelf.suite(Path("tiny")) == Path("tiny")
    with pytest.raises(InputError, match="nearest: tiny"):
        shelf.suite(Path("tony"))


def test_a_suite_by_name_through_the_command(
    project_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project_folder)
    assert main(["run", "tiny", "--no-plots", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "A tiny suite"
    assert main(["run", "tony", "tinny", "--no-plots"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
