"""Every command that prints a table, at 60 columns and at night at more: no line is longer, and no figure is cut."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from asked import ROOT
from tabled import tabled

from harness.cli import main as harness
from projector.__main__ import main as projector
from tests.harness.conftest import project_folder, six_families

__all__ = ["project_folder", "six_families"]

WIDTHS = (60, *(pytest.param(width, marks=pytest.mark.night) for width in (80, 112)))
#: What stands for longer words in the tables of commands.
STANDS = {
    "CASE": f"--config {ROOT / 'examples' / 'deepseek_v3_h100.yaml'}",
    "SMALL": "--model llama3.1_8b --gpu h100 --gpus 8 --gbs 16 --seq-length 4096",
    "ROOT": str(ROOT),
}
# A line that would cut: a figure beside an ellipsis.
CUT = re.compile(r"[\d.]…|…[\d.]")


def words(command: str) -> tuple[str, ...]:
    for name, text in STANDS.items():
        command = command.replace(name, text)
    return tuple(shlex.split(command))


PROJECTOR = {name: words(command) for name, command in tabled("documentation", "narrow_projector").items()}
# In the folder of a tiny suite that was run and recorded, with what this project measured beside it.
HARNESS = {name: words(command) for name, command in tabled("documentation", "narrow_harness").items()}

Call = Callable[..., str]


@pytest.fixture
def said(monkeypatch, capsys) -> Call:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)

    def call(main: Callable[[list[str]], int], arguments: tuple[str, ...], width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert code == 0, err
        assert "\x1b" not in out + err
        return out

    return call


def check(text: str, width: int) -> None:
    assert text.strip()
    # A path or a command that is longer than the terminal stands whole, so that it can be copied.
    assert [line for line in text.splitlines() if len(line) > width and " " in line.strip()] == []
    assert CUT.search(text) is None


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("arguments", PROJECTOR.values(), ids=PROJECTOR)
def test_projector(arguments: tuple[str, ...], width: int, said: Call) -> None:
    check(said(projector, arguments, width), width)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the results of one run and its history are kept for those that begin with them."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("arguments", HARNESS.values(), ids=HARNESS)
def test_harness(
    arguments: tuple[str, ...],
    width: int,
    said: Call,
    project_folder: Path,
    six_families: Path,
    kept: Path,
    monkeypatch,
) -> None:
    monkeypatch.chdir(project_folder)
    if {"before", "kept.sqlite"} & set(arguments):
        if not list(kept.iterdir()):
            out = ("--out", str(kept / "before"), "--record", str(kept / "kept.sqlite"))
            said(harness, ("run", "suites/tiny.yaml", "--no-plots", *out), 80)
        shutil.copytree(kept, project_folder, dirs_exist_ok=True)
    if "looks.csv" in arguments:
        said(harness, ("first-look", "six.yaml", "--out", "looks.csv", "--known", "none.csv"), 80)
    check(said(harness, arguments, width), width)


def test_what_is_left_out_is_said(said: Call) -> None:
    wide, narrow = (said(projector, PROJECTOR["memory"], width) for width in (200, 60))
    assert "Left out" not in wide
    assert "Left out at this width: parameters" in narrow
    first = next(line.split() for line in wide.splitlines() if line.strip().startswith("0 "))
    assert {cell for line in narrow.splitlines() if line.strip().startswith("0 ") for cell in line.split()} & set(first)
