"""What measured runs teach, as a file: it reads back, and no run's verdict depends on what is evaluated with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness.calibrate import learn
from harness.cli import main
from harness.contracts.estimates import Observation
from harness.contracts.results import FITS
from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.evaluation import evaluate, observations
from harness.evaluation.evaluate import Selected
from harness.evidence import suite
from harness.predictors.ours import Ours
from projector import posterior
from projector.errors import InputError
from projector.posterior import Facts, parse
from projector.workload import zoo
from projector.workload.recipe import Recipe


def seen(source: int, log_ratio: float | None = None, run_id: str = "", family: str = "") -> Observation:
    facts = Facts(
        step_seconds=2.0 + source, shares={"compute": 0.875, "host": 0.125}, gpu="h100_sxm", framework=f"f{source % 2}",
        family=family or f"m{source % 5}", model="m", source=f"source {source}",
        assumed=frozenset({"size"}) if source % 2 else frozenset(),
    )  # fmt: skip
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


# Recompute is taken for granted of runs that somebody measured, never of a suite's cases.

RECIPE = Recipe(tp=4, pp=2, micro_batch_size=1, global_batch_size=64, seq_length=8192, data_parallel_sharding="optim")
RUN = MeasuredRun(
    id="left-out", source=Source(title="a table"), gpu="h100_sxm", gpus=64, stack=Stack(framework="megatron-lm"),
    model=zoo.load("llama3_70b"), recipe=RECIPE, measured=Measured(step_seconds=10.0, tgs=800.0),
)  # fmt: skip


def test_a_measured_run_fitted_and_a_case_may_not() -> None:
    measured = Ours("simulate").predict(RUN)
    assert measured.status == "ok"
    assert any("recompute_granularity=full" in item for item in measured.assumed)
    case = Ours("simulate").predict(replace(RUN, measured=Measured(), source=Source(title="not measured", kind="case")))
    assert case.status == "out-of-memory"
    assert not any("recompute" in item for item in case.assumed)


def test_a_run_that_failed_for_memory_is_taken_at_its_word() -> None:
    failed = replace(RUN, measured=Measured(status="out-of-memory"))
    assert failed.measured.exists
    projected = Ours("simulate").predict(failed)
    assert projected.status == "out-of-memory"
    assert not any("recompute" in item for item in projected.assumed)


def test_what_ran_is_no_failure_where_nobody_can_tell() -> None:
    """Recompute stated: a row whose plan is within the tolerance of the limit runs, and says that it is close; the same
    of a planned case follows the better guess."""
    tight = None
    for layers in range(60, 20, -1):
        model = replace(zoo.load("llama3_70b"), num_layers=layers)
        run = replace(RUN, model=model, recipe=replace(RECIPE, recompute_granularity="none", pp=1))
        made = Ours("simulate").projection(run).memory
        if made.status == "too-close" and not made.fits:
            tight = run
            break
    assert tight is not None
    found = Ours("simulate").predict(tight)
    assert (found.status, found.reason.startswith("too close to tell")) == ("ok", True)
    assert Ours("simulate").predict(replace(tight, measured=Measured())).status == "out-of-memory"
    assert Ours("simulate").predict(replace(tight, measured=Measured(status="out-of-memory"))).status == "out-of-memory"


# ``harness calibrate``: tables of the posterior, the file it writes, and what it refuses.


def test_it_shows_where_stacks_differ_and_writes_a_file_that_reads_back(
    six_families: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out, looks = tmp_path / "posterior.json", tmp_path / "looks.csv"
    assert main(["first-look", str(six_families), "--out", str(looks), "--known", str(tmp_path / "none.csv")]) == 0
    given = ["calibrate", "--runs", str(six_families), "--looks", str(looks)]
    assert main([*given, "--judge", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for title in ("What a new source should expect", "What runs of one's own add", "Where stacks differ"):
        assert title in said
    written = out.read_text()
    found = parse(written, str(out))
    assert {"h100_sxm", "b200", "mi300x", "megatron-lm"} <= set(found.counts)
    assert found.evidence["rows"] == "36"
    assert main([*given, "--against", str(out)]) == 0
    assert "PASS" in capsys.readouterr().out
    out.write_text(written.replace('"tail": [', '"tail": [9'))
    assert main([*given, "--against", str(out)]) == 1


def test_unknown_gpus_write_nothing(project_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = project_folder / "measured" / "runs" / "tiny.yaml"
    out = tmp_path / "posterior.json"
    assert main(["calibrate", "h200", "--runs", str(tiny), "--out", str(out)]) == 2
    assert "h200" in capsys.readouterr().err
    assert not out.exists()
