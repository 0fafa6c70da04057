"""Shares of a cluster's links that measured collectives imply: the model solved for a constant at the longest message.

The unknown is the constant of ``collectives/constants.yaml`` under which the model takes as long as was measured, its
latencies and the fill of its pipeline included; so a cluster file that states it gives the measured bandwidth back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import sqrt

from projector.collectives.bounds import bandwidth_bound
from projector.collectives.constants import constants
from projector.collectives.model import costs, seconds_of
from projector.collectives.nccl_tests import CollectiveTest
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, collecting_into, raise_all
from projector.hardware.types import Cluster, GroupShape

SHORTEST = 2**20  # bytes: below it a time is latency
_LEAST, _HALVINGS = 2.0**-10, 64
_ALONE, _NVLS = "link.inter.alone", "link.nvls"


@dataclass(frozen=True, slots=True)
class MeasuredShare:
    """The constant ``name`` and its ``share`` of the link rate, as ``swept`` implies it; ``before``: the cluster's own."""

    name: str
    share: float
    before: float
    swept: CollectiveTest


@dataclass(frozen=True, slots=True)
class Shares:
    """The ``cluster`` with every share of ``told``; ``notes``: what a test says besides, or why it implies no share."""

    cluster: Cluster
    told: tuple[MeasuredShare, ...]
    notes: tuple[str, ...]


def shape_of(swept: CollectiveTest, cluster: Cluster) -> GroupShape:
    """Returns the ranks of a test on the cluster's nodes. Raises InputError where a host has more ranks than GPUs."""
    per_host = swept.ranks // swept.hosts
    if per_host > cluster.gpus_per_host:
        expected = f"at most {cluster.gpus_per_host}, the GPUs of a host of {cluster.name}"
        raise InputError([Problem(swept.where, "ranks of a host", per_host, expected)])
    hosts = cluster.gpus_per_node // cluster.gpus_per_host
    return GroupShape(swept.ranks, min(swept.ranks, per_host * hosts))


def modelled(swept: CollectiveTest, cluster: Cluster, nbytes: float) -> float:
    """Returns the seconds that the model gives a test at a size, by the algorithm that the test forced, if it can run."""
    shape = shape_of(swept, cluster)
    runnable = {cost.algorithm.partition(".")[0] for cost in costs(swept.kind, shape, cluster)}
    forced = swept.algorithm if swept.algorithm in runnable else ""
    return float(seconds_of(swept.kind, nbytes, shape, cluster, algorithm=forced))


def told(tests: Iterable[CollectiveTest], cluster: Cluster) -> Shares:
    """Returns every share that the tests imply, inside nodes first. Where several tests concern one constant the longest
    message decides, then the most nodes. Raises InputError with every test that the cluster's links cannot carry."""
    problems: list[Problem] = []
    shares: dict[str, MeasuredShare] = {}
    notes: list[str] = []
    original = cluster
    for swept in _ordered(tests, cluster):
        if swept.longest[0] < SHORTEST:
            notes.append(f"{swept.where}: its longest message, {swept.longest[0]:.0f} bytes, tells latency alone")
            continue
        if _NVLS not in shares and _no_faster_than_rings(swept, cluster):
            cluster = replace(cluster, intra=replace(cluster.intra, in_switch_reduction=False))
            notes.append(f"{swept.where}: no faster than rings, so the switch reduces nothing")
        name = _constant_of(swept, cluster)
        if name in shares:
            continue
        with collecting_into(problems):
            share = _solve(name, swept, cluster)
            if share is None:
                notes.append(f"{swept.where}: something else than {name} binds it, so it tells nothing of that")
                continue
            shares[name] = MeasuredShare(name, share, _share(name, original), swept)
            cluster = _with_share(name, share, cluster)
    raise_all(problems)
    return Shares(cluster, tuple(shares.values()), tuple(notes))


