"""The ready-made CI files, as a user copies them: the shell gate runs, the workflow is one that GitHub reads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "examples" / "ci"

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gate(project_folder: Path) -> Shell:
    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
        return subprocess.run(
            ["sh", str(CI / "gate.sh"), *arguments],
            cwd=project_folder,
            env={**kept, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


def tighten(folder: Path) -> None:
    path = folder / "suites" / "tiny.yaml"
    path.write_text(path.read_text().replace("mape: 10.0", "mape: 0.0"))


def test_the_shell_gate_passes_and_leaves_its_reports(gate: Shell, project_folder: Path) -> None:
    done = gate("suites/tiny.yaml", "--no-plots")
    assert done.returncode == 0, done.stderr
    assert "gate: passed" in done.stdout
    assert "::" not in done.stdout
    out = project_folder / "out" / "gate"
    assert {p.name for p in out.iterdir()} >= {"results.csv", "results.json", "report.md", "report.html", "gate.xml"}
    cases = ElementTree.parse(out / "gate.xml").getroot().iter("testcase")
    assert {c.get("name") for c in cases} >= {"coverage", "mape"}


def test_the_shell_gate_fails_with_the_code_of_the_harness(gate: Shell, project_folder: Path) -> None:
    tighten(project_folder)
    failed = gate("suites/tiny.yaml", "--no-plots", OUT="elsewhere")
    assert failed.returncode == 1
    assert "gate: FAILED; the rows are in elsewhere/report.html" in failed.stderr
    wrong = gate("suites/absent.yaml")
    assert wrong.returncode == 2
    assert "gate: not judged (exit code 2)" in wrong.stderr
    usage = gate()
    assert usage.returncode == 2
    assert usage.stderr.startswith("Projection accuracy as a gate")
    assert "exit code" in usage.stderr.lower()
    assert "set -eu" not in usage.stderr


def test_the_shell_gate_compares_with_a_baseline(gate: Shell, project_folder: Path) -> None:
    assert gate("suites/tiny.yaml", "--no-plots", OUT="baseline").returncode == 0
    same = gate("suites/tiny.yaml", "--no-plots", BASELINE="baseline")
    assert same.returncode == 0, same.stderr
    assert "PASS against earlier results: 0 rows lost, 0 broken" in same.stdout


def test_a_passing_job_leaves_the_baseline_of_the_next_and_a_failing_one_does_not(
    gate: Shell, project_folder: Path
) -> None:
    kept = {"BASELINE": "kept", "KEEP": "kept"}
    first = gate("suites/tiny.yaml", "--no-plots", **kept)
    assert first.returncode == 0
    assert "no results in kept, so nothing to compare with" in first.stderr
    results = project_folder / "kept" / "results.json"
    before = results.read_bytes()
    runs = project_folder / "measured" / "runs" / "tiny.yaml"
    runs.write_text("".join(runs.read_text().partition("- id: llama-tp4")[:1]))
    suite = project_folder / "suites" / "tiny.yaml"
    suite.write_text(suite.read_text().replace("  - {id: mixtral-*}\n", ""))
    lost = gate("suites/tiny.yaml", "--no-plots", **kept)
    assert lost.returncode == 1
    assert "FAIL llama-tp4, simulate: projected before, no longer in the suite" in lost.stdout
    assert results.read_bytes() == before
    allowed = gate("suites/tiny.yaml", "--no-plots", "--allow-removed", "--drift-tolerance", "10", **kept)
    assert allowed.returncode == 0, allowed.stdout
    assert results.read_bytes() != before
    assert list((project_folder / "kept").iterdir()) == [results]


def test_an_environment_that_is_there_is_used(gate: Shell, project_folder: Path) -> None:
    made = project_folder / "venv" / "bin"
    made.mkdir(parents=True)
    (made / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (made / "python").chmod(0o755)
    used = gate("suites/tiny.yaml", "--no-plots", VENV="venv", PYTHON="no-such-interpreter")
    assert used.returncode == 0, used.stderr
    absent = gate("suites/tiny.yaml", VENV="other", PYTHON="no-such-interpreter")
    assert absent.returncode == 2


def test_on_github_the_run_annotates_and_summarises(gate: Shell, project_folder: Path) -> None:
    summary = project_folder / "summary.md"
    runner = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    assert "::notice title=projection accuracy::" in gate("suites/tiny.yaml", "--no-plots", **runner).stdout
    tighten(project_folder)
    failed = gate("suites/tiny.yaml", "--no-plots", **runner)
    (line,) = [text for text in failed.stdout.splitlines() if text.startswith("::error ")]
    assert line.startswith("::error title=projection gate%3A tiny simulate mape::FAIL tiny simulate mape: ")
    waived = gate("suites/tiny.yaml", "--no-plots", "--no-gate", **runner)
    assert waived.returncode == 0
    assert "::warning title=" in waived.stdout
    text = summary.read_text()
    assert text.count("# A tiny suite") == 3
    assert "**PASS** tiny simulate mape" in text
    assert "**FAIL** tiny simulate mape" in text
    assert "## Throughput error" in text


@pytest.fixture
def workflow() -> dict[Any, Any]:
    made: dict[Any, Any] = yaml.safe_load((CI / "github.yml").read_text())
    return made


def test_the_workflow_is_complete(workflow: dict[Any, Any]) -> None:
    assert set(workflow[True]) == {"pull_request", "push"}  # YAML 1.1 reads the key "on" as true
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    steps = job["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    uses = [step["uses"] for step in steps if "uses" in step]
    assert all("@v" in name for name in uses)
    assert any(name.startswith("actions/upload-artifact@") for name in uses)


def test_the_workflow_runs_the_shell_gate_on_suites_that_exist(workflow: dict[Any, Any]) -> None:
    (job,) = workflow["jobs"].values()
    (step,) = [s for s in job["steps"] if "gate.sh" in s.get("run", "")]
    words = step["run"].split()
    named = [word for word in words if word.endswith((".sh", ".yaml"))]
    assert len(named) == 3
    assert all((ROOT / name).is_file() for name in named)
    (kept,) = [s for s in job["steps"] if s.get("uses", "").startswith("actions/upload-artifact")]
    assert kept["with"]["path"] == step["env"]["OUT"]
    assert "cancelled" in kept["if"], "the reports of a failed gate are the ones that are read"


def test_the_shell_gate_is_executable_and_plain() -> None:
    path = CI / "gate.sh"
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(path)], check=True, timeout=30)
