"""The command line as a user runs it: exit codes, files written, nothing written, no traceback."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command_line
import pytest
from asked import ROOT, refusal, says
from tabled import tabled

from harness.contracts.results import FITS
from harness.evaluation import inputs
from tests.projector.intake.primus_tree import checkout, experiment


def harness(*arguments: str | Path, cwd: Path) -> command_line.Done:
    return command_line.run("harness", *arguments, cwd=cwd)


def told(folder: Path, *arguments: str | Path) -> str:
    done = harness(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(folder: Path, out: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / out / "results.json").read_text())["rows"]
    return found


def refused(folder: Path, arguments: Sequence[str], *pieces: str) -> list[str]:
    """The lines of a refusal, which leaves nothing behind."""
    done = harness(*arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    says(done.stderr, *pieces)
    assert not (folder / "out").exists()
    return done.stderr.splitlines()


def test_the_main_job(project_folder: Path) -> None:
    out = told(project_folder, "run", "suites/tiny.yaml", "--mode", "both", "--junit", "out/j.xml", "--verbose")
    says(out, "simulate: by model", "simulate and benchmark side by side")
    says(out, "PASS tiny simulate coverage: 1, required >= 1 (3 of 3 rows)")
    assert "\x1b" not in out
    folder = project_folder / "out" / "tiny"
    assert {p.name for p in folder.iterdir()} == {"results.csv", "results.json", "report.md", "report.html", "post.md"}
    assert [(r["run_id"], r["predictor"]) for r in results(project_folder, "out/tiny")[:: len(FITS)]] == [
        (run, predictor)
        for run in ("llama-tp1", "llama-tp4", "mixtral-ep8", "what-if")
        for predictor in ("simulate", "benchmark", "constant-mfu")
    ]
    assert "suites/tiny.yaml" in json.loads((folder / "results.json").read_text())["provenance"]["inputs"]
    assert (project_folder / "out" / "j.xml").exists()


def test_single_runs_by_their_ids(project_folder: Path) -> None:
    out = told(project_folder, "run", "suites/tiny.yaml", "--id", "what-if", "llama-tp4", "--json", "--no-plots")
    rows = results(project_folder, "out/what-if-llama-tp4")
    assert {r["run_id"] for r in rows} == {"what-if", "llama-tp4"}
    assert json.loads(out)["gate"] == []
    told(project_folder, "run", "--measured", "measured/runs", "--id", "llama-tp4", "--out", "one", "--no-plots")
    alike = [("run_id", "llama-tp4"), ("predictor", "simulate"), ("fit", "uncalibrated")]
    both = (rows, results(project_folder, "one"))
    first, second = (next(r for r in found if all(r[k] == v for k, v in alike)) for found in both)
    assert first["projected_tgs"] == second["projected_tgs"] > 0


def test_results_are_reported_again_and_compared(project_folder: Path) -> None:
    told(project_folder, "run", "suites/tiny.yaml", "--out", "first", "--no-plots")
    assert "simulate: by GPU" in told(project_folder, "report", "first", "--verbose")
    assert (project_folder / "first" / "simulate-measured.png").exists()
    same = told(project_folder, "run", "suites/tiny.yaml", "--against", "first", "--no-plots")
    assert "Against earlier results: 0 lost, 0 broken" in same


LOOSE = """\
run,gpu,gpus,framework,model,precision,seq_length,micro_batch_size,global_batch_size,tp,pp,cp,tokens_per_s_per_gpu
x1,H100-SXM-80GB,8,Megatron-LM,Llama-3 8B,bf16,8192,1,64,2,1,1,9000
x2,H100-SXM-80GB,8,Megatron-LM,Llama-3 8B,bf16,8192,1,,2,1,1,9000
"""


def test_strict_and_loose_files_without_a_suite(project_folder: Path) -> None:
    (project_folder / "loose.csv").write_text(LOOSE)
    told(project_folder, "run", "--runs", "measured/runs/tiny.yaml", "loose.csv", "--out", "o", "--no-plots")
    mine = [r for r in results(project_folder, "o") if (r["predictor"], r["fit"]) == ("simulate", "heldout")]
    assert len(mine) == 5
    assert [r["measured_tgs"] for r in mine[-2:]] == [9000.0, 9000.0]
    assert mine[3]["error"] is not None
    assert "global_batch_size" in mine[4]["reason"] + mine[4]["assumed"]


def test_every_mistake_of_every_input_at_once(project_folder: Path) -> None:
    path = project_folder / "suites" / "tiny.yaml"
    path.write_text(path.read_text().replace("model: [llama3_8b]", "modell: [x]").replace("mi355x", "mi356x"))
    (project_folder / "broken.yaml").write_text("a: [")
    flags = ("--runs", "broken.yaml", "--with", "calculon", "--against", "nowhere")
    words = ("run", "suites/tiny.yaml", "suites/none.yaml", *flags)
    pieces = ("suites/tiny.yaml: select[0].modell", "suites/tiny.yaml: cases[0].gpu: found 'mi356x'", "mi355x")
    more = (
        "suites/none.yaml does not exist",
        "broken.yaml: line",
        "--with: found 'calculon'",
        "nowhere does not exist",
    )
    assert len(refused(project_folder, words, *pieces, *more)) == 6


@pytest.mark.parametrize(("arguments", "piece"), tabled("refusals", "harness"))
def test_wrong_command_lines(project_folder: Path, arguments: tuple[str, ...], piece: str) -> None:
    refused(project_folder, arguments, piece)


def test_one_id_for_two_runs(project_folder: Path) -> None:
    other = project_folder / "other.yaml"
    other.write_text((project_folder / "measured" / "runs" / "tiny.yaml").read_text().replace("tp: 4", "tp: 8"))
    words = ["run", "suites/tiny.yaml", "--runs", "other.yaml"]
    assert len(refused(project_folder, words, "llama-tp4: found 'a duplicate id'")) == 1
    twice = ["run", "--runs", "other.yaml", "measured/runs/tiny.yaml"]
    refused(project_folder, twice, "llama-tp1: found 'a duplicate id'")


def test_a_run_loads_nothing_heavy(project_folder: Path) -> None:
    code = (
        "import sys; from harness.cli import main\n"
        "from harness.cli import run, report\n"
        "assert 'pandas' not in sys.modules, 'the rows are a frame, help is not'\n"
        "assert main(['run', 'suites/tiny.yaml']) == 0\n"
        "print([m for m in ('torch', 'scipy', 'matplotlib') if m in sys.modules], file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project_folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "[]"


# Both programs say what is wrong with a command line in the same words.

SHAPE = re.compile(r"[^:]+(: [^:]+)?(: found .*, expected .*| does not exist)")


@pytest.mark.parametrize(("projector", "harness"), tabled("refusals", "one_shape"))
def test_one_shape(projector: tuple[str, ...], harness: tuple[str, ...]) -> None:
    for program, words in (("projector", projector), ("harness", harness)):
        for line in command_line.refused(program, *words).splitlines():
            assert SHAPE.fullmatch(line), line


# The kernel flags of ``harness run``: what they change, where they are recorded, what they refuse.


def rows(folder: Path, *flags: str) -> dict[str, dict[str, Any]]:
    told(folder, "run", "suites/tiny.yaml", "--no-gate", "--no-plots", *flags)
    found = results(folder, "out/tiny")
    return {row["run_id"]: row for row in found if (row["predictor"], row["fit"]) == ("simulate", "uncalibrated")}


def test_a_power_cap_slows_every_row_and_is_recorded_in_it(project_folder: Path) -> None:
    free, capped = rows(project_folder), rows(project_folder, "--power-cap-watts", "200")
    assert free.keys() == capped.keys()
    for name, row in capped.items():
        assert row["projected_step_seconds"] > free[name]["projected_step_seconds"]
        assert "power_cap_watts=200" in row["assumed"]
        assert "power_cap_watts" not in free[name]["assumed"]


# The report of every experiment of a folder.


@pytest.fixture
def tree(tmp_path) -> Path:
    """A checkout with one experiment that is projected, one refused by its architecture, one that is broken."""
    root = checkout(tmp_path / "primus")
    keys = {"seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 16}
    experiment(root, "dense", folder="examples/a/MI300X", **keys)
    experiment(root, "dense", folder="examples/b/MI355X", model_type="mamba", **keys)
    experiment(root, "unheard_of", folder="examples/c/MI355X", **keys)
    experiment(root, "llama3.1_8B", "torchtitan", folder="examples/d/MI355X")
    return root


def test_one_line_each(tree: Path) -> None:
    made = list(inputs.lines(tree, inputs.experiments(tree)))
    assert [line.backend for line in made] == ["megatron", "megatron", "megatron", "torchtitan"]
    assert [bool(line.reason) for line in made] == [False, True, True, False]
    assert [line.wrong for line in made] == [False, False, True, False]
    assert made[0].gpus == "8 × mi300x"
    assert made[0].verdict == "fits"
    assert made[1].reason == "Mamba layers"


def test_the_report_is_the_same_wherever_it_is_made(tree: Path, monkeypatch) -> None:
    text = inputs.markdown(list(inputs.lines(tree, inputs.experiments(tree))))
    assert str(tree) not in text
    assert "| all | 4 | 2 |" in text
    monkeypatch.setenv("NNODES", "64")
    monkeypatch.setenv("PRIMUS_TP", "8")
    monkeypatch.chdir(tree.parent)
    again = Path("primus")
    assert inputs.markdown(list(inputs.lines(again, inputs.experiments(again)))) == text


def test_a_folder_that_is_missing_or_empty_is_said(tmp_path) -> None:
    refusal(inputs.experiments, tmp_path / "nowhere", match="no such folder")
    shown = command_line.refused("harness", "inputs", tmp_path / "nowhere", tmp_path)
    says(shown, "no such folder", "no experiment")


def test_the_command_writes_the_report(tree: Path, tmp_path) -> None:
    out = tmp_path / "inputs.md"
    assert "4 experiments, 2 projected, 2 refused" in command_line.told("harness", "inputs", tree, "--out", out)
    assert out.read_text().startswith("# Experiments as they are shipped\n")
