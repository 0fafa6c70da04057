"""Measured collectives: ``measured/collectives/<cluster>.csv``, and the third-party table that they come from.

One row is one collective at one size; columns are described in ``measured/collectives/README.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

from projector.collectives import nccl_tests
from projector.collectives.model import KINDS
from projector.collectives.told_shares import shape_of
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware import catalogue
from projector.io import csv_file

TOKENS, LOW_LATENCY = "tokens", "tokens_low_latency"
CONDITIONS = ("nccl-tests", "one host thread", "torch.distributed", "threshold", "kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One figure. ``bytes`` as the collective model counts them; ``nodes_bytes``: of token kernels, what leaves the node.

    ``algorithm``: forced on the library, or empty; ``sms``: multiprocessors of a token kernel, where stated;
    ``condition``: one of :data:`CONDITIONS`.
    """

    cluster: str
    kind: str
    gpus: int
    nodes: int
    bytes: float
    nodes_bytes: float | None = None
    time_us: float
    algorithm: str = ""
    sms: float | None = None
    condition: str
    source: str


_WHAT = "a table of collectives"
COLUMNS = tuple(field.name for field in fields(CollectiveRecord) if field.name != "cluster")


def read(folder: Path) -> tuple[CollectiveRecord, ...]:
    """Every record of a folder of tables. Raises InputError with every mistake in them."""
    problems: list[Problem] = []
    found: list[CollectiveRecord] = []
    for path in sorted(folder.glob("*.csv")):
        columns, rows = csv_file.read(path, _WHAT)
        if columns != COLUMNS:
            problems.append(Problem(str(path), "columns", ", ".join(columns), ", ".join(COLUMNS)))
            continue
        for number, row in enumerate(rows, 2):
            try:
                found.append(_record(path.stem, row))
            except (ValueError, TypeError) as error:
                problems.append(Problem(f"{path}:{number}", "row", str(error), "a record (README.md)"))
    if problems:
        raise InputError(problems)
    return tuple(found)


def read_tests(paths: Iterable[Path], cluster: str = "") -> tuple[CollectiveRecord, ...]:
    """Every time that nccl-tests or rccl-tests printed, on ``cluster`` (default: the usual one of the device that a test
    names). Raises InputError with every mistake in the texts, and for a device that is not known."""
    tests = nccl_tests.read(paths)
    on = [cluster or nccl_tests.usual_cluster([swept]) for swept in tests]
    return tuple(
        CollectiveRecord(
            cluster=name,
            kind=swept.kind,
            gpus=swept.ranks,
            nodes=shape_of(swept, catalogue.cluster(name)).nodes,
            bytes=nbytes,
            time_us=seconds * 1e6,
            algorithm=swept.algorithm,
            condition="one host thread" if swept.one_thread else "nccl-tests",
            source=swept.where.rpartition(":")[0],
        )
        for swept, name in zip(tests, on, strict=True)
        for nbytes, seconds in swept.seconds
    )


def text(records: Iterable[CollectiveRecord]) -> str:
    """One table, sorted by source, kind and size."""
    ordered = sorted(records, key=lambda r: (r.source, r.kind, r.gpus, r.algorithm, r.bytes, r.time_us))
    return csv_file.text(COLUMNS, *([_cell(getattr(record, name)) for name in COLUMNS] for record in ordered))


def _cell(value: object) -> object:
    return f"{value:.10g}" if isinstance(value, float) else value


def _record(cluster: str, row: Mapping[str, str]) -> CollectiveRecord:
    kind, condition = row["kind"], row["condition"]
    if kind not in (*KINDS, TOKENS, LOW_LATENCY):
        raise ValueError(f"kind {kind}")
    if condition not in CONDITIONS:
        raise ValueError(f"condition {condition}")
    return CollectiveRecord(
        cluster=cluster,
        kind=kind,
        gpus=int(row["gpus"]),
        nodes=int(row["nodes"]),
        bytes=float(row["bytes"]),
        nodes_bytes=float(row["nodes_bytes"]) if row["nodes_bytes"] else None,
        time_us=float(row["time_us"]),
        algorithm=row["algorithm"],
        sms=float(row["sms"]) if row["sms"] else None,
        condition=condition,
        source=row["source"],
    )


_KINDS = {"sendrecv": "send_recv"}
_PRINTED = {"allgather": "all_gather", "allreduce": "all_reduce", "reducescatter": "reduce_scatter"}
_FORCED = {"NVLS": "nvls", "Ring": "ring", "Ring (NVLS off)": "ring"}
# DeepEP README: the settings of its tables that the figures' notes leave out.
_BATCH = {"V1": 4096, "V2": 8192, "low": 128}
_HIDDEN, _TOP_K, _EXPERTS, _GROUP_LIMIT = 7168, 8, 256, 4
_ROW = {"bf16": 2.0 * _HIDDEN, "fp8": _HIDDEN * (1.0 + 4.0 / 128.0)}  # an fp8 row carries a scale for every 128


