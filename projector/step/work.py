"""What every operator of a block costs: FLOP, bytes, seconds, and the resource that would make it faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from projector.dataclass import dataclass
from projector.frameworks import Resolved
from projector.hardware.scaled import BETTER, SCALES
from projector.hardware.types import Cluster, Efficiency
from projector.kernels.settings import Settings
from projector.kernels.traffic import unique_bytes
from projector.operators.types import Collective, HostWork, Operator
from projector.step.priced import Priced, priced
from projector.step.stages import StageBlock, StageTime, messages, stage_time

#: Kinds of bounds, with the quantities of the cluster that are scaled to find them.
_BINDS = {
    "compute": ("flops",),
    "memory": ("memory_bandwidth",),
    "link": ("intra_bandwidth",),
    "fabric": ("inter_bandwidth",),
    "links": ("intra_bandwidth", "inter_bandwidth"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One operator on one rank, in one micro-batch.

    ``phase``: ``forward``, ``recompute``, ``input`` or ``weight`` (gradients), ``sharding`` (collectives of sharded
    weights in every micro-batch). ``bytes``: the bytes of device memory that no kernel can avoid; for a collective its
    buffer, as nccl-tests count it. ``hidden``: seconds of a collective that run beside compute; ``host``: seconds in
    which the host issues it. ``bound``: ``compute``, ``memory``, ``link`` (in a domain), ``fabric`` (between domains),
    ``links`` (both), ``host``, or ``latency`` where none of these would help as much.
    """

    module: str
    operator: str
    phase: str
    collective: bool
    flops: float
    bytes: float
    seconds: float
    hidden: float
    host: float
    bound: str

    @property
    def intensity(self) -> float | None:
        """Returns the FLOP for a byte of device memory; None where nothing is computed."""
        return self.flops / self.bytes if self.flops and self.bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """A layer, the embedding or the head: the ``number`` of it in the model, its operators (``works``) in order, and its
    ``time`` with host and overlap. ``ridge``: FLOP for a byte at which the device's peak in bf16 meets its memory."""

    name: str
    recomputed: bool
    number: int
    works: tuple[Work, ...]
    time: StageTime
    ridge: float


def works(
    resolved: Resolved, cluster: Cluster, efficiency: Efficiency, mode: str, settings: Settings
) -> tuple[BlockWork, ...]:
    """Returns every kind of block of the model, in its order. Raises as :func:`projector.step.priced.priced` does."""
    usual = priced(resolved, cluster, efficiency, mode, settings)
    better = {
        bound: priced(resolved, _improved(cluster, words), efficiency, mode, settings)
        for bound, words in _BINDS.items()
    }
    blocks = [part for stage in usual.parts for part in stage]
    number = Counter((id(part.block), part.recomputed) for part in blocks)
    kinds = {(id(part.block), part.recomputed): part for part in blocks}
    ridge = cluster.gpu.peak_of("bf16") / cluster.gpu.memory_bandwidth
    return tuple(
        BlockWork(
            name=part.block.name,
            recomputed=part.recomputed,
            number=number[key],
            works=tuple(_works(resolved, part, usual, better)),
            time=stage_time(resolved, [part], usual.clock),
            ridge=ridge,
        )
        for key, part in kinds.items()
    )


def _improved(cluster: Cluster, words: Sequence[str]) -> Cluster:
    for word in words:
        cluster = SCALES[word](cluster, BETTER)
    return cluster


def _works(resolved: Resolved, part: StageBlock, usual: Priced, better: Mapping[str, Priced]) -> Iterator[Work]:
    hidden: dict[Operator, list[float]] = {}
    for message in messages(resolved, part, usual.clock):
        hidden.setdefault(message.op, []).append(message.hidden)
    for phase, operators in _phases(part):
        for op in operators:
            hidden_of = hidden.get(op)
            yield _work(resolved, op, phase, hidden_of.pop(0) if hidden_of else 0.0, usual, better)
    for op, unused in hidden.items():  # weights and gradients that travel with every micro-batch
        for seconds in unused:
            yield _work(resolved, op, "sharding", seconds, usual, better)


def _phases(part: StageBlock) -> Iterator[tuple[str, Sequence[Operator]]]:
    block = part.block
    yield "forward", block.forward
    yield "recompute", block.recompute if part.recomputed else ()
    yield "input", block.backward_input
    yield "weight", block.backward_weight


def _work(
    resolved: Resolved, op: Operator, phase: str, hidden: float, usual: Priced, better: Mapping[str, Priced]
) -> Work:
    seconds = _seconds(op, usual)
    return Work(
        module=op.name.removesuffix(".bwd").removesuffix(".dgrad").removesuffix(".wgrad").split(".")[0],
        operator=op.name,
        phase=phase,
        collective=isinstance(op, Collective),
        flops=0.0 if isinstance(op, Collective | HostWork) else op.flops,
        bytes=0.0 if isinstance(op, HostWork) else op.bytes if isinstance(op, Collective) else unique_bytes(op),
        seconds=seconds,
        hidden=hidden,
        host=resolved.execution.host_seconds(op),
        bound="host" if isinstance(op, HostWork) else _bound(op, seconds, better),
    )


def _seconds(op: Operator, priced_step: Priced) -> float:
    if isinstance(op, HostWork):
        return 0.0
    return priced_step.price.seconds(op) if isinstance(op, Collective) else priced_step.layers.clock.kernels[op]


def _bound(op: Operator, seconds: float, better: Mapping[str, Priced]) -> str:
    """Returns the resource of which a tenth more saves most; what no resource saves is ``latency``."""
    if seconds <= 0:
        return "nothing"
    saved = {name: (seconds / _seconds(op, improved) - 1.0) / (BETTER - 1.0) for name, improved in better.items()}
    saved["links"] -= saved["link"] + saved["fabric"]  # what only both of them save
    saved["latency"] = 1.0 - sum(saved.values())
    return max(saved, key=lambda name: saved[name])
