"""One transformer layer of transformer-perf-estimates on one GPU, as operations: FLOP, bytes, messages, saved bytes.

Symbols: ``b`` samples of a micro-batch, ``l`` sequence, ``e`` width, ``f`` width of the MLP, ``h`` heads, ``q`` = e/h.
``m1`` GPUs divide heads and widths; ``m2`` divide the sequence (and the weights, in SUMMA). ``t1``, ``t2``: how many of
each share a fast domain. No mask, biases and dropout everywhere, fused attention, no embedding and no output layer.

Facts of arXiv:2410.00273 (appendix) and of the tool, transformer-perf-estimates@54278b0; its oddities are kept and noted
where they stand, since the point is to answer as the tool does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.predictors.tpe.system import System, Transfer
from projector.dataclass import dataclass

STRATEGIES = ("1d", "2d", "2d-seqp")


@dataclass(frozen=True)
class Shape:
    l: int  # noqa: E741
    e: int
    h: int
    depth: int
    f: int


@dataclass(frozen=True)
class Grid:
    """The division of one micro-batch of ``b`` samples over GPUs. ``panels``: number of SUMMA's panels."""

    b: int
    m1: int
    m2: int = 1
    t1: int = 1
    t2: int = 1
    panels: int = 1


@dataclass(frozen=True)
class Pass:
    flops: float
    bytes: float
    messages: tuple[Transfer, ...] = ()


@dataclass(frozen=True)
class Operation:
    """An operation. ``saved``, ``weights``: bytes kept for backward and held. ``panels`` > 0: panel by panel (SUMMA)."""

    name: str
    forward: Pass
    backward: Pass
    saved: float = 0.0
    weights: float = 0.0
    matrix: bool = False
    panels: int = 0


class Timed(NamedTuple):
    """Seconds of one pass: ``total`` = the longer of arithmetic and memory, plus exposed communication."""

    total: float
    communication: float
    arithmetic: float
    memory_exposed: float


def timed(one: Pass, operation: Operation, system: System) -> Timed:
    arithmetic = system.compute(one.flops, operation.matrix)
    memory = one.bytes / system.memory_bandwidth
    busy = max(arithmetic, memory)
    if not operation.panels:
        sent = sum(system.collective(m) for m in one.messages)
        return Timed(busy + sent, sent, arithmetic, max(memory - arithmetic, 0.0))
    # The first panel is waited for; the others hide behind the products of those before them.
    n = operation.panels
    panel = sum(system.collective(Transfer(m.kind, m.volume / n, m.ranks, m.fast)) for m in one.messages)
    sent = panel + max(panel * n - busy, 0.0)
    return Timed(busy + sent, sent, arithmetic, max(memory - sent, 0.0))


def layer(strategy: str, shape: Shape, grid: Grid, system: System) -> tuple[Operation, ...]:
    """Returns the fourteen operations of a layer, attention first."""
    return tuple(_Layer(strategy, shape, grid, system).operations())