def convert(path: Path) -> tuple[CollectiveRecord, ...]:
    """The usable rows of a third-party table with columns ``source, gpu, dtype, op, num_gpus, num_nodes, interconnect,
    algorithm, message_bytes, metric, value, time_us, notes``: a modelled library, and a time or what it follows from."""
    found = map(_converted, csv_file.read(path, _WHAT)[1])
    return tuple(record for record in found if record is not None)


def convert_nccl_tests(path: Path) -> tuple[CollectiveRecord, ...]:
    """The rows of a table with nccl-tests' columns, ``num_nodes``, ``gpus_per_node`` and ``op``: Perlmutter's.

    Its library is older than NCCL 2.23, which brought PAT: small all-gathers take 6 us a rank, as rings do.
    """
    return tuple(
        CollectiveRecord(
            cluster="a100_sxm_40gb_slingshot4",
            kind=_PRINTED[row["op"]],
            gpus=int(row["num_nodes"]) * int(row["gpus_per_node"]),
            nodes=int(row["num_nodes"]),
            bytes=float(row["size"]),
            time_us=float(row["time-o"]),
            algorithm="" if row["op"] == "allreduce" else "ring",
            condition="nccl-tests",
            source="ShashankSubramanian/transformer-perf-estimates@54278b0 comm_validation",
        )
        for row in csv_file.read(path, _WHAT)[1]
    )


def _converted(row: Mapping[str, str]) -> CollectiveRecord | None:
    kind = _KINDS.get(row["op"], row["op"])
    if "MSCCL" in row["notes"]:  # another library's kernel
        return None
    if kind.startswith("moe_"):
        return _tokens(row)
    if kind not in KINDS or not (row["time_us"] and row["message_bytes"]):
        return None
    return CollectiveRecord(
        cluster=_cluster(row),
        kind=kind,
        gpus=int(row["num_gpus"]),
        nodes=int(row["num_nodes"]),
        bytes=float(row["message_bytes"]),
        time_us=float(row["time_us"]),
        algorithm=_FORCED.get(row["algorithm"], ""),
        condition=_condition(row),
        source=row["source"],
    )


def _cluster(row: Mapping[str, str]) -> str:
    name = catalogue.cluster(row["gpu"]).name
    return f"{name}_efa" if int(row["num_nodes"]) > 1 and "EFA" in row["interconnect"] else name


def _condition(row: Mapping[str, str]) -> str:
    if "threshold" in row["notes"]:
        return "threshold"
    if "torch.distributed" in row["notes"] or "AWS P6" in row["notes"]:  # the same script on AWS
        return "torch.distributed"
    # nccl-tests -g 8, or 4 on GB200: Benchmarks/NVIDIA/NCCLBandwidth.py
    return "one host thread" if "AI-benchmarking-guide" in row["source"] else "nccl-tests"


def _tokens(row: Mapping[str, str]) -> CollectiveRecord | None:
    """Bytes of a dispatch or combine from the setting of its source, its time from those and the bandwidth it states."""
    gpus, nodes, per_token = int(row["num_gpus"]), int(row["num_nodes"]), _ROW[row["dtype"]]
    stated = float(row["time_us"]) if row["time_us"] else None
    outside = None
    if "low_latency" in row["op"]:
        kind, nbytes, time_us = LOW_LATENCY, _BATCH["low"] * _TOP_K * per_token, stated
    elif row["metric"] == "bottleneck_bandwidth_gbs":
        batch = _BATCH["V2" if "V2" in row["notes"] else "V1"] * per_token
        reached = min(nodes, _GROUP_LIMIT)
        kind, nbytes = TOKENS, batch * _distinct(reached * gpus // nodes, reached / nodes)
        across = batch * _distinct(reached, reached / nodes)
        outside = across * (nodes - 1) / nodes
        # the source counts what stays on the rank or in the node as well
        time_us = (across if nodes > 1 else nbytes) / float(row["value"]) * 1e-3
    else:
        kind, nbytes, time_us = TOKENS, float(row["message_bytes"] or 0), stated
    if not nbytes or not time_us:
        return None
    units = re.search(r"(\d+) SMs", row["notes"])
    return CollectiveRecord(
        cluster=_cluster(row),
        kind=kind,
        gpus=gpus,
        nodes=nodes,
        bytes=nbytes,
        nodes_bytes=outside if nodes > 1 else None,
        time_us=time_us,
        sms=float(units[1]) if units else None,
        condition="kernel",
        source=row["source"],
    )


def _distinct(blocks: int, share: float) -> float:
    """Expected distinct blocks, of ``blocks`` equal ones that hold ``share`` of the experts, which top-k draws reach."""
    experts = round(_EXPERTS * share)
    return blocks * (1.0 - math.comb(experts - experts // blocks, _TOP_K) / math.comb(experts, _TOP_K))
