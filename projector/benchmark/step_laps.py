"""Times layers where they really run: inside a training step of a shortened model, at the seams between its parts.

A real step is run (forward, backward, gradients accumulated over micro-batches, clip, optimizer) and a stamp is taken
at every seam in both directions, so that caches, autograd, the allocator and the host cost what they cost in training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from projector.benchmark.device import Device
from projector.benchmark.exchange import agreed, together
from projector.dataclass import dataclass

MICROBATCHES = 2  # of a step: the first gives gradients their place and casts weights, the others add and use
_WARM = 3  # steps that fill caches, allocators and autograd's buffers, and are compared with as many before them
_STEADY, _PATIENCE = 0.03, 5.0  # change of their median until which clocks still move; budgets that this may take
_FEWEST, _MOST = 8, 400  # steps


class Stamps:
    """Moments of one step on one device: events of its stream, or the clock of the host, read at the end."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._taken: list[tuple[str, Any]] = []

    def take(self, name: str) -> None:
        if not self._cuda:
            self._taken.append((name, time.perf_counter()))
            return
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._taken.append((name, event))

    def seconds(self) -> list[tuple[str, float]]:
        """Returns (name, seconds since the stamp before) of each stamp but the first, which starts the clock."""
        if not self._cuda:
            return [(name, moment - previous) for (_, previous), (name, moment) in pairwise(self._taken)]
        torch.cuda.synchronize()
        return [(name, previous.elapsed_time(event) * 1e-3) for (_, previous), (name, event) in pairwise(self._taken)]


class _Seam(torch.autograd.Function):
    """Passes a tensor on unchanged, and takes a stamp in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stamps: Stamps, behind: str, ahead: str) -> Tensor:
        ctx.stamp = stamps, ahead
        stamps.take(behind)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        stamps, ahead = ctx.stamp
        stamps.take(ahead)
        return grads[0], None, None, None


class Strip(nn.Module):
    """A model shortened to a few layers of these ``names``; ``replayed``: which of them recompute their forward."""

    def __init__(self, embedding: nn.Module, layers: Sequence[tuple[str, bool, nn.Module]], head: nn.Module) -> None:
        super().__init__()
        self.embedding, self.head = embedding, head
        self.layers = nn.ModuleList(layer for _, _, layer in layers)
        self.names = [name for name, _, _ in layers]
        self.replayed = [replayed for _, replayed, _ in layers]

    def forward(self, ids: Tensor, labels: Tensor, stamps: Stamps) -> Tensor:
        """Returns the loss. Stamps: ``forward <part>`` and ``backward <part>`` at the end of each."""
        stamps.take("data")
        x, previous = self.embedding(ids), "embedding"
        for name, replayed, layer in zip(self.names, self.replayed, self.layers, strict=True):
            x = _seam(x, stamps, f"forward {previous}", f"backward {name}")
            x = checkpoint(layer, x, use_reentrant=False) if replayed else layer(x)
            previous = name
        x = _seam(x, stamps, f"forward {previous}", "backward head")
        loss: Tensor = self.head(x, labels)
        stamps.take("forward head")
        return loss


def _seam(x: Tensor, stamps: Stamps, behind: str, ahead: str) -> Tensor:
    return _Seam.apply(x, stamps, behind, ahead)  # type: ignore[no-any-return, no-untyped-call]


@dataclass
class Laps:
    """Seconds by name over all steps. Passes of the first micro-batch of a step stand apart (``first forward …``,
    ``first backward …``), since weights are cast in it and gradients get a place, while others find both. ``steps``:
    seconds of whole steps."""

    found: dict[str, list[float]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)

    def add(self, name: str, seconds: float) -> None:
        self.found.setdefault(name, []).append(seconds)


def laps(
    strip: Strip,
    draw: Callable[[], tuple[Tensor, Tensor]],
    finish: Callable[[], None],
    device: Device,
    budget: float,
    before: Callable[[int], None],
) -> Laps:
    """Runs steps, which all ranks begin together, until they are settled, then some more until ``budget`` seconds are spent.

    ``draw``: ids and labels of a micro-batch; ``finish``: clip, optimizer and the cleared gradients; ``before``: called
    with the number of each micro-batch, from 0.
    """
    times, began = Laps(), 0.0
    cold: list[float] | None = []
    while True:
        together(device)
        stamps = Stamps(device.type == "cuda")
        stamps.take("begin")
        total = None
        for micro in range(MICROBATCHES):
            before(micro)
            loss = strip(*draw(), stamps) / MICROBATCHES
            stamps.take("loss")
            loss.backward()
            stamps.take("backward embedding")
            total = loss.detach() if total is None else total + loss.detach()
            stamps.take("add loss")
        finish()
        assert total is not None
        total.item()  # once a step: a host that waits for every micro-batch never runs ahead
        stamps.take("optimizer")
        lapses = stamps.seconds()
        if cold is not None:
            cold.append(sum(seconds for _, seconds in lapses))
            if agreed(_settled(cold, budget), device):
                cold, began = None, time.perf_counter()
            continue
        _add_lapses(times, lapses)
        steps, spent = len(times.steps), time.perf_counter() - began
        if steps == _MOST or agreed(steps >= _FEWEST and spent > budget, device):
            return times


def _settled(steps: list[float], budget: float) -> bool:
    """Returns whether clocks, caches and buffers have settled: the last steps take as long as those before."""
    late, early = steps[-_WARM:], steps[-2 * _WARM : -_WARM]
    steady = bool(early) and abs(statistics.median(late) / statistics.median(early) - 1.0) < _STEADY
    return len(steps) >= 2 * _WARM and (steady or sum(steps) > _PATIENCE * budget)


def _add_lapses(times: Laps, lapses: Sequence[tuple[str, float]]) -> None:
    first = True
    for name, seconds in lapses:
        times.add(f"first {name}" if first and name.startswith(("forward", "backward")) else name, seconds)
        first = first and name != "add loss"
    times.steps.append(sum(seconds for _, seconds in lapses))
