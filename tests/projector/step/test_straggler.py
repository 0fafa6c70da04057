"""One slow rank, one slow kind of link: what a step must do then, whatever it is made of."""

import pytest
from asked import refusal

from projector.hardware import catalogue
from projector.hardware.efficiency import of
from projector.kernels.settings import DEFAULT
from projector.projection import Projection, project
from projector.step.priced import priced
from projector.step.run import Step
from projector.step.straggler import Stragglers, with_stragglers
from tests.workloads import sharded

H100 = catalogue.default_cluster("h100_sxm")
RUNS = {
    "1f1b": {"pp": 4, "tp": 2},
    "interleaved": {"pp": 4, "vpp": 2, "overlap_p2p_comm": True},
    "zero-bubble": {"pp": 4, "pipeline_schedule": "zb-h1"},
    "made for its times": {"pp": 4, "vpp": 2, "pipeline_schedule": "zbv-greedy-half"},
    "fsdp": {"data_parallel_sharding": "optim_grads_params", "overlap_grad_reduce": True},
    "experts": {"model": "mixtral_8x7b", "pp": 4, "ep": 8, "overlap_grad_reduce": True, "overlap_param_gather": True},
}
FACTORS = (1.0, 1.05, 1.5, 4.0)


def made(**changes: object) -> Projection:
    return project(sharded(**changes), H100)  # type: ignore[arg-type]


def after(made: Projection, **slow: dict[object, float]) -> tuple[Step, Step]:
    return with_stragglers(made.resolved, made.cluster, "simulate", DEFAULT, Stragglers(**slow))  # type: ignore[arg-type]


@pytest.mark.parametrize("run", RUNS)
def test_a_factor_of_one_changes_nothing(run: str) -> None:
    whole = made(**RUNS[run])
    before, then = after(whole, ranks={0: 1.0}, links={"intra": 1.0, "inter": 1.0})
    assert before.seconds == then.seconds == whole.step_seconds
    assert then.breakdown == before.breakdown == whole.breakdown


@pytest.mark.parametrize("run", RUNS)
def test_slower_is_never_faster_and_the_parts_add_up(run: str) -> None:
    whole = made(**RUNS[run])
    for rank in range(whole.resolved.workload.recipe.pp):
        steps = [after(whole, ranks={rank: factor})[1] for factor in FACTORS]
        seconds = [step.seconds for step in steps]
        assert seconds == sorted(seconds)
        assert seconds[0] == whole.step_seconds < seconds[-1]
        assert all(sum(step.breakdown.values()) == pytest.approx(step.seconds) for step in steps)
    for link in ("intra", "inter"):
        seconds = [after(whole, links={link: factor})[1].seconds for factor in FACTORS]
        assert seconds == sorted(seconds)


@pytest.mark.parametrize("run", RUNS)
def test_a_step_is_no_shorter_than_what_its_slow_rank_computes(run: str) -> None:
    whole, factor = made(**RUNS[run]), 3.0
    usual = priced(whole.resolved, H100, of(H100.gpu), "simulate", DEFAULT)
    for rank, stages in enumerate(whole.timeline.compiled.schedule.placement):
        parts = [part for stage in stages for part in usual.parts[stage]]
        once = sum(usual.clock.work((*part.block.forward, *part.backward)) for part in parts)
        computed = whole.resolved.workload.num_microbatches * once
        assert after(whole, ranks={rank: factor})[1].seconds > factor * computed


def test_without_pipeline_all_that_is_computed_takes_that_many_times_as_long() -> None:
    whole = made(model="llama3.2_1b", gpus=1, data_parallel_sharding="no_shard", cuda_graph_scope=("full_iteration",))
    parts = dict(whole.breakdown)
    assert parts.pop("host_s") < 0.01 * whole.step_seconds  # the device is what is waited for
    for factor in (1.5, 2.0):
        step = after(whole, ranks={0: factor})[1]
        for key in ("compute_s", "optimizer_s"):
            assert step.breakdown[key] == pytest.approx(factor * parts[key], rel=1e-9)
        assert step.breakdown["other_s"] == parts["other_s"]


def test_the_slow_rank_is_the_one_that_works_longest_and_waits_least() -> None:
    whole = made(pp=4, tp=2)
    for rank in range(4):
        before, then = after(whole, ranks={rank: 2.0})
        assert then.rank == rank
        assert then.breakdown["bubble_s"] / then.seconds < before.breakdown["bubble_s"] / before.seconds + 1e-12


def test_links_move_what_travels_over_them() -> None:
    whole = made(pp=1, tp=8)
    before, inner = after(whole, links={"intra": 4.0})
    outer = after(whole, links={"inter": 4.0})[1]
    assert inner.breakdown["tp_s"] > 2.0 * before.breakdown["tp_s"]
    assert outer.breakdown["tp_s"] == before.breakdown["tp_s"]
    assert outer.breakdown["dp_s"] > 2.0 * before.breakdown["dp_s"]


def test_ranks_and_links_that_are_not_there_are_refused_together() -> None:
    caught = refusal(after, made(pp=4), ranks={4: 2.0}, links={"outer": 2.0})
    assert [problem.where for problem in caught.problems] == ["--slow-rank", "--slow-link"]
