"""Seconds of a collective on a cluster: the fastest of the algorithms and protocols that its topology allows.

Each algorithm (one file a family) yields affine costs, latency + bytes x seconds per byte; the minimum over them is the
protocol switch. So a time is continuous, grows with the bytes, never falls below the bandwidth bound of the
topology, and is zero for a group of one. A new algorithm is one file and one entry of ``ALGORITHMS``.

Sizes follow nccl-tests (see :mod:`projector.operators.types`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.collectives import direct, dispatch, hierarchical, in_switch, point_to_point, ring, tree
from projector.collectives.network import Cost, Network, network
from projector.errors import InputError, Problem, nearest
from projector.hardware.types import Cluster, Efficiency, GroupShape
from projector.operators.types import Collective

__all__ = ["ALGORITHMS", "KINDS", "Pricing", "bandwidth_bound", "best", "costs", "seconds", "seconds_of"]

Algorithm = Callable[[Network], Iterator[Cost]]

ALGORITHMS: Mapping[str, tuple[Algorithm, ...]] = {
    "all_reduce": (ring.all_reduce, tree.all_reduce, in_switch.all_reduce, direct.all_reduce),
    "all_gather": (ring.all_gather, tree.all_gather, direct.all_gather),
    "reduce_scatter": (ring.reduce_scatter, tree.reduce_scatter, direct.reduce_scatter),
    "all_to_all": (direct.all_to_all, hierarchical.all_to_all),
    "broadcast": (ring.broadcast,),
    "send_recv": (point_to_point.send_recv,),
}
KINDS = tuple(ALGORITHMS)
TOKEN_TRANSPORTS = ("deepep", "hybridep")
ONE_SHOT = 0.045
"""Share of the collective's rate that a compiler's one-shot ragged exchange reaches. fitted on one batch ladder
of DeepSeek-V3 on MI355X (the same code with and without that kernel, amd-agi/maxtext-slurm),
confirmed by the ladder of Kimi-K2: about
17 GB/s a GPU in both."""


def seconds(
    op: Collective, groups: Mapping[str, GroupShape], cluster: Cluster, efficiency: Efficiency | None = None
) -> float:
    """Seconds of one operator on the group that it names.

    With a token transport, ``bytes`` is what one rank holds for all peers, itself included, and ``nodes_bytes`` the
    part that leaves the node after deduplication (None: an even spread). For many operators of one run use
    :class:`Pricing`. Raises InputError for an unknown kind or group.
    """
    return Pricing(groups, cluster, efficiency).seconds(op)


def seconds_of(
    kind: str, nbytes: ArrayLike, shape: GroupShape, cluster: Cluster, efficiency: Efficiency | None = None
) -> NDArray[np.float64]:
    """Seconds [same shape as ``nbytes``] of one kind of collective. Raises InputError for an unknown kind."""
    sizes = np.asarray(nbytes, dtype=np.float64)
    return _cheapest(costs(kind, shape, cluster, efficiency), sizes)


def costs(kind: str, shape: GroupShape, cluster: Cluster, efficiency: Efficiency | None = None) -> tuple[Cost, ...]:
    """Every candidate of a kind on a group; none for a group of one."""
    if kind not in ALGORITHMS:
        raise InputError([Problem("collective", "kind", kind, nearest(kind, KINDS))])
    if shape.size <= 1:
        return ()
    net = network(shape, cluster, efficiency)
    found = (cost for algorithm in ALGORITHMS[kind] for cost in algorithm(net))
    overhead = net.constants.get(f"overhead_us.{kind}", 0.0) * 1e-6
    return tuple(cost._replace(latency=cost.latency + overhead) for cost in found)


def best(kind: str, nbytes: float, shape: GroupShape, cluster: Cluster, efficiency: Efficiency | None = None) -> str:
    """Name of the algorithm and protocol that wins at a size, such as ``ring.ll128``; empty for a group of one."""
    found = costs(kind, shape, cluster, efficiency)
    return min(found, key=lambda c: c.latency + c.per_byte * nbytes).algorithm if found and nbytes > 0 else ""


def bandwidth_bound(kind: str, nbytes: float, shape: GroupShape, cluster: Cluster) -> float:
    """Seconds below which no algorithm can fall: bytes that must cross a cut over the raw rate of that cut."""
    if shape.size <= 1:
        return 0.0
    net = network(shape, cluster)
    local, size, nodes = net.local, net.size, net.nodes
    if kind == "send_recv":
        return nbytes / (net.peer if nodes == 1 else net.inter)
    rounds = {"all_reduce": 1.0 if net.in_switch_reduction else 2.0}.get(kind, 1.0)
    between = {"all_reduce": 2.0}.get(kind, 1.0) * (nodes - 1) / nodes / (local * net.inter)
    inside = rounds * (local - 1) / local / net.intra
    if kind == "all_to_all":
        between = (size - local) / size / net.inter
        inside = (local - 1) / size / net.intra
    elif kind == "broadcast":
        between, inside = (1.0 / (local * net.inter) if nodes > 1 else 0.0), 1.0 / net.intra
    return nbytes * max(between, inside)


class Pricing:
    """Prices of one run's groups; remembers each (kind, group), so that a known operator costs a microsecond."""

    def __init__(
        self, groups: Mapping[str, GroupShape], cluster: Cluster, efficiency: Efficiency | None = None
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._efficiency = efficiency
        self._costs: dict[tuple[str, str], tuple[Cost, ...]] = {}
        self._networks: dict[str, Network] = {}
        self._one_shot = efficiency.get("link.one_shot", ONE_SHOT) if efficiency else ONE_SHOT

    def seconds(self, op: Collective) -> float:
        """Seconds of one operator (see :func:`seconds`)."""
        shape = self._groups.get(op.group)
        if shape is None:
            raise InputError([Problem(op.name, "group", op.group, nearest(op.group, tuple(self._groups)))])
        if shape.size <= 1 or op.bytes <= 0:
            return 0.0
        if op.transport in TOKEN_TRANSPORTS and op.kind == "all_to_all":
            return self._token_seconds(op, shape)
        key = (op.kind, op.group)
        if key not in self._costs:
            self._costs[key] = costs(op.kind, shape, self._cluster, self._efficiency)
        seconds = min(c.latency + c.per_byte * op.bytes for c in self._costs[key])
        return seconds / self._one_shot if op.transport == "one_shot" else seconds

    def _token_seconds(self, op: Collective, shape: GroupShape) -> float:
        if op.group not in self._networks:
            self._networks[op.group] = network(shape, self._cluster, self._efficiency)
        net = self._networks[op.group]
        outside = op.bytes * (net.nodes - 1) / net.nodes if op.nodes_bytes is None else op.nodes_bytes
        return dispatch.seconds(net, op.bytes * (net.local - 1) / net.local, outside)


def _cheapest(candidates: tuple[Cost, ...], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    if not candidates:
        return np.zeros_like(sizes)
    latency = np.array([c.latency for c in candidates])
    per_byte = np.array([c.per_byte for c in candidates])
    times = np.min(latency + per_byte * sizes[..., None], axis=-1)
    return np.where(sizes > 0, times, 0.0)
