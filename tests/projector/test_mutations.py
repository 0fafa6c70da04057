"""Mistakes that would stay unseen in a mean error, each made on purpose: a law of a single run must catch it.

A law is a function of the public ``project`` alone; a mistake is a change inside. Every law holds as the code stands and
fails under its mistake, so that no gate over many rows is needed to see it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from asked import refusal
from workloads import workload

from projector import pipeline
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.mechanisms.data_parallel import DataParallel
from projector.mechanisms.data_parallel.fsdp2 import FSDP2
from projector.mechanisms.data_parallel.sharded import FullySharded
from projector.memo import clear_all_caches
from projector.operators.weights import Weight
from projector.projection import Projection, project
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

H100 = catalogue.default_cluster("h100_sxm")
COMPILE = pipeline.compile
SIZES = {"micro_batch_size": 1, "seq_length": 4096, "recompute_granularity": "none"}


def run(model: str, gpus: int, cluster: Cluster = H100, **recipe: object) -> Projection:
    fields: dict[str, Any] = {**SIZES, "global_batch_size": 4 * gpus, **recipe}
    return project(Workload(model=zoo.load(model), recipe=Recipe(**fields), gpus=gpus), cluster, communication=True)


def optimizer_time_is_sharded_as_its_memory_is() -> None:
    """ZeRO-1 (Rajbhandari et al. 2020, section 5.1): each of N ranks updates 1/N of the parameters."""
    seconds = {
        kind: run("llama3_8b", 16, tp=2, data_parallel_sharding=kind).breakdown["optimizer_s"]
        for kind in ("no_shard", "optim")
    }
    # what runs over the whole gradient buffer stays; every pass over states is divided by 8
    assert seconds["optim"] < 0.45 * seconds["no_shard"]


def a_lone_micro_batch_hides_no_exchange() -> None:
    """The forward of the first micro-batch and the backward of the last have no partner to run beside."""
    apart, beside = (
        run("qwen3_30b_a3b", 16, ep=8, global_batch_size=16, moe_token_dispatcher_type="alltoall",
            overlap_moe_expert_parallel_comm=beside).step_seconds
        for beside in (False, True)
    )  # fmt: skip
    assert beside > 0.99 * apart


def dense_gradients_travel_over_all_replicas_and_experts_over_theirs() -> None:
    """What a rank sends in a ring: 2 (n − 1)/n of its gradients, n the replicas of dense weights; experts have none here."""
    made = run("qwen3_30b_a3b", 32, ep=32, data_parallel_sharding="no_shard")
    reduced = [one for one in made.communication if one.name.startswith("grad")]
    model = zoo.load("qwen3_30b_a3b")
    expert = model.num_layers * model.moe.num_experts * 3 * model.hidden_size * model.moe.moe_ffn_hidden_size  # type: ignore[union-attr]
    dense = count(model).total - expert
    wire = made.resolved.execution.data_parallel.reduce_bytes
    assert sum(one.bytes * one.count for one in reduced) == pytest.approx(dense * wire, rel=1e-3)
    doubled = replace(H100, inter=replace(H100.inter, bandwidth=2 * H100.inter.bandwidth))
    faster = run("qwen3_30b_a3b", 32, doubled, ep=32, data_parallel_sharding="no_shard")
    assert faster.breakdown["dp_s"] < 0.9 * made.breakdown["dp_s"]  # 32 replicas, 8 ranks a node: over the network


def a_stage_that_reshards_gathers_once_a_micro_batch() -> None:
    """torch distributed/pipelining/stage.py: what a backward gathers stays for the next forward, and is no less; without a
    pipeline a unit is gathered for either."""
    model, fields = zoo.load("llama3_8b"), {**SIZES, "data_parallel_sharding": "optim_grads_params"}
    for pp, times in ((2, 1), (1, 2)):
        work = workload(model, 8, "torchtitan", **fields, global_batch_size=32, pp=pp, fsdp_reshard_after_forward=True)
        made = project(work, H100, communication=True)
        gathered = sum(one.bytes * one.count for one in made.communication if one.name == "param_all_gather")
        weights = 2.0 * count(model).total / pp * made.resolved.workload.num_microbatches
        assert gathered == pytest.approx(times * weights, rel=0.02), pp


def full_recompute_runs_the_forward_again() -> None:
    """Chen et al. 2016: one more forward of every layer."""
    kept, again = (
        run("llama3_8b", 8, tp=8, recompute_granularity=how, recompute_method="uniform", recompute_num_layers=1)
        for how in ("none", "full")
    )
    forward = sum(one[0] for one in kept.stage_seconds)
    more = sum(b[1] - a[1] for a, b in zip(kept.stage_seconds, again.stage_seconds, strict=True))
    assert 0.6 * forward < more < 1.1 * forward  # all but embedding, head and what only the output needs


def an_exchange_of_experts_on_two_nodes_uses_the_network() -> None:
    slow = replace(H100, inter=replace(H100.inter, bandwidth=H100.inter.bandwidth / 2))
    times = [
        run("qwen3_30b_a3b", 16, cluster, ep=16, moe_token_dispatcher_type="alltoall").breakdown["ep_s"]
        for cluster in (H100, slow)
    ]
    assert times[1] > 1.5 * times[0]


def products_take_the_time_of_their_flop() -> None:
    """6 N tokens and the attention's scores. Products of this size run at 42 to 77 % of a peak that power does not let a
    device keep (Megatron-LM's README: 41 to 48 % of a whole step on H100)."""
    made = run("llama3_70b", 64, tp=8, pp=8, global_batch_size=64, sequence_parallel=True)
    model, tokens = zoo.load("llama3_70b"), 64 * 4096
    embedding = model.vocab_size * model.hidden_size
    scores = 6 * model.num_layers * model.hidden_size * 4096
    flops = (6 * (count(model).total - embedding) + scores) * tokens
    bound = flops / 64 / H100.gpu.peak_of("bf16")
    compute = made.breakdown["compute_s"]
    assert 1.3 * bound < compute < 2.4 * bound
    assert made.mfu == pytest.approx(bound / made.step_seconds, rel=0.1)


def streams_take_the_time_of_their_bytes() -> None:
    """A step of Megatron-LM's mixed-precision Adam without sharding: norm 4, clip 8, update 28, copy 6, and over the whole
    buffer zero 4, scale 8, check 4 bytes a parameter, at 70 to 100 % of the device's bandwidth."""
    seconds = run("llama3_8b", 8, tp=8, data_parallel_sharding="no_shard").breakdown["optimizer_s"]
    own = count(zoo.load("llama3_8b")).total / 8
    assert 0.7 < 62 * own / H100.gpu.memory_bandwidth / seconds < 1.0


def weights_and_states_take_eighteen_bytes() -> None:
    """Megatron-LM's mixed precision: 2 + 4 + 4 + 4 + 4 bytes a parameter (Korthikanti et al. 2022; ZeRO, section 3.1)."""
    made = run("llama3_8b", 8, tp=8, data_parallel_sharding="no_shard")
    own = count(zoo.load("llama3_8b")).total / 8
    static = sum(
        made.memory.ranks[0].components.get(name, 0.0) for name in ("weights", "gradients", "master_weights", "moments")
    )
    assert static == pytest.approx(18 * own, rel=0.02)


def the_first_rank_keeps_one_micro_batch_a_stage() -> None:
    """1F1B (Narayanan et al. 2019): rank r of p has at most p − r micro-batches in flight."""
    made = run("llama3_8b", 16, pp=4, tp=4, global_batch_size=32).timeline.compiled.schedule
    for rank, order in enumerate(made.orders):
        alive = most = 0
        for kind, _, _ in order:
            alive += {"F": 1, "B": -1}.get(kind, 0)
            most = max(most, alive)
        assert most == 4 - rank


@pytest.fixture
def patched(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    clear_all_caches()
    yield monkeypatch
    monkeypatch.undo()
    clear_all_caches()


Patch = Callable[[pytest.MonkeyPatch], None]


def _factor(module: str, name: str, change: Callable[[Any], Any]) -> Patch:
    """``module.name`` gives ``change`` of what it gave."""

    def patch(to: pytest.MonkeyPatch) -> None:
        import importlib

        home = importlib.import_module(module)
        true = getattr(home, name)
        to.setattr(home, name, lambda *a, **k: change(true(*a, **k)))

    return patch


def _group(of: str, on: str) -> Patch:
    """Group ``of`` is priced as if it were ``on``."""
    return _factor("projector.step.priced", "place", lambda shapes: {**shapes, of: shapes[on]})


def _kernels(scale: float) -> Patch:
    """All kernels take ``scale`` of their time."""
    from projector.kernels.simulate import Simulated

    true = Simulated.times

    def times(self: Any, ops: Any) -> Any:
        found = true(self, ops)
        return replace(found, seconds=found.seconds * scale)

    return lambda to: to.setattr(Simulated, "times", times)


def _weights(scale: float) -> Patch:
    """Every module holds ``scale`` times its weights."""
    true = Weight.elements.fget  # type: ignore[attr-defined]
    return lambda to: to.setattr(Weight, "elements", property(lambda self: scale * true(self)))


MISTAKES: dict[str, tuple[Callable[[], None], Patch]] = {
    "optimizer not sharded in time": (
        optimizer_time_is_sharded_as_its_memory_is,
        lambda to: to.setattr(DataParallel, "shards", lambda self, workload: (1, 1)),
    ),
    "exposure of unpaired exchanges dropped": (
        a_lone_micro_batch_hides_no_exchange,
        _factor("projector.step.cycle", "_unpaired", lambda _: 0.0),
    ),
    "dense gradients over the expert group": (
        dense_gradients_travel_over_all_replicas_and_experts_over_theirs,
        _group("dp", "edp"),
    ),
    "a stage gathered for forward and backward": (
        a_stage_that_reshards_gathers_once_a_micro_batch,
        lambda to: to.setattr(FSDP2, "configured_by", FullySharded.configured_by),
    ),
    "recompute not replayed": (
        full_recompute_runs_the_forward_again,
        _factor("projector.layers.lower", "recomputed", lambda made: replace(made, operators=())),
    ),
    "experts' exchange on the tensor-parallel group": (
        an_exchange_of_experts_on_two_nodes_uses_the_network,
        _group("ep", "tp"),
    ),
    "kernels at half their time": (products_take_the_time_of_their_flop, _kernels(0.5)),
    "kernels at twice their time": (products_take_the_time_of_their_flop, _kernels(2.0)),
    "streams at half their time": (streams_take_the_time_of_their_bytes, _kernels(0.5)),
    "streams at twice their time": (streams_take_the_time_of_their_bytes, _kernels(2.0)),
    "twice the FLOP of a token": (
        products_take_the_time_of_their_flop,
        _factor("projector.projection", "flops_per_token", lambda flops: 2 * flops),
    ),
    "half the FLOP of a token": (
        products_take_the_time_of_their_flop,
        _factor("projector.projection", "flops_per_token", lambda flops: flops / 2),
    ),
    "twice the parameters": (weights_and_states_take_eighteen_bytes, _weights(2)),
    "warm-up one too long": (
        the_first_rank_keeps_one_micro_batch_a_stage,
        lambda to: to.setattr(pipeline, "compile", lambda *a, **k: COMPILE(*a[:5], 1)),
    ),
}


@pytest.mark.parametrize(
    "law", sorted({law for law, _ in MISTAKES.values()}, key=lambda law: law.__name__), ids=lambda law: law.__name__
)
def test_the_law_holds(law: Callable[[], None]) -> None:
    law()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_law_catches(mistake: str, patched: pytest.MonkeyPatch) -> None:
    law, patch = MISTAKES[mistake]
    patch(patched)
    refusal(law, kind=AssertionError)
