"""The report of every experiment of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main
from harness.evaluation import inputs
from projector.errors import InputError
from tests.projector.intake.primus_tree import checkout, experiment


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with one experiment that is projected, one refused by its architecture, one that is broken."""
    root = checkout(tmp_path / "primus")
    keys = {"seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 16}
    experiment(root, "dense", folder="examples/a/MI300X", **keys)
    experiment(root, "dense", folder="examples/b/MI355X", model_type="mamba", **keys)
    experiment(root, "unheard_of", folder="examples/c/MI355X", **keys)
    experiment(root, "llama3.1_8B", "torchtitan", folder="examples/d/MI355X")
    return root


def test_presets_are_no_experiments(tree: Path) -> None:
    assert [path.parent.name for path in inputs.experiments(tree)] == ["MI300X", "MI355X", "MI355X", "MI355X"]


def test_one_line_each(tree: Path) -> None:
    made = list(inputs.lines(tree, inputs.experiments(tree)))
    assert [line.backend for line in made] == ["megatron", "megatron", "megatron", "torchtitan"]
    assert [bool(line.reason) for line in made] == [False, True, True, False]
    assert [line.wrong for line in made] == [False, False, True, False]
    assert made[0].gpus == "8 × mi300x"
    assert made[0].verdict == "fits"
    assert made[1].reason == "Mamba layers"


def test_the_report_is_the_same_wherever_it_is_made(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = inputs.markdown(list(inputs.lines(tree, inputs.experiments(tree))))
    assert str(tree) not in text
    assert "| all | 4 | 2 |" in text
    monkeypatch.setenv("NNODES", "64")
    monkeypatch.setenv("PRIMUS_TP", "8")
    monkeypatch.chdir(tree.parent)
    again = Path("primus")
    assert inputs.markdown(list(inputs.lines(again, inputs.experiments(again)))) == text


def test_a_folder_that_is_missing_or_empty_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="no such folder"):
        inputs.experiments(tmp_path / "nowhere")
    assert main(["inputs", str(tmp_path / "nowhere"), str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "no such folder" in shown
    assert "no experiment" in shown


def test_the_command_writes_the_report(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "inputs.md"
    assert main(["inputs", str(tree), "--out", str(out)]) == 0
    assert "4 experiments, 2 projected, 2 refused" in capsys.readouterr().out
    assert out.read_text().startswith("# Experiments as they are shipped\n")
