"""The package as a user installs it: built, put into a clean environment, run away from the checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.night  # CI builds and runs one by itself


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


def test_the_commands_that_read_evidence_find_it(away: Path, bare: Path) -> None:
    assert "mi355x" in call(bare / "harness", "calibrate", "mi355x", cwd=away)
    assert call(bare / "harness", "collectives", cwd=away)
    assert call(bare / "harness", "tolerance", cwd=away)
    shown = call(bare / "harness", "run", "dense", "--mode", "benchmark", "--no-plots", "--no-gate", cwd=away)
    assert "benchmark" in shown
