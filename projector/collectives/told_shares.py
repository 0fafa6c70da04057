"""Shares of a cluster's lines that measured collectives tell: the model turned around at the longest message.

Solved for is the constant of ``collectives/constants.yaml`` under which the model takes what was measured, its latencies
and the fill of its pipeline included; so a cluster file that states it gives the measured bandwidth back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import sqrt

from projector.collectives.bounds import bandwidth_bound
from projector.collectives.constants import constants
from projector.collectives.model import costs, seconds_of
from projector.collectives.nccl_tests import Swept
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, adding_to, raise_all
from projector.hardware.types import Cluster, GroupShape

SHORTEST = 2**20  # bytes: below it a time is latency
_LEAST, _HALVINGS = 2.0**-10, 64
_ALONE, _NVLS = "link.inter.alone", "link.nvls"


@dataclass(frozen=True, slots=True)
class Told:
    """The constant ``name`` and its ``share`` of the line, as ``swept`` tells it; ``before``: what the cluster had."""

    name: str
    share: float
    before: float
    swept: Swept


@dataclass(frozen=True, slots=True)
class Shares:
    """``cluster`` with every share of ``told``; ``notes``: what a test says besides, or why it tells nothing."""

    cluster: Cluster
    told: tuple[Told, ...]
    notes: tuple[str, ...]


def shape_of(swept: Swept, cluster: Cluster) -> GroupShape:
    """Returns the ranks of a test on the cluster's nodes. Raises InputError where a host has more of them than GPUs."""
    each = swept.ranks // swept.hosts
    if each > cluster.gpus_per_host:
        expected = f"at most {cluster.gpus_per_host}, the GPUs of a host of {cluster.name}"
        raise InputError([Problem(swept.where, "ranks of a host", each, expected)])
    hosts = cluster.gpus_per_node // cluster.gpus_per_host
    return GroupShape(swept.ranks, min(swept.ranks, each * hosts))


def modelled(swept: Swept, cluster: Cluster, nbytes: float) -> float:
    """Returns the seconds that the model gives a test at a size, with the algorithm that the test forced where the
    group runs it."""
    shape = shape_of(swept, cluster)
    ran = {cost.algorithm.partition(".")[0] for cost in costs(swept.kind, shape, cluster)}
    forced = swept.algorithm if swept.algorithm in ran else ""
    return float(seconds_of(swept.kind, nbytes, shape, cluster, algorithm=forced))


def told(tests: Iterable[Swept], cluster: Cluster) -> Shares:
    """Every share that the tests tell, inside nodes first. Of several tests of one constant that of the longest message
    tells, then that of the most nodes. Raises InputError with every test that the cluster's lines cannot carry."""
    problems: list[Problem] = []
    found: dict[str, Told] = {}
    notes: list[str] = []
    had = cluster
    for swept in _ordered(tests, cluster):
        if swept.longest[0] < SHORTEST:
            notes.append(f"{swept.where}: its longest message, {swept.longest[0]:.0f} bytes, tells latency alone")
            continue
        if _NVLS not in found and _goes_around(swept, cluster):
            cluster = replace(cluster, intra=replace(cluster.intra, in_switch_reduction=False))
            notes.append(f"{swept.where}: no faster than rings, so the switch reduces nothing")
        name = _name(swept, cluster)
        if name in found:
            continue
        with adding_to(problems):
            share = _solved(name, swept, cluster)
            if share is None:
                notes.append(f"{swept.where}: something else than {name} binds it, so it tells nothing of that")
                continue
            found[name] = Told(name, share, _share(name, had), swept)
            cluster = _with(name, share, cluster)
    raise_all(problems)
    return Shares(cluster, tuple(found.values()), tuple(notes))


def _ordered(tests: Iterable[Swept], cluster: Cluster) -> list[Swept]:
    """Inside nodes first, all-reduce first: it tells what others fall back on; then the longest message, the most nodes."""

    def order(swept: Swept) -> tuple[bool, bool, float, int]:
        nodes = shape_of(swept, cluster).nodes
        return nodes > 1, swept.kind != "all_reduce", -swept.longest[0], -nodes

    return sorted(tests, key=order)


def _name(swept: Swept, cluster: Cluster) -> str:
    """Returns the constant that the longest message of a test hangs on."""
    shape = shape_of(swept, cluster)
    level = "intra" if shape.nodes == 1 else "inter"
    if swept.kind in ("all_to_all", "send_recv"):
        return f"link.{swept.kind}.{level}"
    if shape.nodes > 1 and shape.fewest == 1:
        return _ALONE
    if swept.kind != "all_reduce":
        return f"link.{level}.{swept.kind}"
    return _NVLS if level == "intra" and _reduces(swept, cluster) else f"link.{level}"


def _reduces(swept: Swept, cluster: Cluster) -> bool:
    return cluster.intra.in_switch_reduction and swept.ranks > 2 and swept.algorithm in ("", "nvls")


def _goes_around(swept: Swept, cluster: Cluster) -> bool:
    """Whether an all-reduce that the switch may run was no faster than rings are, in a node, or between two over the whole
    line, which an exchange of halves would pass by far."""
    shape, (nbytes, seconds) = shape_of(swept, cluster), swept.longest
    if swept.kind != "all_reduce" or shape.nodes > 2 or swept.algorithm or not _reduces(swept, cluster):
        return False
    whole = _with("link.inter", 1.0, cluster)
    return float(seconds_of("all_reduce", nbytes, shape, whole, algorithm="ring")) <= seconds


def _exchanges_halves(swept: Swept, shape: GroupShape, cluster: Cluster) -> bool:
    """Reduced in the switch, two nodes need half of the line that rings need, so that links inside them mostly bind."""
    return swept.kind == "all_reduce" and shape.nodes == 2 and shape.fewest > 1 and _reduces(swept, cluster)


def _share(name: str, cluster: Cluster) -> float:
    """The constant as the cluster has it: where one kind of collective has none of its own, that of all."""
    known = constants(cluster)
    general = "link.inter" if name.startswith("link.inter") else "link.intra"
    return min(1.0, known.get(name, known[general]))


def _with(name: str, share: float, cluster: Cluster) -> Cluster:
    return replace(cluster, overrides={**cluster.overrides, name: share})


def _solved(name: str, swept: Swept, cluster: Cluster) -> float | None:
    """The share under which the model takes what the longest message took; None where no share of that line gives it.

    Raises InputError for a message faster than any algorithm over the cluster's lines, and for one a thousand times slower.
    """
    nbytes, seconds = swept.longest

    def at(share: float) -> float:
        return modelled(swept, _with(name, share, cluster), nbytes)

    least, bound = at(_LEAST), bandwidth_bound(swept.kind, nbytes, shape_of(swept, cluster), cluster)
    if not bound <= seconds <= max(least, at(1.0)):
        rates = f"{nbytes / least / 1e9:.4g} to {nbytes / bound / 1e9:.4g} GB/s over the lines of {cluster.name}"
        key = f"{swept.kind} of {nbytes:.0f} bytes"
        raise InputError([Problem(swept.where, key, f"{nbytes / seconds / 1e9:.4g} GB/s", f"{rates} (bandwidth_gbs)")])
    own, shape = min(_share(name, cluster), 1.0 - _LEAST), shape_of(swept, cluster)
    if at(1.0) > seconds or at(1.0) == at(own / 2) or (_exchanges_halves(swept, shape, cluster) and at(1.0) == at(own)):
        return None
    low, high = _LEAST, 1.0
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        low, high = (middle, high) if at(middle) > seconds else (low, middle)
    return high
