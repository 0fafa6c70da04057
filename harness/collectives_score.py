"""Scores the collective model on measured collectives: third-party figures in the schema of ``collectives.csv``.

Columns used: ``source, gpu, dtype, op, num_gpus, num_nodes, interconnect, algorithm, message_bytes, metric, value,
time_us, notes``. A figure is compared as it was taken: with the algorithm that the source forced, and with the host
time that its way of timing holds (see :data:`TIMINGS`), since the model's seconds are those of the device.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from projector.collectives import dispatch
from projector.collectives.model import ALGORITHMS, seconds_of
from projector.collectives.network import network
from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import Cluster, GroupShape

__all__ = ["Figure", "Level", "Timing", "figures", "held_out", "levels", "table"]

LARGE = 2**20


@dataclass(frozen=True, slots=True)
class Timing:
    """Host time of a way of timing: ``call`` seconds before every call, ``launch`` a device from one host thread."""

    call: float = 0.0
    launch: float = 0.0

    def seconds(self, device: float, gpus: int) -> float:
        return max(device + self.call, gpus * self.launch)


# How a source timed, with the host's share.
TIMINGS: Mapping[str, Timing] = {
    # nccl-tests -g 8 (4 on GB200): one thread launches on every device (Benchmarks/NVIDIA/NCCLBandwidth.py); 3.2 to
    # 5.5 us a device over its four systems.
    "Azure/AI-benchmarking-guide": Timing(launch=4.5e-6),
    # torch.distributed, events around each call: the projector's default of a collective's issue (Execution.collective_us).
    "torch.distributed": Timing(call=25e-6),
}
_KINDS = {"sendrecv": "send_recv"}
_FORCED = {"NVLS": "nvls", "Ring": "ring", "Ring (NVLS off)": "ring"}
# DeepEP README: the settings of its tables that the figures' notes leave out.
_TOKENS = {"V1": 4096.0, "V2": 8192.0, "low": 128.0}
_HIDDEN, _TOP_K, _EXPERTS, _GROUP_LIMIT = 7168.0, 8, 256, 4
_ROW = {"bf16": 2.0 * _HIDDEN, "fp8": _HIDDEN * (1.0 + 4.0 / 128.0)}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure and the model's answer, both in seconds. ``limit``: an acceptance threshold, so an upper bound only."""

    fabric: str
    source: str
    kind: str
    algorithm: str
    gpus: int
    nodes: int
    nbytes: float
    measured: float
    projected: float
    limit: bool = False

    @property
    def error(self) -> float:
        return self.projected / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Level:
    """Absolute errors of one fabric and size class."""

    fabric: str
    large: bool
    count: int
    median: float
    worst: float


def figures(path: Path) -> tuple[Figure, ...]:
    """Every row that a modelled library produced and that states a time, or a bandwidth of known bytes."""
    with path.open(encoding="utf-8", newline="") as file:
        found = (_figure(row) for row in csv.DictReader(file))
        return tuple(figure for figure in found if figure is not None)


def levels(found: Iterable[Figure]) -> tuple[Level, ...]:
    """Median and worst absolute error by fabric, at least 1 MiB and below; thresholds are left out."""
    groups: dict[tuple[str, bool], list[float]] = {}
    for figure in found:
        if not figure.limit:
            groups.setdefault((figure.fabric, figure.nbytes >= LARGE), []).append(abs(figure.error))
    return tuple(
        Level(fabric, large, len(errors), median(errors), max(errors))
        for (fabric, large), errors in sorted(groups.items())
    )


def held_out(found: Sequence[Figure]) -> dict[tuple[str, bool, str], float]:
    """Median absolute error of each source after one factor a fabric and size class, fitted to the *other* sources.

    Only where there are several. A level that rests on a constant fitted to one source falls apart here.
    """
    errors: dict[tuple[str, bool], dict[str, list[float]]] = {}
    for figure in found:
        if not figure.limit:
            by_source = errors.setdefault((figure.fabric, figure.nbytes >= LARGE), {})
            by_source.setdefault(figure.source, []).append(math.log1p(figure.error))
    result = {}
    for (fabric, large), by_source in errors.items():
        for source, own in by_source.items():
            others = [error for name, part in by_source.items() if name != source for error in part]
            if others:
                bias = median(others)
                result[fabric, large, source] = median(abs(math.expm1(error - bias)) for error in own)
    return result


def table(found: Sequence[Figure]) -> str:
    """The levels as text."""
    lines = [f"{'fabric':34} {'size':>8} {'rows':>4} {'median':>7} {'worst':>7}"]
    for level in levels(found):
        size = ">= 1 MiB" if level.large else "< 1 MiB"
        lines.append(f"{level.fabric:34} {size:>8} {level.count:4d} {level.median:7.1%} {level.worst:7.1%}")
    return "\n".join(lines)


