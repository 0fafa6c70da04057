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
