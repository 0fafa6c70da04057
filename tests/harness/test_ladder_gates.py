"""Published ladders, one switch changed in each step: what every step gains is projected within three points of what it
measured, and where it is not, the gap may not grow. A ratio of neighbours cancels what a whole ladder has wrong."""

from pathlib import Path

import pytest

from harness.contracts import frame
from harness.evaluation.evaluate import Selected, row_of
from harness.evaluation.facts import facts_of
from harness.evidence.runs_of import runs_of_all
from harness.predictors.ours import Ours
from harness.score.switches import Step, ladders

RUNS = Path(__file__).resolve().parents[2] / "measured" / "runs"
NEAR = 0.03
#: Steps whose gain is off by more, with the gap that they may have.
OFF = {
    "dsv2lite-mi355x-step-deepep": 0.046,
    "dsv2lite-mi355x-step-syncfree1": 0.034,
    "dsv2-236b-mi355x-4n-2-deepep": 0.06,
    "dsv2-236b-mi355x-4n-4-vpp3": 0.053,
    "dsv2-236b-mi355x-4n-5-syncfree1": 0.031,
}


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    texts = [path for path in sorted(RUNS.glob("*.yaml")) if "-steps" in path.read_text(encoding="utf-8")]
    runs = [run for run in runs_of_all(texts) if run.group.endswith("-steps")]
    predict = Ours("simulate").predict
    rows = [row_of(Selected("", run), "simulate", "uncalibrated", predict(run), None) for run in runs]
    return ladders(frame.of(rows, {run.id: facts_of(run) for run in runs}))


def test_every_step_of_a_ladder_gains_what_it_measured(steps: list[Step]) -> None:
    gaps = {step.run: abs(step.projected - step.measured) for step in steps}
    assert {run: gap for run, gap in gaps.items() if gap > OFF.get(run, NEAR)} == {}
    assert OFF.keys() <= gaps.keys()
    assert len(gaps) >= 11