def _ordered(tests: Iterable[CollectiveTest], cluster: Cluster) -> list[CollectiveTest]:
    """Sorts tests: inside nodes first, all-reduce first (others fall back on it), then longest message, most nodes."""

    def order(swept: CollectiveTest) -> tuple[bool, bool, float, int]:
        nodes = shape_of(swept, cluster).nodes
        return nodes > 1, swept.kind != "all_reduce", -swept.longest[0], -nodes

    return sorted(tests, key=order)


def _constant_of(swept: CollectiveTest, cluster: Cluster) -> str:
    """Returns the constant on which the time of a test's longest message depends."""
    shape = shape_of(swept, cluster)
    level = "intra" if shape.nodes == 1 else "inter"
    if swept.kind in ("all_to_all", "send_recv"):
        return f"link.{swept.kind}.{level}"
    if shape.nodes > 1 and shape.fewest == 1:
        return _ALONE
    if swept.kind != "all_reduce":
        return f"link.{level}.{swept.kind}"
    return _NVLS if level == "intra" and _reduces_in_switch(swept, cluster) else f"link.{level}"


def _reduces_in_switch(swept: CollectiveTest, cluster: Cluster) -> bool:
    return cluster.intra.in_switch_reduction and swept.ranks > 2 and swept.algorithm in ("", "nvls")


def _no_faster_than_rings(swept: CollectiveTest, cluster: Cluster) -> bool:
    """Returns whether an all-reduce that the switch may run was no faster than rings are, in a node, or between two
    nodes over the whole link, which an exchange of halves would beat by far."""
    shape, (nbytes, seconds) = shape_of(swept, cluster), swept.longest
    if swept.kind != "all_reduce" or shape.nodes > 2 or swept.algorithm or not _reduces_in_switch(swept, cluster):
        return False
    full_rate = _with_share("link.inter", 1.0, cluster)
    return float(seconds_of("all_reduce", nbytes, shape, full_rate, algorithm="ring")) <= seconds


def _exchanges_halves(swept: CollectiveTest, shape: GroupShape, cluster: Cluster) -> bool:
    """Returns whether two nodes, with sums in the switch, need half of a ring's line: links inside mostly bind."""
    return swept.kind == "all_reduce" and shape.nodes == 2 and shape.fewest > 1 and _reduces_in_switch(swept, cluster)


def _share(name: str, cluster: Cluster) -> float:
    """Returns the cluster's value of the constant; for a kind of collective without its own, that of all kinds."""
    known = constants(cluster)
    general = "link.inter" if name.startswith("link.inter") else "link.intra"
    return min(1.0, known.get(name, known[general]))


def _with_share(name: str, share: float, cluster: Cluster) -> Cluster:
    return replace(cluster, overrides={**cluster.overrides, name: share})


def _solve(name: str, swept: CollectiveTest, cluster: Cluster) -> float | None:
    """Returns the share under which the model takes as long as the longest message took; None where no share gives that.

    Raises InputError for a message faster than any algorithm over the cluster's links, and for one a thousand times slower.
    """
    nbytes, seconds = swept.longest

    def at(share: float) -> float:
        return modelled(swept, _with_share(name, share, cluster), nbytes)

    least, bound = at(_LEAST), bandwidth_bound(swept.kind, nbytes, shape_of(swept, cluster), cluster)
    if not bound <= seconds <= max(least, at(1.0)):
        rates = f"{nbytes / least / 1e9:.4g} to {nbytes / bound / 1e9:.4g} GB/s over the lines of {cluster.name}"
        key = f"{swept.kind} of {nbytes:.0f} bytes"
        raise InputError([Problem(swept.where, key, f"{nbytes / seconds / 1e9:.4g} GB/s", f"{rates} (bandwidth_gbs)")])
    current, shape = min(_share(name, cluster), 1.0 - _LEAST), shape_of(swept, cluster)
    if (
        at(1.0) > seconds
        or at(1.0) == at(current / 2)
        or (_exchanges_halves(swept, shape, cluster) and at(1.0) == at(current))
    ):
        return None
    low, high = _LEAST, 1.0
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        low, high = (middle, high) if at(middle) > seconds else (low, middle)
    return high