class _Layer:
    def __init__(self, strategy: str, shape: Shape, grid: Grid, system: System) -> None:
        self.summa, self.one = strategy == "2d", strategy == "1d"
        self.shape, self.grid, self.system = shape, grid, system
        self.bytes = system.element
        self.rows = shape.l // grid.m2  # rows of a sample in operations whose width m1 divides
        self.spread = self.rows if self.summa else shape.l // (grid.m1 * grid.m2)  # rows elsewhere
        self.across = shape.e // grid.m1 if self.summa else shape.e

    def operations(self) -> Iterator[Operation]:
        s, g = self.shape, self.grid
        narrow = s.e // g.m1
        yield self.linear("qkv", s.e, 3 * s.e, divided="out")
        yield self.attention()
        yield self.linear("vproj", s.e, s.e, divided="in")
        yield self.bias("vproj-bias", self.rows, s.e if self.one else narrow)
        yield self.dropout("dpr_v", self.spread * self.across)
        yield self.norm("ln2")
        yield self.linear("fc1", s.e, s.f, divided="out")
        yield self.bias("fc1-bias", self.rows, s.f // g.m1)
        yield self.activation(self.rows * (s.f // g.m1))
        yield self.dropout("dpr1", self.rows * (s.f // g.m1))
        yield self.linear("fc2", s.f, s.e, divided="in")
        # Its 1D form adds both whole biases on every GPU; its sequence form divides the rows of this one, not its width.
        yield self.bias("fc2-bias", self.rows if self.one else self.spread, self.across)
        yield self.dropout("dpr2", self.spread * self.across)
        yield self.norm("ln1")

    def linear(self, name: str, e: int, f: int, divided: str) -> Operation:
        return self.summa_linear(name, e, f) if self.summa else self.ring_linear(name, e, f, divided)

    def ring_linear(self, name: str, e: int, f: int, divided: str) -> Operation:
        """Returns a linear with columns (``out``) or rows (``in``) of the weight divided over m1; reduce-scatter where
        partial sums arise."""
        g, x = self.grid, self.bytes
        k, n = (e, f // g.m1) if divided == "out" else (e // g.m1, f)
        rows = g.b * self.rows
        into, out, weight = rows * k * x, rows * n * x, k * n * x
        sent = self._m1("reducescatter", rows * (e if divided == "out" else f) * x)
        forward = Pass(rows * n * (2 * k - 1), into + out + weight, sent if divided == "in" else ())
        flops = rows * k * (2 * n - 1) + k * n * (2 * rows - 1)
        backward = Pass(flops, 2 * weight + 2 * into + 2 * out, sent if divided == "out" else ())
        return Operation(name, forward, backward, saved=into, weights=weight, matrix=True)

    def summa_linear(self, name: str, e: int, f: int) -> Operation:
        """Returns a linear whose input's panels along m1 and weight's along m2 are broadcast, multiplied and added up."""
        g, x, n = self.grid, self.bytes, self.grid.panels
        rows, wide = g.b * self.rows, f // g.m1
        whole_in, whole_weight, sums = rows * e * x, e * wide * x, rows * wide * n * x
        forward = Pass(
            2 * rows * wide * e,
            whole_in + whole_weight + sums,
            (*self._m1("broadcast", whole_in), *self._m2("broadcast", whole_weight)),
        )
        backward = Pass(
            rows * e * (2 * wide - 1) + e * wide * (2 * rows - 1),
            2 * (whole_in + whole_weight + sums),
            (
                *self._m2("broadcast", whole_weight), *self._m1("reduce", whole_in),
                *self._m1("broadcast", whole_in), *self._m2("reduce", whole_weight),
            ),
        )  # fmt: skip
        saved, weights = rows * (e // g.m1) * x, (e // g.m2) * wide * x
        return Operation(name, forward, backward, saved=saved, weights=weights, matrix=True, panels=n)

    def attention(self) -> Operation:
        """Returns fused attention, over m1 of the heads; keys and values of the whole sequence gathered over m2. Nothing
        is masked. Softmax and dropout run on vector units, so their work counts as many times as those are slower."""
        s, g, x, q = self.shape, self.grid, self.bytes, self.shape.e // self.shape.h
        heads, rows, keys = g.b * (s.h // g.m1), self.rows, s.l
        slower = self.system.matrix / self.system.vector
        logits = heads * rows * keys * (2 * q - 1)
        attend = heads * rows * q * (2 * keys - 1)
        by_rows = heads * keys * q * (2 * rows - 1)
        dropped = heads * rows * keys * slower
        soft = heads * rows * (3 * keys - 1) * slower
        soft_backward = heads * rows * (4 * keys - 1) * slower
        part, whole, line = heads * rows * q * x, heads * keys * q * x, heads * rows * x
        saved = 4 * part + 2 * line
        gather = self._m2("allgather", 2 * whole)
        forward = Pass(logits + soft + dropped + attend, 2 * part + 2 * whole + line, gather)
        # the gradients of both products, the softmax and dropout, and the logits once more
        again = logits + soft + dropped
        backward = Pass(
            attend + 2 * by_rows + logits + soft_backward + dropped + again,
            2 * whole + 2 * part + saved,
            (*gather, *self._m2("reducescatter", 2 * whole)),
        )
        return Operation("fusedla", forward, backward, saved=saved, matrix=True)

    def bias(self, name: str, rows: int, width: int) -> Operation:
        size, weights = self.grid.b * rows * width, width * self.bytes
        either = Pass(size, size * self.bytes + weights)
        return Operation(name, either, either, weights=weights)

    def activation(self, per_sample: int) -> Operation:
        """Returns GELU: 8 operations an element forward, 13 backward."""
        size = self.grid.b * per_sample
        saved = size * self.bytes
        return Operation("act1", Pass(8 * size, 2 * saved), Pass(13 * size, 3 * saved), saved=saved)

    def dropout(self, name: str, per_sample: int) -> Operation:
        size = self.grid.b * per_sample
        either = Pass(size, size * (2 * self.bytes + self.system.mask))
        return Operation(name, either, either, saved=size * self.system.mask)

    def norm(self, name: str) -> Operation:
        """Returns layer norm. The tool's 2D form takes the width of a GPU as l/m1 instead of e/m1, which is kept here."""
        s, g, x = self.shape, self.grid, self.bytes
        rows = g.b * self.spread
        width = s.l // g.m1 if self.summa else s.e
        size = rows * width
        if self.summa:
            ahead = self._m1("allreduce", 2 * rows * x)
            back = self._m1("allreduce", (2 * s.e // g.m1 + 2 * g.b * s.l // g.m2) * x)
        else:
            whole = g.b * self.rows * s.e * x
            ahead, back = self._m1("allgather", whole), self._m1("reducescatter", whole)
        forward = Pass(9 * size, (2 * size + 2 * rows + 2 * width) * x, ahead)
        backward = Pass(8 * size + 4 * rows * (width - 1), (5 * size + 2 * width) * x, back)
        return Operation(name, forward, backward, saved=size * x, weights=2 * width * x)

    def _m1(self, kind: str, volume: float) -> tuple[Transfer, ...]:
        return (Transfer(kind, volume, self.grid.m1, self.grid.t1),) if self.grid.m1 > 1 else ()

    def _m2(self, kind: str, volume: float) -> tuple[Transfer, ...]:
        return (Transfer(kind, volume, self.grid.m2, self.grid.t2),) if self.grid.m2 > 1 else ()
