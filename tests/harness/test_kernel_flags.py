"""The kernel flags of ``harness run``: what they change, where they are recorded, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_line
import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *flags: str) -> command_line.Done:
    return command_line.run("harness", "run", "suites/tiny.yaml", "--no-gate", *flags, cwd=folder)


def rows(folder: Path, *flags: str) -> dict[str, dict[str, Any]]:
    done = run(folder, *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "out" / "tiny" / "results.json").read_text())["rows"]
    return {row["run_id"]: row for row in found if (row["predictor"], row["fit"]) == ("simulate", "uncalibrated")}


def test_a_power_cap_slows_every_row_and_is_recorded_in_it(project_folder: Path) -> None:
    free, capped = rows(project_folder), rows(project_folder, "--power-cap-watts", "200")
    assert free.keys() == capped.keys()
    for name, row in capped.items():
        assert row["projected_step_seconds"] > free[name]["projected_step_seconds"]
        assert "power_cap_watts=200" in row["assumed"]
        assert "power_cap_watts" not in free[name]["assumed"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gemm-backend", "orgami"), "--gemm-backend: found 'orgami', expected a known name; nearest: origami"),
        (("--gpu-clock-mhz", "1.2"), "--gpu-clock-mhz: found '1.2', expected a number of MHz"),
        (("--power-cap-watts", "0"), "--power-cap-watts: found '0', expected a number of W"),
    ],
)
def test_mistakes_exit_with_two(project_folder: Path, flags: tuple[str, ...], words: str) -> None:
    done = run(project_folder, *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
