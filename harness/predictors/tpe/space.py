"""The search of transformer-perf-estimates: every configuration and placement that it tries, the fastest that fits.

Its rules are facts of its tool, transformer-perf-estimates@54278b0 (``a | b``: a divides b). With n GPUs, width e,
heads h, depth d, sequence l and a fast domain of nvs GPUs:

tp | n, h, e; pp | min(n/tp, d), d; dp | global batch; mbs · l divisible by what shards tokens; 128 columns and rows a
GPU at least; panels max(tp, tp2) · 2^i of 512 columns or more; placements whose product is nvs (or all, if n <= nvs).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache

from harness.predictors.tpe.layer import STRATEGIES, Shape
from harness.predictors.tpe.step import Config, Estimate, Placed, estimate
from harness.predictors.tpe.system import System
from projector.dataclass import dataclass
from projector.errors import InputError, Problem

#: Columns and rows of a GPU's product below which it does not divide further, and columns of a SUMMA panel.
_NARROWEST, _PANEL = 128, 512

Candidate = tuple[Config, Placed]


@dataclass(frozen=True)
class Found:
    """``best``: the fastest that fit, first the fastest; ``feasible`` of ``tried`` fit."""

    tried: int
    feasible: int
    best: tuple[tuple[Config, Placed, Estimate], ...]


def search(strategy: str, shape: Shape, gpus: int, global_batch_size: int, system: System, keep: int = 10) -> Found:
    """Raises :class:`InputError` for a strategy that it does not know or counts below one."""
    if strategy not in STRATEGIES:
        raise InputError([Problem("tpe", "strategy", strategy, " | ".join(STRATEGIES))])
    if gpus < 1 or global_batch_size < 1:
        raise InputError([Problem("tpe", "gpus, global_batch_size", f"{gpus}, {global_batch_size}", "1 or more each")])
    tried = list(candidates(strategy, shape, gpus, global_batch_size, system.domain))
    made = ((c, p, estimate(strategy, shape, c, p, system, global_batch_size)) for c, p in tried)
    fitting = sorted((m for m in made if m[2].memory <= system.capacity), key=lambda m: m[2].seconds)
    return Found(len(tried), len(fitting), tuple(fitting[:keep]))


def candidates(strategy: str, shape: Shape, gpus: int, global_batch_size: int, domain: int) -> Iterator[Candidate]:
    for tp, tp2 in _tensor(strategy, shape, gpus):
        left = gpus // (tp * tp2)
        for pp in _divisors(min(left, shape.depth)):
            if left % pp or shape.depth % pp or global_batch_size % (left // pp):
                continue
            dp = left // pp
            sizes = [c for c in _divisors(global_batch_size // dp) if c * shape.l % _shards(strategy, tp, tp2) == 0]
            for panels in _panels(strategy, tp, tp2, shape.e):
                for placed in _placements(tp, tp2, dp, pp, domain):
                    yield from ((Config(dp, tp, pp, mbs, tp2, panels), placed) for mbs in sizes)


def _tensor(strategy: str, shape: Shape, gpus: int) -> Iterator[tuple[int, int]]:
    for tp in _divisors(gpus):
        if shape.h % tp or shape.e % tp:
            continue
        if strategy == "1d":
            if 3 * shape.e // tp >= _NARROWEST:
                yield tp, 1
        elif shape.e // tp >= _NARROWEST:
            for tp2 in _divisors(gpus // tp):
                if shape.l // tp2 >= _NARROWEST and (strategy == "2d-seqp" or shape.e % tp2 == 0):
                    yield tp, tp2


def _shards(strategy: str, tp: int, tp2: int) -> int:
    return tp2 if strategy == "2d" else tp * tp2


def _panels(strategy: str, tp: int, tp2: int, e: int) -> Iterable[int]:
    if strategy != "2d":
        return (1,)
    least = max(tp, tp2)
    if e / least < _PANEL:
        return (least,)
    count = math.ceil(math.log2(e // least))
    return tuple(n for i in range(count) if e % (n := least * 2**i) == 0 and e // n >= _PANEL)


def _placements(tp: int, tp2: int, dp: int, pp: int, domain: int) -> Iterator[Placed]:
    if tp * tp2 * dp * pp <= domain:
        yield Placed(tp, tp2, dp, pp)
        return
    for a in (a for a in _divisors(domain) if tp % a == 0):
        for b in (b for b in _divisors(domain // a) if tp2 % b == 0):
            for c in (c for c in _divisors(domain // (a * b)) if dp % c == 0):
                if pp % (domain // (a * b * c)) == 0:
                    yield Placed(a, b, c, domain // (a * b * c))


@cache
def _divisors(n: int) -> tuple[int, ...]:
    return tuple(c for c in range(1, n + 1) if n % c == 0)
