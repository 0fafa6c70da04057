"""The ready-made CI files, as a user copies them: the shell gate runs, the workflow is one that GitHub reads."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import ROOT, put

CI = ROOT / "examples" / "ci"

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


#: Stands for an interpreter with the harness: it says its words, leaves results where it judged, ends as it is told.
JUDGE = """#!/bin/sh
echo "$@"
[ "${CODE:-0}" = 2 ] || { mkdir -p "${OUT:-out/gate}"; echo "${ROWS:-rows}" >"${OUT:-out/gate}/results.json"; }
exit "${CODE:-0}"
"""


@pytest.fixture
def gate(tmp_path) -> Shell:
    """The shell gate in a folder with a ``judge`` in the place of the harness."""
    (put(tmp_path / "judge", JUDGE)).chmod(0o755)

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "PYTHON": "./judge", **environment}
        command = ["sh", str(CI / "gate.sh"), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)

    return call


def test_the_shell_gate_ends_as_the_harness_does(gate: Shell) -> None:
    passed = gate("suites/a.yaml", "--no-plots")
    flags = "run suites/a.yaml --no-plots --mode simulate --out out/gate --junit out/gate/gate.xml"
    assert passed.stdout.splitlines() == [f"-m harness {flags}", "gate: passed"]
    assert passed.returncode == 0
    failed = gate("suites/a.yaml", OUT="elsewhere", MODE="both", CODE="1")
    assert "--mode both --out elsewhere --junit elsewhere/gate.xml" in failed.stdout
    assert (failed.returncode, failed.stderr) == (1, "gate: FAILED; the rows are in elsewhere/report.html\n")
    wrong = gate("suites/absent.yaml", CODE="2")
    assert (wrong.returncode, wrong.stderr) == (2, "gate: not judged (exit code 2)\n")
    usage = gate()
    assert usage.returncode == 2
    assert usage.stderr.startswith("Projection accuracy as a gate")
    assert "exit code" in usage.stderr.lower()
    assert "set -eu" not in usage.stderr


def test_a_passing_job_leaves_the_baseline_of_the_next_and_a_failing_one_does_not(gate: Shell, tmp_path) -> None:
    kept = {"BASELINE": "kept", "KEEP": "kept"}
    first = gate("a.yaml", **kept, ROWS="first")
    assert "no results in kept, so nothing to compare with" in first.stderr
    assert "--against" not in first.stdout
    results = tmp_path / "kept" / "results.json"
    lost = gate("a.yaml", **kept, ROWS="second", CODE="1")
    assert "--against kept" in lost.stdout
    assert (lost.returncode, results.read_text()) == (1, "first\n")
    assert gate("a.yaml", "--allow-removed", **kept, ROWS="third").returncode == 0
    assert results.read_text() == "third\n"
    assert list((tmp_path / "kept").iterdir()) == [results]


@pytest.fixture
def workflow() -> dict[Any, Any]:
    made: dict[Any, Any] = yaml.safe_load((CI / "github.yml").read_text())
    return made


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


def steps_of(path: Path) -> list[dict[str, Any]]:
    made = yaml.safe_load(path.read_text())
    return [step for job in made["jobs"].values() for step in job["steps"]]


def test_the_commands_of_our_files_are_those_of_the_programs() -> None:
    """Every line that starts the harness parses: flags, commands, suites that exist."""
    import harness.cli

    lines = [
        line.strip()
        for step in steps_of(ROOT / ".github" / "workflows" / "ci.yml")
        for line in step.get("run", "").splitlines()
        if "-m harness " in line
    ]
    assert len(lines) == 3
    for line in lines:
        words = line.split("-m harness ")[1].replace('"', "").split()
        parsed, rest = harness.cli._parser().parse_known_args(words)
        assert rest == []
        for suite in getattr(parsed, "suites", ()):
            assert (ROOT / suite).is_file()


# The package as a user installs it: built, put into a clean environment, run away from the checkout.


def call(*words: object, cwd: Path) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(w) for w in words], cwd=cwd, env=kept, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def away(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("away")


@pytest.fixture(scope="module")
def wheel(away: Path) -> Path:
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", away / "wheels", ROOT, cwd=away)
    (made,) = (away / "wheels").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def bare(away: Path, wheel: Path) -> Path:
    """The programs of an environment that holds the wheel and what it needs, and nothing else."""
    call(sys.executable, "-m", "venv", away / "venv", cwd=away)
    programs = away / "venv" / ("Scripts" if os.name == "nt" else "bin")
    call(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=away)
    return programs


@pytest.mark.night
def test_the_wheel_holds_the_evidence_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    for folder, packed in (
        ("measured/runs", "harness/measured/runs"),
        ("measured/collectives", "harness/measured/collectives"),
        ("measured/kernels", "projector/kernels/measured"),
        ("suites", "harness/suites"),
    ):
        here = {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert here
        assert {name.removeprefix(f"{packed}/") for name in names if name.startswith(f"{packed}/")} == here
    assert not [name for name in names if name.startswith(("measured/", "suites/", "tests/", "docs/", "reports/"))]


@pytest.mark.night
def test_a_suite_runs_by_its_name_as_it_does_in_the_checkout(away: Path, bare: Path) -> None:
    told = call(bare / "harness", "run", "moe", "--mode", "simulate", "--out", "out", "--record", "h.sqlite", cwd=away)
    assert told.strip(), "exit code 0: the gates hold"
    assert (away / "out" / "report.html").is_file()
    here = ("--mode", "simulate", "--no-plots", "--no-gate", "--out", away / "checkout")
    call(sys.executable, "-m", "harness", "run", "suites/moe.yaml", *here, cwd=ROOT)

    def rows(folder: str) -> list[dict[str, object]]:
        found = json.loads((away / folder / "results.json").read_text())["rows"]
        return [{**row, "seconds_to_project": None} for row in found]

    assert rows("out") == rows("checkout")
    (record,) = json.loads(call(bare / "harness", "history", "h.sqlite", "--json", cwd=away))["records"]
    assert record["revision"] == ""
    code = "from projector.io.code import code_hash; print(code_hash())"
    assert record["code"] == call(sys.executable, "-c", code, cwd=ROOT).strip(), "the same code has the same hash"


@pytest.mark.night
def test_the_commands_that_read_evidence_find_it(away: Path, bare: Path) -> None:
    assert "mi355x" in call(bare / "harness", "calibrate", "mi355x", cwd=away)
    assert call(bare / "harness", "collectives", cwd=away)
    assert call(bare / "harness", "tolerance", cwd=away)
    shown = call(bare / "harness", "run", "dense", "--mode", "benchmark", "--no-plots", "--no-gate", cwd=away)
    assert "benchmark" in shown
