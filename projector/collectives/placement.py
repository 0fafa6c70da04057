"""Which ranks of a process group share a node, from Megatron's rank order and the size of the node.

Ranks are numbered with tensor parallelism fastest: tp-cp-dp-pp for the dense layers, etp-ep-edp-pp for the experts
(Megatron-LM ``megatron/core/parallel_state.py``, order ``tp-cp-ep-dp-pp``; expert groups fold ep into cp and dp);
SUMMA's second dimension, tp2, follows tp. Under ``fast_domain`` the ranks of a block are numbered in that order first,
and then the blocks.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from projector.errors import InputError, Problem
from projector.hardware.types import Cluster, GroupShape
from projector.workload.recipe import Recipe

HOPS = ("pp_node", "pp_pod", "pp_beyond")
"""Group keys of two neighbouring pipeline stages: in one node, on two nodes, in two pods."""


def groups(recipe: Recipe, gpus: int, cluster: Cluster, *, shards_apart: bool = False) -> dict[str, GroupShape]:
    """Returns the shape of every process group of a run on ``gpus`` ranks of ``cluster``.

    Keys: ``tp``, ``tp2``, ``cp``, ``dp`` (gradients of dense weights: dp·cp ranks), ``dp_shard``, ``dp_replicate`` (its two
    levels under HSDP or several distributed-optimizer instances; shard ranks are consecutive in the group, replicas are with
    ``shards_apart``), ``ep``, ``etp``, ``tp_ep`` (the experts of one layer: etp·ep), ``edp``, ``edp_shard``,
    ``edp_replicate``, ``pp``, ``world``, and :data:`HOPS`, of which :func:`hop` names that of two stages. Where groups of a
    kind differ in how they lie on the nodes, the shape is that of the group on most nodes, then with the emptiest node:
    everybody waits for it. The parallel sizes divide ``gpus``. Raises InputError when ``fast_domain`` does not fit.
    """
    pod = cluster.inter.size if cluster.outer is not None else None
    return dict(_groups(_placing(recipe), gpus, ranks_per_node(gpus, cluster), pod, shards_apart, recipe.domain))


_placing = attrgetter(
    *("tp", "tp2", "cp", "pp", "ep", "etp", "data_parallel_shard_size", "num_distributed_optimizer_instances")
)


def hop(
    first: int, second: int, stage: int, node: int, pod: int | None = None, domain: tuple[int, ...] | None = None
) -> str:
    """Returns which of :data:`HOPS` lies between the pipeline ranks ``first`` and ``second`` of ``stage`` GPUs each.

    Each GPU of a stage sends to the one in its place: the farthest of these pairs counts, since the stage waits for it.
    ``domain``: ranks of each group in a fast domain; its blocks are what is numbered then.
    """
    if domain is not None:
        block, near = math.prod(domain), domain[-1]
        # a stage of s ranks has s·near/block blocks, and ``near`` consecutive stages share each of them
        first, second, stage = first // near, second // near, stage * near // block
        node, pod = max(1, node // block), None if pod is None else max(1, pod // block)
    if first == second or _share_unit(first, second, stage, node):
        return HOPS[0]
    return HOPS[1] if pod is None or _share_unit(first, second, stage, pod) else HOPS[2]


@functools.cache
def _share_unit(first: int, second: int, stage: int, unit: int) -> bool:
    return all((first * stage + i) // unit == (second * stage + i) // unit for i in range(stage))


def ranks_per_node(gpus: int, cluster: Cluster) -> int:
    """Returns the ranks of the run in each node (NVLink domain).

    A domain of several hosts is filled evenly: a run on more GPUs than one domain holds takes the largest divisor of
    ``gpus`` that fits, in whole hosts if it can (64 of the 72 of an NVL72 rack for a power of two), because job
    schedulers give every rack the same number of trays (NVIDIA's published GB200 runs: multiples of 64 GPUs).
    """
    size = cluster.gpus_per_node
    if gpus <= size or size == cluster.gpus_per_host:
        return size
    fitting = [n for n in range(1, size + 1) if gpus % n == 0 and 2 * n > size]
    whole = [n for n in fitting if n % cluster.gpus_per_host == 0]
    return max(whole or fitting or [size])


@functools.cache
def _groups(
    sizes: tuple[Any, ...], gpus: int, node: int, pod: int | None, shards_apart: bool, domain: tuple[int, ...] | None
) -> Mapping[str, GroupShape]:
    tp, tp2, cp, pp, ep, etp, shard, instances = sizes
    stage, width = gpus // pp, tp * tp2
    dp, edp = stage // width, stage // (etp * ep)
    inner = min(shard or dp, dp // (instances or 1))
    copies = dp // inner
    expert_copies = copies if edp % copies == 0 else 1
    expert_inner = edp // expert_copies

    def shape(stride: int, size: int) -> GroupShape:
        return shape_of(stride, size, gpus, node, pod)

    return {
        "tp": shape(1, tp),
        "tp2": shape(tp, tp2),
        "cp": shape(width, cp),
        "dp": shape(width, dp),
        "dp_shard": shape(width * copies, inner) if shards_apart else shape(width, inner),
        "dp_replicate": shape(width, copies) if shards_apart else shape(width * inner, copies),
        "etp": shape(1, etp),
        "ep": shape(etp, ep),
        "tp_ep": shape(1, etp * ep),
        "edp": shape(etp * ep, edp),
        "edp_shard": shape(etp * ep, expert_inner),
        "edp_replicate": shape(etp * ep * expert_inner, expert_copies),
        "pp": shape(stage, pp),
        "pp_node": GroupShape(2, 2, pods=None if pod is None else 1),
        "pp_pod": GroupShape(2, 1, pods=None if pod is None else 1),
        "pp_beyond": GroupShape(2, 1, pods=None if pod is None else 2),
        "world": shape(1, gpus),
        **(_in_blocks((tp, tp2, cp, dp // cp, pp), domain, gpus, node, pod) if domain else {}),
    }


def _in_blocks(
    sizes: tuple[int, ...], domain: tuple[int, ...], gpus: int, node: int, pod: int | None
) -> dict[str, GroupShape]:
    """Returns the shapes of the dense groups where ``domain`` ranks of each are a block inside a node."""
    block = math.prod(domain)
    if node % block or any(size % near for size, near in zip(sizes, domain, strict=True)):
        expected = f"ranks of tp, tp2, cp, dp, pp that divide {sizes}, and by product {node}"
        raise InputError([Problem("recipe", "fast_domain", domain, expected)])
    blocks = tuple(size // near for size, near in zip(sizes, domain, strict=True))
    units = gpus // block, node // block, None if pod is None else max(1, pod // block)

    def shape(first: int, last: int) -> GroupShape:
        """Returns the shape of the groups ``first`` to ``last`` (excluded) of the order, taken together."""
        outer = shape_of(math.prod(blocks[:first]), math.prod(blocks[first:last]), *units)
        near = math.prod(domain[first:last])
        counts = outer.counts and tuple(near * count for count in outer.counts)
        return GroupShape(near * outer.size, near * outer.per_node, counts, outer.pods)

    dense = shape(2, 4)
    named = {"tp": shape(0, 1), "tp2": shape(1, 2), "cp": shape(2, 3), "pp": shape(4, 5)}
    return {**named, "dp": dense, "dp_shard": dense}


def shape_of(stride: int, size: int, gpus: int, node: int, pod: int | None = None) -> GroupShape:
    """Returns the shape of the groups {base + i·stride, i < size} of ``gpus`` ranks, ``node`` consecutive ranks a node.

    All groups are examined; the one that touches most pods, then most nodes, then has the emptiest node counts.
    ``pod``: ranks of a pod, where the network has a third level.
    """
    if size <= 1:
        return GroupShape(1, 1)
    pods = None if pod is None else _most_touched(stride, size, gpus, pod)
    even = _uniform_count(stride, size, node)
    if even is not None:
        return GroupShape(size, even, pods=pods)
    counts = _worst_counts(stride, size, gpus, node)
    per_node = -(-size // len(counts))
    regular = (per_node,) * (len(counts) - 1) + (size - per_node * (len(counts) - 1),)
    return GroupShape(size, per_node, None if sorted(regular) == sorted(counts) else counts, pods)


def _uniform_count(stride: int, size: int, node: int) -> int | None:
    """Returns the ranks per node where all groups lie alike, else None."""
    span = stride * size
    if node % span == 0:
        return size
    if stride % node == 0:
        return 1
    return node // stride if node % stride == 0 and span % node == 0 else None


def _worst_counts(stride: int, size: int, gpus: int, node: int) -> tuple[int, ...]:
    """Returns the ranks in each node of the group that is spread worst, fullest node first."""
    spread = (
        tuple(sorted(Counter((base + i * stride) // node for i in range(size)).values(), reverse=True))
        for base in _first_ranks(stride, size, gpus, node)
    )
    return max(spread, key=lambda counts: (len(counts), -counts[-1], counts[0]))


def _most_touched(stride: int, size: int, gpus: int, pod: int) -> int:
    return max(len({(base + i * stride) // pod for i in range(size)}) for base in _first_ranks(stride, size, gpus, pod))


def _first_ranks(stride: int, size: int, gpus: int, unit: int) -> Iterator[int]:
    """Yields the first ranks of groups, up to where a block of groups begins on a boundary of ``unit`` ranks again."""
    span = stride * size
    period = min(gpus, math.lcm(span, unit))
    return (block + i for block in range(0, period, span) for i in range(stride))
