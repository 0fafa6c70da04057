"""Random configurations, and the changes to them of which it is known which way the step must go."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.hardware.types import Cluster, Fabric
from projector.projection import Projection, project
from projector.settle.workload import settle
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

__all__ = ["EASIER", "HARDER", "SWITCHES", "Case", "cases", "seconds"]

_DENSE = ("llama3_8b", "llama3_70b", "llama2_7b", "qwen2.5_7b", "gpt3_175b", "mistral_7b")
_ROUTED = (
    "qwen3_30b_a3b", "mixtral_8x7b", "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "gpt_oss_20b", "qwen3_235b_a22b",
)  # fmt: skip
_GPUS = ("a100_sxm_80gb", "h100_sxm", "h200", "b200", "gb200", "mi300x", "mi355x", "mi250x")
_NARROW = ("h100_sxm", "h200", "b200", "gb200", "mi300x", "mi355x")
_SCHEDULES = (None, None, "gpipe", "zb-h1", "zb-h2", "zbv", "v-half", "v-min", "dualpipev")


@dataclass(frozen=True)
class Case:
    """One configuration on one cluster. ``number`` names it: ``cases([number])`` draws it again."""

    number: int
    work: Workload
    cluster: Cluster

    def recipe(self, **changed: Any) -> Case:
        return replace(self, work=replace(self.work, recipe=replace(self.work.recipe, **changed)))

    def __str__(self) -> str:
        stated = {
            each.name: value
            for each in fields(Recipe)
            if (value := getattr(self.work.recipe, each.name)) != (None if each.default is MISSING else each.default)
        }
        job = f"{self.work.model.name} on {self.work.gpus} {self.cluster.name}, {self.work.framework}"
        return f"case {self.number}: {job}: {stated}"


def cases(numbers: Iterator[int] | range) -> Iterator[Case]:
    """The configurations with these numbers, as far as they can run."""
    for number in numbers:
        case = _drawn(number)
        try:
            settle(case.work, case.cluster)
        except (InputError, Unsupported):
            continue
        yield case


def _drawn(number: int) -> Case:
    pick = random.Random(number)
    routed = pick.random() < 0.5
    model = zoo.load(pick.choice(_ROUTED if routed else _DENSE))
    name = pick.choice(_GPUS)
    framework = pick.choice(("megatron-lm", "megatron-lm", "primus", "torchtitan", "nemo", "maxtext", "deepspeed"))
    gpus = pick.choice((8, 16, 32, 64, 128, 256))
    pp = pick.choice([p for p in (1, 1, 2, 4, 8) if gpus // p >= 1])
    schedule = (
        pick.choice(_SCHEDULES) if pp > 1 and framework in ("megatron-lm", "primus", "nemo", "torchtitan") else None
    )
    vpp = (
        2
        if schedule in ("zbv", "v-half", "v-min", "dualpipev")
        else pick.choice((1, 2))
        if pp > 1 and schedule is None
        else 1
    )
    tp = pick.choice([t for t in (1, 1, 2, 4, 8) if gpus % (t * pp) == 0])
    cp = pick.choice([c for c in (1, 1, 1, 2) if gpus % (tp * pp * c) == 0])
    ep = pick.choice([e for e in (1, 4, 8, 8, 16, 32) if gpus % (e * pp) == 0]) if routed else 1
    dp, micro = gpus // (tp * pp * cp), pick.choice((1, 1, 2, 4))
    m = pick.choice((1, 2, 4)) * max(1, 2 * pp if pp > 1 else 1)
    granularity = pick.choice(("none", "none", "full", "selective"))
    stated: dict[str, Any] = {
        "micro_batch_size": micro, "global_batch_size": dp * micro * m,
        "seq_length": pick.choice((512, 1024, 2048, 4096, 8192)), "tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep,
        "sequence_parallel": tp > 1, "precision": pick.choice(("bf16", "bf16", "fp8")) if name in _NARROW else "bf16",
        "pipeline_schedule": schedule, "recompute_granularity": granularity,
        "data_parallel_sharding": pick.choice(("no_shard", "optim", "optim", "optim_grads_params")),
        "overlap_grad_reduce": pick.choice((None, True, False)),
        "overlap_param_gather": pick.choice((None, True, False)),
        "overlap_p2p_comm": pick.choice((None, True, False)) if vpp > 1 else None,
        "tp_comm_overlap": pick.choice((None, True, False)) if tp > 1 else None,
    }  # fmt: skip
    if granularity == "full":
        stated["recompute_method"] = "uniform"
    if routed:
        stated["moe_token_dispatcher_type"] = pick.choice(("alltoall", "allgather", "flex", None))
        stated["moe_grouped_gemm"] = pick.choice(("fused", "loop", "multi_stream", None))
        stated["overlap_moe_expert_parallel_comm"] = pick.choice((None, None, True)) if ep > 1 else None
        stated["moe_router_force_load_balancing"] = pick.choice((None, True))
    work = Workload(model=model, recipe=Recipe(**stated), gpus=gpus, framework=framework)
    return Case(number, work, catalogue.default_cluster(name))


def seconds(case: Case) -> Projection | None:
    """The projection of a case; None where the configuration cannot run."""
    try:
        return project(case.work, case.cluster)
    except (InputError, Unsupported):
        return None


# ---- changes -----------------------------------------------------------------------------------------------------


def _sequence(case: Case) -> Case:
    return case.recipe(seq_length=2 * case.work.recipe.seq_length)


def _micro(case: Case) -> Case:
    r = case.work.recipe
    return case.recipe(micro_batch_size=2 * r.micro_batch_size, global_batch_size=2 * r.global_batch_size)


def _microbatches(case: Case) -> Case:
    return case.recipe(global_batch_size=2 * case.work.recipe.global_batch_size)


def _topk(case: Case) -> Case | None:
    model = case.work.model
    moe = model.moe
    if moe is None or 2 * moe.moe_router_topk > moe.num_experts or moe.moe_router_group_topk is not None:
        return None  # limited to few groups, more experts a token may reach the same nodes
    wider = replace(model, moe=replace(moe, moe_router_topk=2 * moe.moe_router_topk))
    return replace(case, work=replace(case.work, model=wider))


def _smaller_nodes(case: Case) -> Case | None:
    whole = case.cluster.gpus_per_host
    if whole < 8 or case.work.gpus < 8 or case.cluster.gpus_per_node != whole:
        return None
    return replace(case, cluster=catalogue.default_cluster(case.cluster.gpu.name, whole // 2))


def _cluster(change: Callable[[Cluster], Cluster]) -> Callable[[Case], Case]:
    return lambda case: replace(case, cluster=change(case.cluster))


def _peak(cluster: Cluster) -> Cluster:
    gpu = cluster.gpu
    return replace(
        cluster, gpu=replace(gpu, peak={k: 2 * v for k, v in gpu.peak.items()}, vector_flops=2 * gpu.vector_flops)
    )


def _memory(cluster: Cluster) -> Cluster:
    return replace(cluster, gpu=replace(cluster.gpu, memory_bandwidth=2 * cluster.gpu.memory_bandwidth))


def _wider(fabric: Fabric | None) -> Fabric | None:
    return fabric and replace(fabric, bandwidth=2 * fabric.bandwidth)


def _quicker(fabric: Fabric | None) -> Fabric | None:
    return fabric and replace(fabric, latency=fabric.latency / 2)


def _network(c: Cluster) -> Cluster:
    return replace(c, inter=_wider(c.inter), outer=_wider(c.outer))


def _links(c: Cluster) -> Cluster:
    return replace(c, intra=_wider(c.intra))


def _latency(c: Cluster) -> Cluster:
    return replace(c, intra=_quicker(c.intra), inter=_quicker(c.inter), outer=_quicker(c.outer))


HARDER: dict[str, Callable[[Case], Case | None]] = {
    "sequence": _sequence, "micro-batch": _micro, "micro-batches": _microbatches, "top-k": _topk,
    "smaller nodes": _smaller_nodes,
}  # fmt: skip
"""Never faster."""

EASIER: dict[str, Callable[[Case], Case | None]] = {
    "peak": _cluster(_peak),
    "memory bandwidth": _cluster(_memory),
    "network bandwidth": _cluster(_network),
    "link bandwidth": _cluster(_links),
    "latency": _cluster(_latency),
}
"""Never slower."""

SWITCHES = ("tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm")
