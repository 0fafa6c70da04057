"""The loop: order, fits, refusals, the same result in several processes, and the registered predictors."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import command_line
import pytest
from asked import put, refusal

from harness import predictors
from harness.calibrate import learn
from harness.cli import main
from harness.contracts import frame
from harness.contracts.estimates import Observation
from harness.contracts.results import COLUMNS, FITS, STATUSES, Row
from harness.contracts.runs import BREAKDOWN, Measured, MeasuredRun, Prediction, Source, Stack
from harness.evaluation import evaluate, observations
from harness.evaluation.evaluate import Selected
from harness.evidence import dataset, suite
from harness.predictors.constant_mfu import PUBLISHED_MFU, flops_per_token
from harness.predictors.ours import Ours
from harness.predictors.protocol import Predictor, guarded
from projector import posterior
from projector.effects import Facts
from projector.errors import InputError, NoMeasurement, Problem, Unsupported
from projector.hardware import catalogue
from projector.posterior import parse
from projector.workload import parameters, zoo
from projector.workload.recipe import Recipe


@dataclass(frozen=True)
class Fixed:
    """Projects a fixed share of the measured time, by family; refuses runs of the families it does not know."""

    shares: tuple[tuple[str, float], ...]
    name: str = "fixed"

    def predict(self, run: MeasuredRun) -> Prediction:
        share = dict(self.shares).get(run.model.family if run.model else "")
        if share is None:
            return Prediction(status="unsupported", reason="an unknown family")
        step = share * (run.measured.step_seconds or 1.0)
        parts = dict.fromkeys(BREAKDOWN, 0.0) | {"compute_s": 0.75 * step, "dp_s": 0.25 * step}
        return Prediction(status="ok", step_seconds=step, breakdown=parts, memory_gib=50.0, assumed=("a=1",))


@pytest.fixture
def runs(project_folder: Path) -> list[MeasuredRun]:
    return list(suite.load(project_folder / "suites" / "tiny.yaml").runs)


def parts_of(row: Row) -> list[float]:
    return [seconds for name in BREAKDOWN if (seconds := getattr(row, name)) is not None]


def families(runs: list[MeasuredRun]) -> tuple[str, str]:
    return runs[0].model.family, runs[2].model.family


def test_rows_keep_the_order_and_the_place_of_refusals(runs: list[MeasuredRun]) -> None:
    llama, _ = families(runs)
    made = evaluate.evaluate([Selected("s", r) for r in runs], [Fixed(((llama, 0.5),))])
    assert [(r.run_id, r.fit) for r in made.rows] == [(run.id, fit) for run in runs for fit in FITS]
    refused = [r for r in made.rows if r.run_id == "mixtral-ep8"]
    assert {(r.status, r.reason, r.error) for r in refused} == {("unsupported", "an unknown family", None)}


def published(runs: list[MeasuredRun], sources: int = 6) -> list[MeasuredRun]:
    """The measured runs once from each of some sources; the first keeps its ids."""
    return [
        replace(run, id=f"{run.id}{f'-{s}' if s else ''}", source=replace(run.source, title=f"source {s}"))
        for s in range(sources)
        for run in runs[:3]
    ]


def test_fits_scale_time_and_breakdown_but_not_memory(runs: list[MeasuredRun]) -> None:
    llama, mixtral = families(runs)
    tool = Fixed(((llama, 0.5), (mixtral, 0.8)))
    made = evaluate.evaluate([Selected("s", r) for r in published(runs)], [tool])
    rows = {(r.run_id, r.fit): r for r in made.rows}
    assert rows["llama-tp1", "uncalibrated"].error == pytest.approx(1.0)
    # Between what its two families say.
    fitted, held = rows["llama-tp1", "shipped"].error, rows["llama-tp1", "heldout"].error
    assert 0.0 < min(fitted, held) <= max(fitted, held) < 1.0
    assert 1.25 / 2 - 1 <= rows["mixtral-ep8", "heldout"].error < 0.05
    for row in made.rows:
        assert sum(parts_of(row)) == pytest.approx(row.projected_step_seconds)
        assert row.projected_tgs * row.projected_step_seconds == pytest.approx(64 * 4096 / 8)
        assert row.projected_memory_gib == 50.0
        assert row.assumed == "a=1"


def test_a_held_out_row_does_not_depend_on_its_own_measurement(runs: list[MeasuredRun]) -> None:
    llama, mixtral = families(runs)
    seen = published(runs)
    changed = [
        replace(r, measured=replace(r.measured, tgs=r.measured.tgs * 1.5)) if r.source == runs[0].source else r
        for r in (replace(r, source=runs[0].source) if r.source.title == "source 0" else r for r in seen)
    ]
    tool = Fixed(((llama, 0.5), (mixtral, 0.8)))

    def projected(chosen: list[MeasuredRun], fit: str) -> float:
        rows = evaluate.evaluate([Selected("", r) for r in chosen], [tool]).rows
        return next(r.projected_tgs for r in rows if r.run_id == "llama-tp1" and r.fit == fit)

    # but for how far a predictor's errors scatter, which scales the variances of any but ours
    assert projected(changed, "heldout") == pytest.approx(projected(seen, "heldout"), rel=1e-3)
    assert projected(changed, "shipped") != pytest.approx(projected(seen, "shipped"), rel=1e-3)


def test_a_lonely_source_is_left_as_projected(runs: list[MeasuredRun]) -> None:
    llama, _ = families(runs)
    made = evaluate.evaluate([Selected("", r) for r in runs[:2]], [Fixed(((llama, 0.5),))])
    assert all(r.error == pytest.approx(1.0) for r in made.rows if r.fit == "heldout")


def test_a_run_of_two_suites_is_projected_once_and_listed_in_both(runs: list[MeasuredRun]) -> None:
    llama, _ = families(runs)
    made = evaluate.evaluate([Selected("s", runs[0]), Selected("t", runs[0])], [Fixed(((llama, 0.5),))])
    assert [r.suite for r in made.rows] == ["s"] * len(FITS) + ["t"] * len(FITS)
    assert len(made.once) == len(FITS)


def test_several_processes_give_the_same_rows(runs: list[MeasuredRun], monkeypatch) -> None:
    monkeypatch.setattr(evaluate, "MIN_PARALLEL", 1)
    seen: list[int] = []
    selected = [Selected("", r) for r in runs]
    one = evaluate.evaluate(selected, predictors.load(["constant-mfu"]))
    two = evaluate.evaluate(
        selected, predictors.load(["constant-mfu"]), jobs=2, progress=lambda done, total: seen.append(done)
    )
    assert [replace(r, seconds_to_project=None) for r in one.rows] == [
        replace(r, seconds_to_project=None) for r in two.rows
    ]
    assert seen == list(range(1, len(runs) + 1))


def test_the_columns_are_those_of_the_contract(runs: list[MeasuredRun]) -> None:
    made = evaluate.evaluate([Selected("s", r) for r in runs], predictors.load(["constant-mfu"]))
    assert list(made.frame.columns[: len(COLUMNS)]) == list(COLUMNS)
    assert {name: str(dtype) for name, dtype in made.frame.dtypes.items()} == frame.SCHEMA


def test_refusals_by_what_is_raised(runs: list[MeasuredRun]) -> None:
    def raising(error: Exception) -> str:
        def call() -> Prediction:
            raise error

        made = guarded(runs[0], call)
        return f"{made.status}: {made.reason}"

    assert raising(NoMeasurement("no measurement for h100_sxm")) == "no-measurement: no measurement for h100_sxm"
    assert raising(ZeroDivisionError("by zero")).startswith(
        "unsupported: internal error: ZeroDivisionError: by zero (test_evaluate.py:"
    )
    assert raising(Unsupported("ALiBi")) == "unsupported: ALiBi"
    assert raising(InputError([Problem("", "recipe.tp", 3, "2")])) == "invalid: recipe.tp: found 3, expected 2"


def test_refusals_before_anything_is_asked(runs: list[MeasuredRun]) -> None:
    def never() -> Prediction:
        raise AssertionError

    assert guarded(replace(runs[0], model=None, problem="no model"), never) == Prediction(
        status="invalid", reason="no model"
    )
    assert guarded(replace(runs[0], recipe=None), never).status == "invalid"
    assert guarded(replace(runs[0], problem="odd"), never).status == "unsupported"
    strange = replace(runs[0].model, unsupported=("Mamba layers",))
    assert guarded(replace(runs[0], model=strange), never).reason == "Mamba layers"


def test_the_baseline_has_one_mfu(runs: list[MeasuredRun]) -> None:
    run = runs[0]
    (tool,) = predictors.load(["constant-mfu"])
    model = zoo.load("llama3_8b")
    count = parameters.count(model)
    flops = 6 * (count.active - count.embedding) + 6 * 32 * 4096 * 4096
    assert flops_per_token(model, 4096) == flops
    peak = catalogue.gpu("h100_sxm").peak_of("bf16")
    expected = flops * 64 * 4096 / (8 * peak * PUBLISHED_MFU)
    assert tool.predict(run).step_seconds == pytest.approx(expected)


@pytest.mark.parametrize("name", [n for n in predictors.names() if n not in predictors.PEERS])
def test_predictors_do_not_look_at_the_measurement(name: str, runs: list[MeasuredRun]) -> None:
    (tool,) = predictors.load([name])
    assert isinstance(tool, Predictor)
    for run in (run for run in runs if run.measured.exists):  # what was never run is projected as a plan
        blind = replace(run, measured=Measured(step_seconds=123.0, memory_kind=run.measured.memory_kind))
        assert tool.predict(run).step_seconds == tool.predict(blind).step_seconds


def test_benchmark_refuses_what_rests_on_no_measurement(runs: list[MeasuredRun]) -> None:
    (tool,) = predictors.load(["benchmark"])
    made = tool.predict(replace(runs[0], gpu="v100_sxm_32gb"))
    assert made.status == "no-measurement"
    assert made.reason.startswith("no measurement for v100_sxm_32gb")
    for run in runs:
        answer = tool.predict(run)
        assert answer.status == "no-measurement" or (answer.measured_share or 0.0) > 0.0


# The whole loop over every measured run of the repository: nothing breaks, nothing is lost, everything adds up.


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
        if parts := parts_of(row):
            assert sum(parts) == pytest.approx(row.projected_step_seconds), row.run_id
            assert min(parts) >= -1e-9 * row.projected_step_seconds, row.run_id


# What measured runs teach, as a file: it reads back, and no run's verdict depends on what is evaluated with it.


def seen(source: int, log_ratio: float | None = None, run_id: str = "", family: str = "") -> Observation:
    facts = Facts(
        step_seconds=2.0 + source, shares={"compute": 0.875, "host": 0.125}, gpu="h100_sxm", framework=f"f{source % 2}",
        family=family or f"m{source % 5}", model="m", source=f"source {source}", tokens=4096.0 * source + 1,
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
    refusal(observations.parse, observations.text({"simulate": (seen(1),)}).replace(*spoil), "here", match="here")


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


def test_what_is_shipped_for_plans_and_for_runs_rests_on_the_same_rows(root: Path) -> None:
    """``projector/posterior.json`` and the observations are written by one job of one corpus."""
    known, written = posterior.load(), (root / "reports" / observations.FILE).read_text(encoding="utf-8")
    assert known.counts == learn.counts(observations.parse(written, observations.FILE)["simulate"])
    assert {term for term, _ in known.effects} <= set(known.prior.deviations)


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
    six_families: Path, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out, looks = tmp_path / "posterior.json", tmp_path / "looks.csv"
    assert main(["first-look", str(six_families), "--out", str(looks), "--known", str(tmp_path / "none.csv")]) == 0
    given = ["calibrate", "--runs", str(six_families), "--looks", str(looks)]
    said = command_line.told("harness", *given, "--judge", "--out", out)
    for title in (
        "What a new source should expect, and a known one",
        "What runs of one's own add",
        "Where stacks differ",
    ):
        assert title in said
    written = out.read_text()
    found = parse(written, str(out))
    assert {"h100_sxm", "b200", "mi300x", "megatron-lm"} <= set(found.counts)
    assert found.evidence["rows"] == "36"
    assert "PASS" in command_line.told("harness", *given, "--against", out)
    assert main([*given, "--against", str(put(out, written.replace('"tail": [', '"tail": [9')))]) == 1
