"""Computes how much of a projected step runs in kernels of which no figure was ever measured on its GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from harness.kernels.fit import Array
from harness.kernels.sets import operands
from projector.dataclass import dataclass
from projector.hardware.efficiency import load
from projector.hardware.types import Cluster
from projector.kernels.protocol import ComputeOp
from projector.kernels.simulate import Simulated
from projector.kernels.tables import read, tables_dir
from projector.operators.types import Collective, Gemm, GroupedGemm, HostWork, Stream
from projector.projection import Projection
from projector.step.stages import parts
from projector.workload.composition import compositions

#: Families that run the same kernels under another name: the table of either counts.
_ALIKE = {"aiter_a32": "aiter", "aiter_a16": "aiter", "asm": "aiter", "te": "cudnn"}

Class = tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """Shares of the step's seconds, averaged over the pipeline ranks: device time of kernels whose class has a measured
    table on that GPU, and of kernels without one, by kind; the rest is communication, waiting, host and optimizer."""

    measured: float
    by_kind: dict[str, float]

    @property
    def unmeasured(self) -> float:
        return sum(self.by_kind.values())


def share(projection: Projection, cluster: Cluster) -> Share:
    """Returns both shares of one projection, by the analytical models with the constants as shipped."""
    resolved = projection.resolved
    recipe, execution = resolved.workload.recipe, resolved.execution
    ops = list(_kernels(projection))
    seconds: Array = Simulated(cluster.gpu, load(cluster.gpu.name), execution).times(ops).seconds
    seconds = seconds * resolved.workload.num_microbatches / recipe.pp / projection.step_seconds
    families = (execution.kernels.gemm, execution.kernels.attention)
    known = _measured_classes(cluster.gpu.name)
    by_kind: dict[str, float] = {}
    total = 0.0
    for op, part in zip(ops, seconds.tolist(), strict=True):
        if class_of(op, *families) in known:
            total += part
        else:
            kind = type(op).__name__.lower()
            by_kind[kind] = by_kind.get(kind, 0.0) + part
    return Share(total, by_kind)


def _kernels(projection: Projection) -> Iterator[ComputeOp]:
    """Yields every kernel of one micro-batch on all stages, recomputed ones twice."""
    resolved = projection.resolved
    for chunk in compositions(resolved.workload.model, resolved.workload.recipe)[1]:
        for part in parts(resolved, chunk):
            for op in (*part.block.forward, *part.backward):
                if not isinstance(op, Collective | HostWork):
                    yield op


def class_of(op: ComputeOp, gemm_family: str, attention_family: str) -> Class:
    """Returns the key that a kernel shares with rows of a table: kind, family, operand type and scale scheme."""
    if isinstance(op, Stream):
        return ("stream", op.kind)
    dtype = operands(op.dtype)
    if isinstance(op, Gemm):
        return ("gemm", gemm_family.removesuffix("_preshuffled"), dtype, op.scaling)
    if isinstance(op, GroupedGemm):
        return ("grouped", op.backend, dtype, op.scaling)
    way = "backward" if op.backward else "forward"
    return ("attention", _ALIKE.get(attention_family, attention_family), dtype, way, "" if op.flash else "plain")


@cache
def _measured_classes(gpu: str) -> frozenset[Class]:
    folder = tables_dir()
    if folder is None or not (folder / gpu).is_dir():
        return frozenset()
    return frozenset(class_of(row.op, row.family, row.family) for row in read(folder / gpu))
