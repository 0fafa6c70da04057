"""Recompute is taken for granted of runs that somebody measured, never of a suite's cases."""

from __future__ import annotations

from dataclasses import replace

from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.predictors.ours import Ours
from projector.workload import zoo
from projector.workload.recipe import Recipe

RECIPE = Recipe(tp=4, pp=2, micro_batch_size=1, global_batch_size=64, seq_length=8192, data_parallel_sharding="optim")
RUN = MeasuredRun(
    id="left-out",
    source=Source(title="a table"),
    gpu="h100_sxm",
    gpus=64,
    stack=Stack(framework="megatron-lm"),
    model=zoo.load("llama3_70b"),
    recipe=RECIPE,
    measured=Measured(step_seconds=10.0, tgs=800.0),
)


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
