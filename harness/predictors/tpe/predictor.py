"""transformer-perf-estimates as a predictor: a measured run in its words.

It knows GPTs of equal heads with a plain MLP, no recompute, 1F1B in equal stages, the optimizer's states sharded over
data parallelism. Context parallelism is its 2D sequence form (keys and values gathered).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors import peer
from harness.predictors.protocol import Guarded
from harness.predictors.tpe.layer import Shape
from harness.predictors.tpe.step import Config, Estimate, Placed, estimate
from harness.predictors.tpe.system import System
from projector.dataclass import dataclass
from projector.hardware.types import Cluster
from projector.workload.workload import Workload

NAME = "tpe"

# Of all its systems (systems/config-*.json at 54278b0): share of a link's bandwidth, seconds of a hop.
_LINK_EFFICIENCY, _FAST_LATENCY, _SLOW_LATENCY = 0.7, 2.5e-6, 5e-6
# Vector rate in half precision over that in single precision, of its files: A100 78/19.5, H200 133.8/66.9, B200 339/75.
_HALF = {"ampere": 4.0, "blackwell": 4.52}
_HALF_OTHERS = 2.0


@dataclass(frozen=True)
class Tpe(Guarded):
    name: str = NAME

    def project(self, run: MeasuredRun) -> Prediction:
        resolved, cluster = peer.state(run)
        work = resolved.workload
        peer.stated_refusal(NAME, _limits(work))
        its, how = system(cluster), config(work)
        strategy = "2d-seqp" if work.recipe.cp > 1 else "1d"
        said = estimate(strategy, shape(work), how, placed(how, its.domain), its, work.recipe.global_batch_size)
        fits = said.memory <= its.capacity
        gib = said.memory / peer.GIB
        return Prediction(
            status="ok" if fits else "out-of-memory",
            reason="" if fits else f"{NAME}: needs {gib:.1f} GiB of {its.capacity / peer.GIB:.1f} GiB",
            step_seconds=said.seconds,
            memory_gib=gib,
            measured_share=0.0,
            breakdown=_breakdown(said),
            assumed=(*resolved.assumed, *_simplified(work)),
        )


def _limits(work: Workload) -> Iterator[str]:
    """Reasons to refuse, in words that follow "tpe has no"."""
    model, recipe = work.model, work.recipe
    yield from (reason for reason in peer.limits(work) if reason != "context parallelism")
    found = {
        "grouped-query attention": model.num_query_groups != model.num_attention_heads,
        "head dimension other than hidden size / heads": model.kv_channels * model.num_attention_heads
        != model.hidden_size,
        "recompute": peer.recompute_mode(work) not in (None, "none"),
        "interleaved schedule": recipe.pp > 1 and recipe.vpp > 1,
        "uneven pipeline stages": model.num_layers % recipe.pp != 0,
        "optimizer offload": bool(recipe.optimizer_cpu_offload),
        f"{recipe.data_parallel_sharding} sharding": work.dp > 1 and recipe.data_parallel_sharding != "optim",
        "tensor parallelism without sequence parallelism": recipe.tp > 1 and not recipe.sequence_parallel,
    }
    yield from (reason for reason, holds in found.items() if holds)


def _simplified(work: Workload) -> tuple[str, ...]:
    said = ["step=blocks without embedding and output, no causal mask, dropout everywhere (tpe)"]
    if work.model.gated_linear_unit:
        said.append("f=1.5·ffn_hidden_size (gated unit as a plain MLP of equal weights and FLOP)")
    return tuple(said)


def system(cluster: Cluster) -> System:
    """Its system from our data sheets, with the efficiencies and latencies that its own files have."""
    gpu = cluster.gpu
    return System(
        matrix=gpu.peak_of("bf16"),
        vector=gpu.vector_flops * _HALF.get(gpu.arch, _HALF_OTHERS),
        memory_bandwidth=gpu.memory_bandwidth,
        capacity=gpu.memory_bytes,
        fast_bandwidth=cluster.intra.bandwidth,
        fast_efficiency=_LINK_EFFICIENCY,
        fast_latency=_FAST_LATENCY,
        slow_bandwidth=cluster.inter.bandwidth,
        slow_efficiency=_LINK_EFFICIENCY,
        slow_latency=_SLOW_LATENCY,
        domain=cluster.gpus_per_node,
    )


def shape(work: Workload) -> Shape:
    model = work.model
    wide = model.ffn_hidden_size * 3 // 2 if model.gated_linear_unit else model.ffn_hidden_size
    return Shape(work.recipe.seq_length, model.hidden_size, model.num_attention_heads, model.num_layers, wide)


def config(work: Workload) -> Config:
    recipe = work.recipe
    return Config(work.dp, recipe.tp, recipe.pp, recipe.micro_batch_size, recipe.cp)


def placed(how: Config, domain: int) -> Placed:
    """Ranks in Megatron-LM's order: tensor, context, data, pipeline parallelism fill the fast domain one after another."""
    near = []
    for degree in (how.tp, how.tp2, how.dp, how.pp):
        near.append(math.gcd(degree, domain))
        domain //= near[-1]
    return Placed(*near)


def _breakdown(said: Estimate) -> dict[str, float]:
    """Its parts of a step under the names of our result rows; communication of the bubble is in the bubble."""
    parts = {"bubble_s": said.bubble, "tp_s": said.tensor, "pp_s": said.pipeline, "dp_s": said.data}
    return {"compute_s": said.seconds - sum(parts.values()), **parts}
