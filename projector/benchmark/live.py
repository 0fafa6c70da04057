"""Real layers timed on the device at hand beside what the kernel models and the recorded tables say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.job import Skip, filled, unheard
from projector.benchmark.stopwatch import Stopwatch, Timing
from projector.errors import Unsupported
from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.hardware import efficiency
from projector.hardware.types import Gpu
from projector.kernels import recorded
from projector.kernels.protocol import ComputeOp, KernelModel
from projector.kernels.simulate import Simulated
from projector.layers import lower
from projector.operators.part import Block
from projector.operators.types import Collective, HostWork, Operator
from projector.step.timing import Clock
from projector.workload.model import LayerKind
from projector.workload.workload import Workload

__all__ = ["Compared", "compare"]

_Built = tuple[Callable[[Any], Any], Any]  # what maps inputs to an output (or a loss), and inputs


@dataclass(frozen=True, slots=True)
class Compared:
    """One part of the model in one direction: seconds ``simulated``, from ``recorded`` tables (None: none), ``live``.

    ``count``: how often the model has the part. ``tabled``: share of the recorded seconds that tables stand behind.
    ``kernels``: the part's operators that a kernel model prices, and what the simulation says of each, seconds.
    """

    part: str
    backward: bool
    count: int
    simulated: float
    recorded: float | None
    tabled: float
    kernels: tuple[tuple[ComputeOp, float], ...]
    live: Timing | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Simulated over measured time, less one."""
        return None if self.live is None else self.simulated / self.live.seconds - 1.0


@dataclass(frozen=True, slots=True)
class _Piece:
    name: str
    block: Block
    count: int
    build: Callable[[], _Built]


def compare(
    alone: Workload, device: Device, gpu: Gpu, watch: Stopwatch, told: Callable[[str], None] = unheard
) -> tuple[Compared, ...]:
    """Every part of ``alone`` (a workload of one device, see :mod:`projector.benchmark.shrink`), forward and backward.

    ``gpu``: the catalogue's description of the device. A part that cannot run here has a ``reason`` in place of a time.
    """
    resolved = resolve(alone, gpu.vendor, gpu.arch)
    simulated = Simulated(gpu, efficiency.of(gpu), resolved.execution, alone=True)
    tables = recorded.Recorded(gpu, simulated) if recorded.available(gpu.name) else None
    rows: list[Compared] = []
    for piece in _pieces(resolved, device):
        told(piece.name)
        times, reason = _times(piece, device, watch)
        for backward, live in zip((False, True), times, strict=True):
            ops = (*piece.block.backward_input, *piece.block.backward_weight) if backward else piece.block.forward
            ours, _ = _priced(ops, simulated, resolved, piece)
            theirs, share = (None, 0.0) if tables is None else _priced(ops, tables, resolved, piece)
            compute: list[Any] = [op for op in ops if not isinstance(op, Collective | HostWork)]
            kernels = tuple(zip(compute, simulated.times(compute).seconds.tolist(), strict=True))
            rows.append(Compared(piece.name, backward, piece.count, ours, theirs, share, kernels, live, reason))
    return tuple(rows)


def _pieces(resolved: Resolved, device: Device) -> list[_Piece]:
    from projector.benchmark.layers_narrow import converted
    from projector.benchmark.layers_parts import Made
    from projector.benchmark.source import find

    work = resolved.workload
    made = Made(work, device.place, execution=resolved.execution)
    parts, shape = find("torch", made), (work.recipe.micro_batch_size, made.length)

    def ids() -> Any:
        return device.torch.randint(work.model.vocab_size, shape, device=device.place)

    def hidden() -> Any:
        return filled(device, (made.tokens, work.model.hidden_size), made.dtype).requires_grad_(True)

    def layer(kind: LayerKind) -> _Built:
        return converted(parts.layer(kind), work, device), hidden()

    def head() -> _Built:
        module, labels = parts.head(), ids()
        return lambda x: module(x, labels), hidden()

    pieces = [_Piece("embedding", lower.embedding(resolved), 1, lambda: (parts.embedding(), ids()))]
    for kind, count in Counter((*work.model.tower_kinds, *work.model.layer_kinds)).items():
        block = lower.layer(kind, resolved)
        attention = "MLA" if work.model.mla else "attention"
        name = f"layer: {attention}, {block.name.removeprefix('layer_')}"
        pieces.append(_Piece(name, block, count, partial(layer, kind)))
    pieces.append(_Piece("output, loss", lower.head(resolved), 1, head))
    return pieces


def _priced(ops: Sequence[Operator], model: KernelModel, resolved: Resolved, piece: _Piece) -> tuple[float, float]:
    """(seconds of the phase without communication, share of its kernels' time that is measured)."""
    kernels: list[Any] = [op for op in ops if not isinstance(op, Collective | HostWork)]
    times = model.times(kernels)
    seconds = dict(zip(kernels, times.seconds.tolist(), strict=True))
    measured = float(times.seconds[times.measured].sum() / max(times.seconds.sum(), 1e-30))
    silent = [op for op in ops if not isinstance(op, Collective)]
    clock = Clock(kernels=seconds, measured=frozenset(), collective=_nothing, execution=resolved.execution)
    return clock.phase(silent, layer=piece.name.startswith("layer")).seconds, measured


def _nothing(_: Collective) -> float:
    return 0.0


def _times(piece: _Piece, device: Device, watch: Stopwatch) -> tuple[tuple[Timing | None, Timing | None], str]:
    try:
        run, inputs = piece.build()
        forward = watch.time(lambda: run(inputs))
        out = run(inputs)
        gradient = device.torch.ones_like(out)
        backward = watch.time(lambda: out.backward(gradient, retain_graph=True))
    except (Unsupported, Skip, RuntimeError, TypeError) as error:
        return (None, None), (str(error).splitlines() or [type(error).__name__])[0]
    return (forward, backward), ""
