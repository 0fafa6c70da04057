"""The ready-made CI files, as a user copies them: the shell gate runs, the workflow is one that GitHub reads."""

from __future__ import annotations

import os
import re
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


def test_the_shell_gate_is_executable_and_plain() -> None:
    path = CI / "gate.sh"
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(path)], check=True, timeout=30)


def steps_of(path: Path) -> list[dict[str, Any]]:
    made = yaml.safe_load(path.read_text())
    jobs = made["jobs"].values() if "jobs" in made else [made["runs"]]
    return [step for job in jobs for step in job["steps"]]


def test_the_commands_of_our_files_are_those_of_the_programs() -> None:
    """Every line that starts the harness parses: flags, commands, suites that exist."""
    import harness.cli

    lines = [
        line.strip()
        for path in (ROOT / ".github" / "workflows" / "ci.yml", CI / "action" / "action.yml")
        for step in steps_of(path)
        for line in step.get("run", "").splitlines()
        if "-m harness " in line
    ]
    assert len(lines) == 4
    for line in lines:
        words = line.split("-m harness ")[1].replace('"', "").split()
        parsed, rest = harness.cli._parser().parse_known_args(words)
        assert rest == []
        for suite in getattr(parsed, "suites", ()):
            assert (ROOT / suite).is_file()


@pytest.fixture
def action() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((CI / "action" / "action.yml").read_text())
    return made


def test_the_action_is_one_that_github_reads(action: dict[str, Any]) -> None:
    assert set(action) == {"name", "description", "inputs", "outputs", "runs"}
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert ("shell" in step) == ("run" in step), "a composite step that runs something names its shell"
        assert "${{" not in step.get("run", ""), "what a user states reaches the shell as environment, never as code"
    text = (CI / "action" / "action.yml").read_text()
    named = set(re.findall(r"inputs\.(\w+)", text))
    assert named == set(action["inputs"])
    assert all(isinstance(value["default"], str) and value["description"] for value in action["inputs"].values())


def test_the_steps_of_the_action_work_as_a_runner_starts_them(
    action: dict[str, Any], project_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is installed is stood in for; the rest runs: a suite, its history, and what broke."""
    temporary = tmp_path_factory.mktemp("runner")
    programs = temporary / "harness" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    stated = {name: value["default"] for name, value in action["inputs"].items()} | {
        "suites": "tiny",
        "flags": "--no-plots",
    }

    def filled(text: str) -> str:
        with_inputs = re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: stated[found[1]], text)
        return with_inputs.replace("${{ github.action_path }}", str(CI / "action"))

    kept = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    told = []
    for step in action["runs"]["steps"]:
        if "run" not in step or step["name"] == "Install":
            continue
        given = {name: filled(value) for name, value in step["env"].items()}
        done = subprocess.run(
            ["sh", "-e", "-c", step["run"]],
            cwd=project_folder,
            env={**kept, "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(temporary), **given},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert "gate: passed" in told[0]
    assert "No row is broken." in told[1]
    assert (project_folder / "history.sqlite").is_file()
    assert (project_folder / "out" / "accuracy" / "gate.xml").is_file()


def test_the_hooks_are_ours_and_their_commands_exist() -> None:
    made = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in made["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} >= {"ruff-check", "ruff-format", "arrows", "types", "readme", "documentation"}
    assert all(repo["repo"] == "local" or repo["rev"].startswith("v") for repo in made["repos"])
    for hook in hooks:
        for name in ("files", "exclude"):
            re.compile(hook.get(name, ""))
        for word in hook.get("entry", "").split():
            if word.endswith(".py"):
                assert (ROOT / word).is_file()


def test_the_changelog_is_in_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", text, flags=re.MULTILINE)
    assert versions[0] == ("Unreleased", "")
    assert all(date for _, date in versions[1:])
    assert set(re.findall(r"^### (.*)$", text, flags=re.MULTILINE)) <= {
        "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"
    }  # fmt: skip
    stated = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert stated is not None
    assert stated[1] in [name for name, _ in versions]
