"""Traces made by hand: a step is a list of kernels, each with its launch."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asked import put

GEMM, FORWARD, BACKWARD = "nvjet_tst_128x256_64x4_TNT", "flash::flash_fwd_kernel<x>", "flash_bwd_dq_dk_dv_loop<x>"
ADAM, REDUCE = "multi_tensor_apply_kernel<AdamFunctor>", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclArgs)"


@dataclass
class Made:
    """Events of one rank; times in microseconds."""

    rank: int = 0
    world: int = 2
    events: list[dict[str, Any]] = field(default_factory=list)
    launched: int = 0

    def kernel(
        self, name: str, start: float, length: float, *, stream: int = 7, launch: float | None = None, **more: Any
    ) -> None:
        self.launched += 1
        args = {"stream": stream, "correlation": self.launched, **more}
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, "tid": stream, "args": args}
        )
        at = start - 1 if launch is None else launch
        self.host("cudaLaunchKernel", at, 0.5, cat="cuda_runtime", correlation=self.launched)

    def host(self, name: str, start: float, length: float, *, cat: str = "cpu_op", tid: int = 1, **args: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "tid": tid, "args": args}
        self.events.append(event)

    def mark(self, name: str, start: float, length: float) -> None:
        self.host(name, start, length, cat="user_annotation")

    def document(self) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world},
            "traceEvents": self.events,
        }

    def write(self, path: Path) -> Path:
        text = json.dumps(self.document()).encode()
        return put(path, gzip.compress(text) if path.suffix == ".gz" else text)


def stepped(lengths: Sequence[float], rank: int = 0) -> Made:
    """Steps back to back, each with a product, attention both ways and an optimizer: ``lengths`` µs of the product."""
    made, at = Made(rank), 1000.0
    for number, length in enumerate(lengths, 10):
        made.mark(f"ProfilerStep#{number}", at, length + 400)
        made.kernel(GEMM, at + 10, length, launch=at + 5)
        made.kernel(FORWARD, at + 10 + length, 100, launch=at + 6)
        made.kernel(BACKWARD, at + 110 + length, 200, launch=at + 7)
        made.kernel(ADAM, at + 310 + length, 50, launch=at + 8)
        at += length + 400
    return made
