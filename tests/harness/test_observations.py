"""What measured runs teach, as a file: it reads back, and no run's verdict depends on what is evaluated with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness.calibrate import learn
from harness.contracts.estimates import Observation
from harness.contracts.results import FITS
from harness.evaluation import evaluate, observations
from harness.evaluation.evaluate import Selected
from harness.evidence import suite
from projector import posterior
from projector.errors import InputError
from projector.posterior import Facts


def seen(source: int, log_ratio: float | None = None, run_id: str = "", family: str = "") -> Observation:
    facts = Facts(
        step_seconds=2.0 + source,
        shares={"compute": 0.875, "host": 0.125},
        gpu="h100_sxm",
        framework=f"f{source % 2}",
        family=family or f"m{source % 5}",
        model="m",
        source=f"source {source}",
        assumed=frozenset({"size"}) if source % 2 else frozenset(),
    )
    log = round(0.2 + 0.01 * (source % 7), 2) if log_ratio is None else log_ratio
    return Observation(run_id=run_id or f"r{source}", facts=facts, log_ratio=log)


def test_a_file_reads_back_and_holds_what_teaches() -> None:
    rows = tuple(seen(i) for i in range(4))
    written = observations.text({"simulate": (*rows, seen(9, log_ratio=math.nan)), "other": (seen(5, run_id="=1+1"),)})
    assert observations.parse(written, "here") == {"simulate": rows, "other": (seen(5, run_id="=1+1"),)}


@pytest.mark.parametrize("spoil", [("0.875", "much"), ("3,", "nan,"), ("predictor", "tool"), (",h100_sxm,", ",")])
def test_a_broken_file_is_one_clear_error(spoil: tuple[str, str]) -> None:
    with pytest.raises(InputError, match="here"):
        observations.parse(observations.text({"simulate": (seen(1),)}).replace(*spoil), "here")


def test_a_verdict_does_not_depend_on_its_companions(project_folder: Path) -> None:
    runs = suite.load(project_folder / "suites" / "tiny.yaml").runs
    tools, evidence = evaluate.tools_for("simulate")[:1], {"simulate": [seen(i) for i in range(20)]}

    def rows(chosen: Callable[[str], bool]) -> dict[tuple[str, str], object]:
        some = [Selected("", run) for run in runs if chosen(run.id)]
        made = evaluate.evaluate(some, tools, evidence=evidence).rows
        return {(r.run_id, r.fit): replace(r, seconds_to_project=None) for r in made}

    whole, alone = rows(lambda _: True), rows(lambda run_id: run_id == "llama-tp4")
    for key, row in alone.items():  # solved together with others, a figure may differ in its last digits
        figures, there = ({k: v for k, v in asdict(each).items() if isinstance(v, float)} for each in (row, whole[key]))
        assert figures == pytest.approx(there, rel=1e-9)
    plain, held = whole["llama-tp4", "uncalibrated"], whole["llama-tp4", "heldout"]
    assert 1.0 < held.projected_step_seconds / plain.projected_step_seconds < math.exp(0.23)
    assert held.interval_low < held.projected_tgs < held.interval_high
    assert whole["llama-tp4", "shipped"].interval_low is not None


def test_rows_of_its_own_source_do_not_correct_a_run(project_folder: Path) -> None:
    runs = suite.load(project_folder / "suites" / "tiny.yaml").runs[:1]
    others = [seen(i, log_ratio=0.2) for i in range(10, 30)]
    made = evaluate.evaluate(
        [Selected("", r) for r in runs], evaluate.tools_for("simulate")[:1], evidence={"simulate": others}
    )
    step = {row.fit: row.projected_step_seconds for row in made.rows}
    assert step["heldout"] > step["uncalibrated"]
    assert set(step) == set(FITS)


def test_what_is_shipped_for_plans_and_for_runs_rests_on_the_same_rows() -> None:
    """``projector/posterior.json`` and the observations are written by one job of one corpus."""
    known, packaged = posterior.load(), observations.packaged()
    assert packaged is not None
    assert known.counts == learn.counts(packaged["simulate"])
    assert {term for term, _ in known.effects} <= set(known.deviations)
