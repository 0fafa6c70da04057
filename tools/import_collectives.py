"""Writes ``measured/collectives/<cluster>.csv`` from a third-party table of collectives, or from one of nccl-tests' columns.

    python tools/import_collectives.py COLLECTIVES.csv [TARGET]

Columns: measured/collectives/README.md. Only figures and their source are kept.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from harness.kernels.collectives_table import LOW_LATENCY, TOKENS, CollectiveRecord, text
from projector.collectives.model import KINDS
from projector.hardware import catalogue
from projector.io import csv_file

TARGET = Path(__file__).resolve().parents[1] / "measured" / "collectives"


def main(source: Path, target: Path = TARGET) -> None:
    """Converts ``source`` and writes one file a cluster into ``target``."""
    by_cluster: dict[str, list[CollectiveRecord]] = defaultdict(list)
    printed = "busbw-o" in source.read_text(encoding="utf-8").partition("\n")[0]
    for record in (convert_nccl_tests if printed else convert)(source):
        by_cluster[record.cluster].append(record)
    target.mkdir(parents=True, exist_ok=True)
    for cluster, records in by_cluster.items():
        (target / f"{cluster}.csv").write_text(text(records), encoding="utf-8")
        print(f"{cluster}: {len(records)} rows")


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
    found = map(_converted, csv_file.read(path, "a table of collectives")[1])
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
        for row in csv_file.read(path, "a table of collectives")[1]
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


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
