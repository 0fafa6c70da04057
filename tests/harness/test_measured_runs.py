"""The whole loop over every measured run of the repository: nothing breaks, nothing is lost, everything adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.contracts.results import FITS, STATUSES
from harness.evaluation import evaluate
from harness.evaluation.evaluate import Selected
from harness.evidence import dataset, suite


def test_every_measured_run_keeps_its_place_and_adds_up(root: Path, every: int) -> None:
    runs = dataset.read(root / "measured" / "runs")[::every]
    made = evaluate.evaluate([Selected("", run) for run in runs], evaluate.tools_for("simulate"), jobs=1)
    sound = [run for run in runs if not run.doubt]
    assert len(made.rows) == len(sound) * 2 * len(FITS)
    assert len({row.run_id for row in made.doubted}) == len(runs) - len(sound)
    for row in (*made.rows, *made.doubted):
        assert row.status in STATUSES
        assert "internal error" not in row.reason, (row.run_id, row.reason)
        assert (row.projected_tgs is None) == (row.status not in ("ok", "out-of-memory")), row.run_id
        assert row.projected_tgs is not None or row.reason, row.run_id
        if row.breakdown:
            assert sum(row.breakdown.values()) == pytest.approx(row.projected_step_seconds), row.run_id
            assert min(row.breakdown.values()) >= -1e-9 * row.projected_step_seconds, row.run_id


@pytest.mark.parametrize("name", ["dense", "moe", "scaling", "schedules"])
def test_the_suites_of_the_repository_are_valid_and_gated(root: Path, name: str) -> None:
    made = suite.load(root / "suites" / f"{name}.yaml")
    assert made.name == name
    assert made.runs
    assert "coverage" in made.gate["simulate"]
