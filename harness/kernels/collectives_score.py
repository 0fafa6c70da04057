"""Scores the collective model on measured collectives. A figure is compared as it was taken: with the algorithm that its
source forced, and with the host time that its way of timing holds (:data:`HOSTS`), since the model's seconds are those
of the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from harness.kernels.collectives_table import LOW_LATENCY, TOKENS, CollectiveRecord
from projector.collectives import dispatch
from projector.collectives.constants import LIBRARY, architecture, sections
from projector.collectives.model import seconds_of
from projector.collectives.network import network
from projector.dataclass import dataclass
from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import Cluster, GroupShape
from projector.io.rows import grouped

LARGE = 2**20


@dataclass(frozen=True, slots=True)
class Host:
    """The host time in a way of timing: ``call`` seconds before every call, ``launch`` a device from one host thread."""

    call: float = 0.0
    launch: float = 0.0

    def seconds(self, device: float, gpus: int) -> float:
        return max(device + self.call, gpus * self.launch)


HOSTS: Mapping[str, Host] = {
    # nccl-tests -g 8: one thread launches on all devices; small all-reduces of four systems take 3.2 to 5.5 us a device.
    "one host thread": Host(launch=4.5e-6),
    # Events around each call: the projector's default for the issue of a collective (Execution.collective_us).
    "torch.distributed": Host(call=25e-6),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A record and the model's answer in seconds. ``strange``: the answer for a fabric without a table
    (:func:`strange`). ``limit``: the record is an acceptance threshold, so an upper bound only."""

    record: CollectiveRecord
    seconds: float
    strange: float

    @property
    def error(self) -> float:
        return self.seconds / (self.record.time_us * 1e-6) - 1.0

    @property
    def strange_error(self) -> float:
        return self.strange / (self.record.time_us * 1e-6) - 1.0

    @property
    def limit(self) -> bool:
        return self.record.condition == "threshold"

    @property
    def fabric(self) -> str:
        suffix = {TOKENS: ", tokens", LOW_LATENCY: ", low latency"}.get(self.record.kind, "")
        return f"{self.record.cluster}, {'one node' if self.record.nodes == 1 else 'nodes'}{suffix}"

    @property
    def origin(self) -> str:
        """Returns the repository or paper of the source, without revision and place in it."""
        return self.record.source.split("@")[0].split(" ")[0].split("#")[0]


def score(records: Iterable[CollectiveRecord]) -> tuple[Figure, ...]:
    """Returns every record beside the seconds that the model gives it."""
    records = tuple(records)
    clusters = {name: catalogue.cluster(name) for name in {record.cluster for record in records}}
    unknown = {name: strange(cluster) for name, cluster in clusters.items()}
    return tuple(Figure(r, projected(r, clusters[r.cluster]), projected(r, unknown[r.cluster])) for r in records)


def strange(cluster: Cluster) -> Cluster:
    """Returns the cluster as one of a fabric that no table covers: lines and topology as stated, no share of its
    architecture's links or its network's technology, and the hop of its GPU's usual network. Token kernels keep their
    shares."""
    library = sections()[LIBRARY[cluster.gpu.vendor]]
    links = (name for name in sections().get(architecture(cluster), {}) if name.startswith("link."))
    shares = {name: (library.get(name) or library["link.intra"]).value for name in links}
    usual = catalogue.cluster(cluster.gpu.name).inter.latency
    return replace(
        cluster, inter=replace(cluster.inter, technology="", latency=usual), overrides={**shares, **cluster.overrides}
    )


def projected(record: CollectiveRecord, cluster: Cluster) -> float:
    """Returns the seconds that the model gives a record on a cluster, host time of its condition included."""
    shape = GroupShape(record.gpus, record.gpus // record.nodes)
    if record.kind == LOW_LATENCY:
        return dispatch.low_latency_seconds(network(shape, cluster), record.bytes)
    if record.kind == TOKENS:
        inside = record.bytes * (shape.most - 1) / shape.most
        return dispatch.seconds(network(shape, cluster), inside, record.nodes_bytes or 0.0, record.sms)
    try:
        device = float(seconds_of(record.kind, record.bytes, shape, cluster, algorithm=record.algorithm))
    except InputError:  # this group cannot run the algorithm that the source forced, so that the library chose
        device = float(seconds_of(record.kind, record.bytes, shape, cluster))
    return HOSTS.get(record.condition, Host()).seconds(device, shape.most)


def levels(found: Iterable[Figure]) -> list[dict[str, Any]]:
    """Returns the median and worst absolute error by fabric and size class (``large``: at least 1 MiB); thresholds are left
    out. ``strange``: the median error without the fabric's table, ``bias`` the median signed error without that table."""
    groups = grouped(((figure.fabric, figure.record.bytes >= LARGE), figure) for figure in _measured(found))
    rows = []
    for (fabric, large), figures in sorted(groups.items()):
        errors, unknown = [abs(f.error) for f in figures], [f.strange_error for f in figures]
        without = {"strange": median(map(abs, unknown)), "bias": median(unknown)}
        known = {"count": len(figures), "median": median(errors), "worst": max(errors)}
        rows.append({"fabric": fabric, "large": large, **known, **without})
    return rows


def held_out(found: Iterable[Figure]) -> dict[tuple[str, bool, str], float]:
    """Returns the median absolute error of each source after one factor a fabric and size class, fitted to the *other*
    sources, where there are several. A level that rests on a constant fitted to one source shows a large error here."""
    groups: dict[tuple[str, bool], dict[str, list[float]]] = {}
    for figure in _measured(found):
        by_source = groups.setdefault((figure.fabric, figure.record.bytes >= LARGE), {})
        by_source.setdefault(figure.origin, []).append(math.log1p(figure.error))
    result = {}
    for (fabric, large), by_source in groups.items():
        for source, errors in by_source.items():
            others = [error for name, part in by_source.items() if name != source for error in part]
            if others:
                bias = median(others)
                result[fabric, large, source] = median(abs(math.expm1(error - bias)) for error in errors)
    return result


def _measured(found: Iterable[Figure]) -> Iterable[Figure]:
    return (figure for figure in found if not figure.limit)
