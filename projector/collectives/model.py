"""Seconds of a collective on a cluster: the fastest of the algorithms and protocols that its topology allows.

Each algorithm (one file a family) yields costs, latency + wire time + the fill of its pipeline; taking the minimum over
them switches protocols. So a time is continuous, grows with the bytes, never falls below the bandwidth bound of the
topology, and is zero for a group of one. A new algorithm is one file of :mod:`projector.collectives.algorithms`. Sizes
follow nccl-tests (see :mod:`projector.operators.types`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from projector.collectives import dispatch, file_terms
from projector.collectives.algorithms import ALGORITHMS, KINDS, direct
from projector.collectives.bounds import bandwidth_bound
from projector.collectives.network import Cost, Network, network
from projector.errors import InputError, Problem, nearest
from projector.hardware.types import Cluster, Efficiency, GroupShape
from projector.memo import BoundedCache, IdentityKey
from projector.operators.types import Collective
from projector.size import Floats, each_row, least, root

__all__ = ["ALGORITHMS", "KINDS", "Pricing", "bandwidth_bound", "best", "costs", "seconds", "seconds_of"]

DEEPEP = "deepep"
TOKEN_TRANSPORTS = (DEEPEP, "hybridep")
LOW_LATENCY = "deepep_low_latency"
ONE_SHOT = "one_shot"


def seconds(
    op: Collective, groups: Mapping[str, GroupShape], cluster: Cluster, efficiency: Efficiency | None = None
) -> float:
    """Returns the seconds of one operator on the group that it names.

    With a token transport, ``bytes`` is what one rank holds for all peers, itself included, and ``nodes_bytes`` the
    part that leaves the node after deduplication (None: an even spread). For many operators of one run use
    :class:`Pricing`. Raises InputError for an unknown kind or group.
    """
    return Pricing(groups, cluster, efficiency).seconds(op)


def seconds_of(
    kind: str,
    nbytes: ArrayLike,
    shape: GroupShape,
    cluster: Cluster,
    efficiency: Efficiency | None = None,
    algorithm: str = "",
) -> Floats:
    """Returns the seconds [same shape as ``nbytes``] of one kind of collective, by the fastest candidate.

    ``algorithm`` keeps the candidates of one algorithm only, such as ``ring``, as ``NCCL_ALGO`` does. Raises InputError
    for an unknown kind, and for an algorithm that the group cannot run.
    """
    sizes = np.asarray(nbytes, dtype=np.float64)
    candidates = costs(kind, shape, cluster, efficiency)
    if algorithm and candidates:
        names = sorted({cost.algorithm.partition(".")[0] for cost in candidates})
        candidates = tuple(cost for cost in candidates if cost.algorithm.partition(".")[0] == algorithm)
        if not candidates:
            raise InputError([Problem("collective", "algorithm", algorithm, nearest(algorithm, names))])
    return _priced(kind, candidates, shape, cluster, efficiency)(sizes)


def costs(kind: str, shape: GroupShape, cluster: Cluster, efficiency: Efficiency | None = None) -> tuple[Cost, ...]:
    """Returns every candidate of a kind of collective on a group; none for a group of one."""
    if kind not in ALGORITHMS:
        raise InputError([Problem("collective", "kind", kind, nearest(kind, KINDS))])
    if shape.size <= 1:
        return ()
    net = network(shape, cluster, efficiency)
    candidates = (cost for algorithm in ALGORITHMS[kind] for cost in algorithm(net))
    overhead = net.constants.get(f"overhead_us.{kind}", 0.0) * 1e-6
    return tuple(cost._replace(latency=cost.latency + overhead) for cost in candidates)


def best(kind: str, nbytes: float, shape: GroupShape, cluster: Cluster, efficiency: Efficiency | None = None) -> str:
    """Returns the fastest algorithm and protocol at a size, such as ``ring.ll128``; empty for a group of one."""
    candidates = costs(kind, shape, cluster, efficiency)
    return min(candidates, key=lambda cost: cost.seconds(nbytes)).algorithm if candidates and nbytes > 0 else ""


class _ClusterPrices:
    """Caches of one cluster: seconds of a number of bytes by kind, group shape and transport, and networks by shape."""

    def __init__(self) -> None:
        self.prices: BoundedCache[Callable[[float], float]] = BoundedCache(4096)
        self.networks: BoundedCache[Network] = BoundedCache(1024)


_PRICES_OF_CLUSTERS: BoundedCache[_ClusterPrices] = BoundedCache(16)


class Pricing:
    """Prices of one run's groups; the price of a group of one shape on the cluster is computed once for all runs.

    ``dispatch_units``: compute units of a token dispatch (None: the library's own number for the device).
    """

    def __init__(
        self,
        groups: Mapping[str, GroupShape],
        cluster: Cluster,
        efficiency: Efficiency | None = None,
        dispatch_units: int | None = None,
    ) -> None:
        self.groups = groups
        self._dispatch_units = dispatch_units
        self._cluster = cluster
        self._efficiency = efficiency
        self._known = _PRICES_OF_CLUSTERS.get((IdentityKey(cluster), IdentityKey(efficiency)), _ClusterPrices)

    def seconds(self, op: Collective) -> float:
        """Returns the seconds of one operator (see :func:`seconds`)."""
        shape = self._shape(op)
        if shape.size <= 1 or op.bytes <= 0:
            return 0.0
        if op.kind == "all_to_all" and (op.transport in TOKEN_TRANSPORTS or op.transport == LOW_LATENCY):
            return self._token_seconds(op, shape)
        price = self._known.prices.get(
            (op.kind, shape, op.transport), partial(self._price, op.kind, shape, op.transport)
        )
        return op.calls * price(op.bytes / op.calls)

    def algorithm(self, op: Collective) -> str:
        """Returns what runs an operator: a library's algorithm and protocol, or its kernels; empty for a group of one."""
        shape = self._shape(op)
        if shape.size <= 1 or op.bytes <= 0:
            return ""
        if op.kind == "all_to_all" and op.transport != "nccl":
            return op.transport
        return best(op.kind, op.bytes / op.calls, shape, self._cluster, self._efficiency)

    def _shape(self, op: Collective) -> GroupShape:
        shape = self.groups.get(op.group)
        if shape is None:
            raise InputError([Problem(op.name, "group", op.group, nearest(op.group, tuple(self.groups)))])
        return shape

    def _price(self, kind: str, shape: GroupShape, transport: str) -> Callable[[float], float]:
        """Returns seconds as a function of a number of bytes: plain arithmetic, a tenth of the cost of an array of one."""
        candidates = costs(kind, shape, self._cluster, self._efficiency)
        if transport == ONE_SHOT and kind == "all_to_all":
            candidates = tuple(direct.one_shot(network(shape, self._cluster, self._efficiency)))
        if _states_terms(self._cluster):
            priced = _priced(kind, candidates, shape, self._cluster, self._efficiency)
            return lambda nbytes: each_row(priced, nbytes)
        terms = _terms(candidates)

        def fastest(nbytes: float) -> float:
            side = root(nbytes)
            return least(*[latency + per_byte * nbytes + shoulder * side for latency, per_byte, shoulder in terms])

        return fastest

    def _token_seconds(self, op: Collective, shape: GroupShape) -> float:
        net = self._known.networks.get(shape, partial(network, shape, self._cluster, self._efficiency))
        if op.transport == LOW_LATENCY:
            return dispatch.low_latency_seconds(net, op.bytes)
        outside = op.bytes * (net.size - net.fewest) / net.size if op.nodes_bytes is None else op.nodes_bytes
        inside = op.bytes * (net.local - 1) / net.local
        if op.transport != DEEPEP:
            return dispatch.hybrid_seconds(net, inside, outside, op.rows)
        return dispatch.seconds(net, inside, outside, self._dispatch_units or net.constants["units.dispatch"])


def _states_terms(cluster: Cluster) -> bool:
    return any(name in cluster.overrides for name in file_terms.NAMES)


def _priced(
    kind: str, candidates: tuple[Cost, ...], shape: GroupShape, cluster: Cluster, efficiency: Efficiency | None
) -> Callable[[Floats], Floats]:
    """Returns seconds as a function of bytes, with the terms of a user's hardware file; zero for no bytes."""
    if not candidates:
        return np.zeros_like
    wire = _fastest(candidates)
    if _states_terms(cluster):
        wire = file_terms.added(kind, network(shape, cluster, efficiency), wire)
    return lambda sizes: np.where(sizes > 0, wire(sizes), 0.0)


def _fastest(candidates: tuple[Cost, ...]) -> Callable[[Floats], Floats]:
    terms = _terms(candidates)

    def fastest(sizes: Floats) -> Floats:
        roots = np.sqrt(sizes)
        shortest = np.full_like(sizes, np.inf)
        for latency, per_byte, shoulder in terms:
            np.minimum(shortest, latency + per_byte * sizes + shoulder * roots, out=shortest)
        return shortest

    return fastest


def _terms(candidates: tuple[Cost, ...]) -> list[tuple[float, float, float]]:
    """Returns (a, b, c) of a + b·S + c·sqrt(S) of each candidate, without those that another beats in all three."""
    all_terms = {(c.latency, c.per_byte, 2.0 * math.sqrt(c.fill * c.per_byte)) for c in candidates}
    return sorted(
        term
        for term in all_terms
        if not any(other != term and all(map(operator.le, other, term)) for other in all_terms)
    )
