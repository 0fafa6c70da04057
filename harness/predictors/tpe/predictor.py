"""transformer-perf-estimates as a predictor: a measured run in its words. It knows GPTs of equal heads with a plain MLP,
no recompute, 1F1B in equal stages, the optimizer's states sharded over data parallelism. Context parallelism is its 2D
sequence form (keys and values gathered)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors import peer
from harness.predictors.protocol import Guarded
from harness.predictors.tpe.layer import STRATEGIES, Shape
from harness.predictors.tpe.step import Config, Estimate, Placed, estimate
from harness.predictors.tpe.system import System
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.types import Cluster
from projector.workload.workload import Workload

NAME = "tpe"

# The same in all its systems (systems/config-*.json at 54278b0): share of a link's bandwidth, seconds of a hop.
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
        machine, setup = system(cluster), config(work)
        strategy = "2d-seqp" if work.recipe.cp > 1 else "1d"
        result = estimate(
            strategy, shape(work), setup, placed(setup, machine.domain), machine, work.recipe.global_batch_size
        )
        assumed = (*resolved.assumed, *_simplified(work))
        return peer.told(NAME, result.seconds, result.memory, machine.capacity, _breakdown(result), assumed)


def _limits(work: Workload) -> Iterator[str]:
    """Yields reasons to refuse, in words that follow "tpe has no"."""
    model, recipe = work.model, work.recipe
    yield from (reason for reason in peer.limits(work) if reason != "context parallelism")
    reasons = {
        "grouped-query attention": model.num_query_groups != model.num_attention_heads,
        "recompute": peer.recompute_mode(work) not in (None, "none"),
        f"{recipe.data_parallel_sharding} sharding": work.dp > 1 and recipe.data_parallel_sharding != "optim",
        "tensor parallelism without sequence parallelism": recipe.tp > 1 and not recipe.sequence_parallel,
    }
    yield from (reason for reason, holds in reasons.items() if holds)
    yield from peer.plain_limits(work)


def _simplified(work: Workload) -> tuple[str, ...]:
    note = "step=blocks without embedding and output, no causal mask, dropout everywhere (tpe)"
    return (note, *peer.plain_mlp(work, "f"))


def system(cluster: Cluster) -> System:
    """Returns the tool's system from our data sheets, with the efficiencies and latencies of its own files."""
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
    """Returns the placement of ranks in Megatron-LM's order: tensor, context, data, pipeline parallelism fill the fast
    domain one after another."""
    near = []
    for degree in (how.tp, how.tp2, how.dp, how.pp):
        near.append(math.gcd(degree, domain))
        domain //= near[-1]
    return Placed(*near)


def _breakdown(estimated: Estimate) -> dict[str, float]:
    """Returns the parts of a step under the names of our result rows; communication of the bubble is in the bubble."""
    parts = {"bubble_s": estimated.bubble, "tp_s": estimated.tensor, "pp_s": estimated.pipeline, "dp_s": estimated.data}
    return {"compute_s": estimated.seconds - sum(parts.values()), **parts}


# The search of transformer-perf-estimates: every configuration and placement that it tries, the fastest that fits. Its
# rules are facts of its tool, transformer-perf-estimates@54278b0 (``a | b``: a divides b). With n GPUs, width e, heads h,
# depth d, sequence l and a fast domain of nvs GPUs:
# tp | n, h, e; pp | min(n/tp, d), d; dp | global batch; mbs · l divisible by what shards tokens; 128 columns and rows a
# GPU at least; panels max(tp, tp2) · 2^i of 512 columns or more; placements whose product is nvs (or all, if n <= nvs).

#: Columns and rows of a GPU's product below which it does not divide further, and columns of a SUMMA panel.
_NARROWEST, _PANEL = 128, 512

Candidate = tuple[Config, Placed]


@dataclass(frozen=True)
class SearchResult:
    """The result of a search. ``best``: the fastest that fit, first the fastest; ``feasible`` of ``tried`` fit."""

    tried: int
    feasible: int
    best: tuple[tuple[Config, Placed, Estimate], ...]


def search(
    strategy: str, shape: Shape, gpus: int, global_batch_size: int, system: System, keep: int = 10
) -> SearchResult:
    """Searches all candidates. Raises :class:`InputError` for an unknown strategy or counts below one."""
    if strategy not in STRATEGIES:
        raise InputError([Problem("tpe", "strategy", strategy, " | ".join(STRATEGIES))])
    if gpus < 1 or global_batch_size < 1:
        raise InputError([Problem("tpe", "gpus, global_batch_size", f"{gpus}, {global_batch_size}", "1 or more each")])
    tried = list(candidates(strategy, shape, gpus, global_batch_size, system.domain))
    estimates = ((c, p, estimate(strategy, shape, c, p, system, global_batch_size)) for c, p in tried)
    fitting = sorted((m for m in estimates if m[2].memory <= system.capacity), key=lambda m: m[2].seconds)
    return SearchResult(len(tried), len(fitting), tuple(fitting[:keep]))


def candidates(strategy: str, shape: Shape, gpus: int, global_batch_size: int, domain: int) -> Iterator[Candidate]:
    for tp, tp2 in _tensor(strategy, shape, gpus):
        others = gpus // (tp * tp2)
        for pp in _divisors(min(others, shape.depth)):
            if others % pp or shape.depth % pp or global_batch_size % (others // pp):
                continue
            dp = others // pp
            shards = tp2 if strategy == "2d" else tp * tp2
            sizes = [c for c in _divisors(global_batch_size // dp) if c * shape.l % shards == 0]
            for panels in _panels(strategy, tp, tp2, shape.e):
                for placed in _placements(tp, tp2, dp, pp, domain):
                    yield from ((Config(dp, tp, pp, mbs, tp2, panels), placed) for mbs in sizes)


def _tensor(strategy: str, shape: Shape, gpus: int) -> Iterator[tuple[int, int]]:
    for tp in _divisors(gpus):
        if shape.h % tp or shape.e % tp:
            continue
        if strategy == "1d":
            if 3 * shape.e // tp >= _NARROWEST:
                yield tp, 1
        elif shape.e // tp >= _NARROWEST:
            for tp2 in _divisors(gpus // tp):
                if shape.l // tp2 >= _NARROWEST and (strategy == "2d-seqp" or shape.e % tp2 == 0):
                    yield tp, tp2


def _panels(strategy: str, tp: int, tp2: int, e: int) -> Iterable[int]:
    if strategy != "2d":
        return (1,)
    least = max(tp, tp2)
    if e / least < _PANEL:
        return (least,)
    count = math.ceil(math.log2(e // least))
    return tuple(n for i in range(count) if e % (n := least * 2**i) == 0 and e // n >= _PANEL)


def _placements(tp: int, tp2: int, dp: int, pp: int, domain: int) -> Iterator[Placed]:
    if tp * tp2 * dp * pp <= domain:
        yield Placed(tp, tp2, dp, pp)
        return
    for a in (a for a in _divisors(domain) if tp % a == 0):
        for b in (b for b in _divisors(domain // a) if tp2 % b == 0):
            for c in (c for c in _divisors(domain // (a * b)) if dp % c == 0):
                if pp % (domain // (a * b * c)) == 0:
                    yield Placed(a, b, c, domain // (a * b * c))


@cache
def _divisors(n: int) -> tuple[int, ...]:
    return tuple(c for c in range(1, n + 1) if n % c == 0)
