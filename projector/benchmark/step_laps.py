"""Times layers where they really run: inside a training step of a shortened model, at the seams between its parts.

A real step is run (forward, backward, gradients accumulated over micro-batches, clip, optimizer) and a stamp is taken
at every seam in both directions, so that caches, autograd, the allocator and the host cost what they cost in training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from projector.benchmark.job import unheard
from projector.dataclass import dataclass

Tensor = torch.Tensor
Finish = Callable[[], None]


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
        if self._cuda:
            torch.cuda.synchronize()
            pairs = zip(self._taken, self._taken[1:], strict=False)
            return [(name, previous.elapsed_time(event) * 1e-3) for (_, previous), (name, event) in pairs]
        pairs = zip(self._taken, self._taken[1:], strict=False)
        return [(name, moment - previous) for (_, previous), (name, moment) in pairs]


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
    finish: Finish,
    start: Callable[[], None],
    *,
    cuda: bool,
    microbatches: int,
    warm: Callable[[list[float]], bool],
    samples: int,
    enough: Callable[[int, float], bool],
    before: Callable[[int], None] = unheard,
) -> Laps:
    """Runs steps until ``warm`` accepts their seconds, then up to ``samples`` more until ``enough(steps, seconds)``.

    ``draw``: ids and labels of a micro-batch; ``finish``: clip, optimizer and the cleared gradients; ``start``: what
    keeps ranks together before a step; ``before``: called with the number of each micro-batch, from 0.
    """
    times, began = Laps(), 0.0
    cold: list[float] | None = []
    while True:
        start()
        stamps = Stamps(cuda)
        stamps.take("begin")
        total = None
        for micro in range(microbatches):
            before(micro)
            loss = strip(*draw(), stamps) / microbatches
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
            if warm(cold):
                cold, began = None, time.perf_counter()
            continue
        _add_lapses(times, lapses)
        if len(times.steps) == samples or enough(len(times.steps), time.perf_counter() - began):
            return times


def _add_lapses(times: Laps, lapses: Sequence[tuple[str, float]]) -> None:
    first = True
    for name, seconds in lapses:
        times.add(f"first {name}" if first and name.startswith(("forward", "backward")) else name, seconds)
        first = first and name != "add loss"
    times.steps.append(sum(seconds for _, seconds in lapses))
