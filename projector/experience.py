"""What measured runs say of projections: a few named corrections per GPU and framework, and a 90 % interval.

The figures stand in ``experience.yaml`` beside this file; ``python -m harness calibrate --out`` writes it. A projection is
never changed by it: what measured runs let expect stands beside what the models give.

ln(measured / projected step time) is expected to be Σ share · θ over :data:`TERMS`: ``step`` has share 1 (whatever is
off in every part alike), the others the share of the step that they stand for. θ is the sum of what the GPU teaches
(its ground: the GPU's own runs, leaning on its architecture, vendor and all runs) and what the framework teaches (its
stack), cut at ± :data:`BOUNDS`. The half width of the interval in ln(step time) is a quantile times a difficulty that is
linear in what the projection knows of its own uncertainty (see :func:`features`), with the standard error of the
correction beside it (the root of the sum of the squares): a GPU or a framework without runs has the larger one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from projector.hardware.types import Gpu
from projector.parameter import parameter

__all__ = [
    "BOUNDS",
    "COMMUNICATION",
    "FEATURES",
    "LEAST",
    "TERMS",
    "Basis",
    "Correction",
    "Expected",
    "Experience",
    "correct",
    "expected",
    "features",
    "load",
    "shares",
]

COMMUNICATION = ("tp_s", "ep_s", "cp_s", "pp_s", "dp_s")
#: What may be off: everything alike, kernels in 8 or 4 bits, host time, exposed communication, the pipeline bubble.
TERMS = ("step", "low_precision", "host", "communication", "bubble")
FEATURES = ("constant", "assumed", "communication", "host", "ground", "stack")
#: Largest |θ| by term: beyond it a model is broken, and a calibration of it means nothing.
BOUNDS = (math.log(10.0), *([math.log(2.0)] * (len(TERMS) - 1)))
LEAST = parameter(
    0.02, kind="assumed", source="difficulty of the easiest run: measured runs repeat no better", scored=True
)
_WIDE = frozenset({"", "bf16", "fp16", "fp32", "tf32"})
_MANY = parameter(8.0, kind="assumed", source="assumed entries that count as all of them")
_FILE = Path(__file__).with_name("experience.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What one place (a GPU, an architecture, a vendor, all, or a framework) teaches.

    ``values``: θ by term; ``errors``: their standard errors; ``scatter``: how far its runs are off once corrected
    (typical |ln|); ``rows``, ``cells``: on how many runs, and on how many kinds of them, it rests.
    """

    values: tuple[float, ...]
    errors: tuple[float, ...]
    scatter: float
    rows: int
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """``level``: share of runs that the interval is to hold. ``least``: difficulty of the easiest run; ``seen``: the
    largest of each feature, beyond which nothing is known. ``grounds``: by GPU, ``arch:…``, ``vendor:…`` and ``all``;
    ``stacks``: by framework; ``unseen``: a framework without runs. ``evidence``: what it was learnt from, as text.
    """

    law: str
    level: float
    quantile: float
    least: float
    coefficients: tuple[float, ...]
    seen: tuple[float, ...]
    grounds: Mapping[str, Basis]
    stacks: Mapping[str, Basis]
    unseen: Basis
    evidence: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """ln(expected / projected step time) and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Step seconds that measured runs let expect, and the ends of the interval.

    ``factor``: middle / projected; ``parts``: its factors by term, of those that apply; ``rests_on``: the key of the
    ground, on ``cells`` kinds of runs; ``stack_cells``: kinds of runs of its framework.
    """

    low: float
    middle: float
    high: float
    level: float
    factor: float
    cells: int
    rests_on: str
    stack_cells: int
    parts: Mapping[str, float]


def shares(breakdown: Mapping[str, float], step_seconds: float, precision: str) -> tuple[float, ...]:
    """The share of the step that each of :data:`TERMS` stands for, each from 0 to 1."""
    kernels = 0.0 if precision in _WIDE else breakdown.get("compute_s", 0.0)
    exposed = math.fsum(breakdown.get(name, 0.0) for name in COMMUNICATION)
    parts = (kernels, breakdown.get("host_s", 0.0), exposed, breakdown.get("bubble_s", 0.0))
    return (1.0, *(min(max(part / step_seconds, 0.0), 1.0) for part in parts))


def correct(share: Sequence[float], ground: Basis, stack: Basis) -> Correction:
    """What a ground and a stack say of a step with these shares of :data:`TERMS`."""
    total = variance = 0.0
    for i, part in enumerate(share):
        total += part * _bounded(i, ground, stack)
        variance += part * part * (ground.errors[i] ** 2 + stack.errors[i] ** 2)
    return Correction(value=total, error=math.sqrt(variance))


def _bounded(term: int, ground: Basis, stack: Basis) -> float:
    return min(max(ground.values[term] + stack.values[term], -BOUNDS[term]), BOUNDS[term])


def features(assumed: int, share: Sequence[float], ground: Basis, stack: Basis) -> tuple[float, ...]:
    """What a projection knows of its own uncertainty, each from 0 to 1, in the order of :data:`FEATURES`.

    A constant; how much was ``assumed`` (entries); exposed communication and host time as shares of the step; how far
    runs on its ground and on its stack are off.
    """
    named = dict(zip(TERMS, share, strict=True))
    told = (assumed / _MANY, named["communication"], named["host"], ground.scatter, stack.scatter)
    return (1.0, *(min(value, 1.0) for value in told))


def expected(
    step_seconds: float,
    breakdown: Mapping[str, float],
    assumed: Sequence[str],
    gpu: Gpu,
    *,
    framework: str = "",
    precision: str = "",
    experience: Experience | None = None,
) -> Expected | None:
    """The interval of a projection on ``gpu``; None where nothing was learnt."""
    known = experience or load()
    if known is None:
        return None
    places = (gpu.name, f"arch:{gpu.arch}", f"vendor:{gpu.vendor}", "all")
    key = next((place for place in places if place in known.grounds), None)
    if key is None:
        return None
    ground, stack = known.grounds[key], known.stacks.get(framework, known.unseen)
    share = shares(breakdown, step_seconds, precision)
    found = correct(share, ground, stack)
    told = features(len(assumed), share, ground, stack)
    terms = (c * min(x, most) for c, x, most in zip(known.coefficients, told, known.seen, strict=True))
    half = known.quantile * math.hypot(max(math.fsum(terms), known.least, LEAST), found.error)
    factor = math.exp(found.value)
    middle = step_seconds * factor
    thetas = [_bounded(i, ground, stack) for i in range(len(TERMS))]
    parts = {
        term: math.exp(part * theta) for term, part, theta in zip(TERMS, share, thetas, strict=True) if part * theta
    }
    return Expected(
        low=middle * math.exp(-half),
        middle=middle,
        high=middle * math.exp(half),
        level=known.level,
        factor=factor,
        cells=ground.cells,
        rests_on=key,
        stack_cells=stack.cells,
        parts=parts,
    )


@cache
def load() -> Experience | None:
    """What the package carries; None where the file is absent. Raises :class:`InputError` for a broken file."""
    from projector.experience_file import parse

    return parse(_FILE.read_text(encoding="utf-8"), str(_FILE)) if _FILE.is_file() else None