def _figure(row: Mapping[str, str]) -> Figure | None:
    if "MSCCL" in row["notes"]:  # another library's kernel
        return None
    nodes, gpus = int(row["num_nodes"]), int(row["num_gpus"])
    cluster = _cluster(row, nodes)
    shape = GroupShape(gpus, gpus // nodes)
    kind = _KINDS.get(row["op"], row["op"])
    if kind in ALGORITHMS:
        return _collective(row, kind, shape, cluster)
    if kind.startswith("moe_"):
        return _tokens(row, kind, shape, cluster)
    return None


def _cluster(row: Mapping[str, str], nodes: int) -> Cluster:
    if nodes > 1 and "EFA" in row["interconnect"]:
        return catalogue.cluster(f"{catalogue.find_gpu(row['gpu'])}_efa")
    return catalogue.cluster(row["gpu"])


def _collective(row: Mapping[str, str], kind: str, shape: GroupShape, cluster: Cluster) -> Figure | None:
    if not (row["time_us"] and row["message_bytes"]):
        return None
    size = float(row["message_bytes"])
    algorithm = _FORCED.get(row["algorithm"], "")
    try:
        device = float(seconds_of(kind, size, shape, cluster, algorithm=algorithm))
    except InputError:  # the source forced an algorithm that this group cannot run, so that the library chose
        device = float(seconds_of(kind, size, shape, cluster))
    timing = next((known for name, known in TIMINGS.items() if name in row["source"] + _framework(row)), Timing())
    return Figure(
        fabric=_fabric(cluster, shape, ""),
        source=_origin(row),
        kind=kind,
        algorithm=row["algorithm"],
        gpus=shape.size,
        nodes=shape.nodes,
        nbytes=size,
        measured=float(row["time_us"]) * 1e-6,
        projected=timing.seconds(device, shape.size),
        limit="threshold" in row["notes"],
    )


def _framework(row: Mapping[str, str]) -> str:
    return "torch.distributed" if "torch.distributed" in row["notes"] or "AWS P6" in row["notes"] else ""


def _tokens(row: Mapping[str, str], kind: str, shape: GroupShape, cluster: Cluster) -> Figure | None:
    net = network(shape, cluster)
    per_token = _ROW[row["dtype"]]
    if "low_latency" in kind:
        nbytes = _TOKENS["low"] * _TOP_K * per_token
        projected, measured = dispatch.low_latency_seconds(net, nbytes), float(row["time_us"] or 0) * 1e-6
    elif row["metric"] == "bottleneck_bandwidth_gbs":
        tokens = _TOKENS["V2" if "V2" in row["notes"] else "V1"]
        reached = min(shape.nodes, _GROUP_LIMIT)
        ranks = tokens * per_token * _distinct(reached * shape.most, reached / shape.nodes)
        outer = tokens * per_token * _distinct(reached, reached / shape.nodes)
        leaves = outer * (shape.nodes - 1) / shape.nodes
        stated = re.search(r"(\d+) SMs", row["notes"])
        sms = float(stated[1]) if stated else None
        projected = dispatch.seconds(net, ranks * (shape.most - 1) / shape.most, leaves, sms)
        # the source counts what stays on the rank or in the node as well
        nbytes = outer if shape.nodes > 1 else ranks
        measured = nbytes / (float(row["value"]) * 1e9)
    else:
        nbytes = float(row["message_bytes"] or 0)
        projected = dispatch.seconds(net, nbytes * (shape.most - 1) / shape.most, 0.0)
        measured = float(row["time_us"] or 0) * 1e-6
    if nbytes <= 0 or measured <= 0:
        return None
    return Figure(
        fabric=_fabric(cluster, shape, ", low latency" if "low_latency" in kind else ", tokens"),
        source=_origin(row),
        kind=kind,
        algorithm=row["algorithm"],
        gpus=shape.size,
        nodes=shape.nodes,
        nbytes=nbytes,
        measured=measured,
        projected=projected,
    )


def _distinct(blocks: int, share: float) -> float:
    """Expected distinct blocks, of ``blocks`` equal ones that hold ``share`` of the experts, which top-k draws reach."""
    experts = round(_EXPERTS * share)
    return blocks * (1.0 - math.comb(experts - experts // blocks, _TOP_K) / math.comb(experts, _TOP_K))


def _fabric(cluster: Cluster, shape: GroupShape, suffix: str) -> str:
    return f"{cluster.name}, {'one node' if shape.nodes == 1 else 'nodes'}{suffix}"


def _origin(row: Mapping[str, str]) -> str:
    return row["source"].split("@")[0].split(" ")[0].split("#")[0]
