"""Which measurement to make first: never one that widens, never a large one where a small one tells nearly as much."""

from dataclasses import replace

import pytest

from projector.expectation import Knowledge
from projector.hardware.catalogue import cluster
from projector.kernels.settings import DEFAULT
from projector.posterior import Run
from projector.projection import project
from projector.search.first_run import first_run
from projector.search.found import Best
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


@pytest.fixture(scope="module")
def best() -> list[Best]:
    recipe = Recipe(micro_batch_size=1, global_batch_size=128, seq_length=4096, data_parallel_sharding="optim")
    made = []
    for tp in (2, 4):
        workload = Workload(
            model=zoo.load("llama3.1_8b"), recipe=replace(recipe, tp=tp), gpus=64, framework="megatron-lm"
        )
        projection = project(workload, cluster("h100_sxm"))
        made.append(Best(fields={"tp": tp}, workload=workload, projection=projection, value=projection.step_seconds))
    return made


def test_a_run_narrows_and_the_smallest_that_does_is_named(best: list[Best]) -> None:
    found = first_run(best, cluster("h100_sxm"), Knowledge(), (), DEFAULT)
    assert found.whole < found.before
    assert found.after <= found.before
    assert 0.9 * (found.before - found.whole) <= found.before - found.after
    assert found.gpus in (8, 16, 32, 64)


def test_what_it_promises_is_what_a_measurement_gives_whatever_it_says(best: list[Best]) -> None:
    known = Knowledge()
    promised = first_run(best, cluster("h100_sxm"), known, (), DEFAULT)
    facts = [known.facts(each.projection) for each in best]
    for seconds in (0.9, 1.0, 1.1):
        run = Run(facts=facts[0], measured_seconds=seconds * known.of(facts[0]).middle)
        after = sum(replace(known, runs=(run,)).of(each).half_width for each in facts) / len(facts)
        assert after == pytest.approx(promised.whole, rel=0.02)


def test_one_that_was_measured_is_worth_little_more(best: list[Best]) -> None:
    facts = Knowledge().facts(best[0].projection)
    mine = Knowledge(runs=(Run(facts=facts, measured_seconds=best[0].projection.step_seconds),))
    again = first_run(best, cluster("h100_sxm"), mine, (), DEFAULT)
    assert again.before - again.after < 0.1 * (Knowledge().of(facts).half_width - again.before)
