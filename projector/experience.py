"""What measured runs say of projections: a few named corrections per GPU and framework, and a 90 % interval.

The figures stand in ``experience.yaml`` beside this file; ``python -m harness calibrate --out`` writes it. A projection is
never changed by it: what measured runs let expect stands beside what the models give.

ln(measured / projected step time) is expected to be what the GPU teaches (its ground: where there is evidence for it, its
own runs, leaning on its architecture, vendor and all runs; else what all runs share) and what the framework adds (its
stack), cut at ± :data:`BOUND`: zero where no correction helps sources that it has not seen. The half width of the interval
in ln(step time) is a quantile times a difficulty that is linear in what the projection knows of its own uncertainty
(:func:`features`): it grows where few sources, or none, measured the GPU or the framework.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from projector.hardware.types import Gpu
from projector.parameter import parameter

#: What a projection tells of itself (:func:`traits`), between a constant and what is known of its GPU and framework.
TRAITS = ("guessed", "host", "fixed", "context")
FEATURES = ("constant", *TRAITS, "ground", "stack")
#: Largest |ln factor|: beyond it a model is broken, and a calibration of it means nothing.
BOUND = math.log(10.0)
LEAST = parameter(
    0.02, kind="assumed", source="difficulty of the easiest run: measured runs repeat no better", scored=True
)
_WIDEST = parameter(16.0, kind="assumed", source="context parallel ranks that count as the most: what was measured")
#: The framework that stands for a code base without a profile, and how much less is known of its step.
UNKNOWN = "unknown"
UNKNOWN_CODE = parameter(
    1.8, kind="fitted",
    source="half widths that hold nine of ten of 424 measured runs of 12 code bases, each projected as analytic instead of "
    "by its own profile, in half widths of a framework without runs", scored=True,
)  # fmt: skip
#: Entries that name what the work of a step is proportional to.
_SIZES = re.compile(r"(?<!\w)(?:dense layers|num_layers|seq_length|(?:global|micro)_batch_size)=")
_FILE = Path(__file__).with_name("experience.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What one place (a GPU, an architecture, a vendor, all, or a framework) teaches.

    ``value``: ln(measured / projected step time) that its runs share; ``error``: its standard error; ``sources``,
    ``cells``: how many publishers measured the place itself, and how many kinds of runs.
    """

    value: float
    error: float
    sources: int
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
class Expected:
    """Step seconds that measured runs let expect, and the ends of the interval.

    ``factor``: middle / projected; ``rests_on``: the key of the ground, measured by ``sources`` publishers in ``cells``
    kinds of runs; ``stack_sources``, ``stack_cells``: the same of its framework.
    """

    low: float
    middle: float
    high: float
    level: float
    factor: float
    sources: int
    cells: int
    rests_on: str
    stack_sources: int
    stack_cells: int


def traits(
    step_seconds: float, breakdown: Mapping[str, float], assumed: Sequence[str], cp: int = 1
) -> tuple[float, ...]:
    """What a projection knows of its own uncertainty, each from 0 to 1, in the order of :data:`TRAITS`.

    Whether layers, sequence length or batch are among what was ``assumed``; host time, and what every step costs whatever
    its size, as shares of the step; how wide the context parallel group ``cp`` is, on a log scale.
    """
    guessed = float(any(_SIZES.search(entry) for entry in assumed))
    host, fixed = (min(max(breakdown.get(part, 0.0) / step_seconds, 0.0), 1.0) for part in ("host_s", "other_s"))
    return guessed, host, fixed, min(math.log2(max(cp, 1)) / math.log2(_WIDEST), 1.0)


def correct(ground: Basis, stack: Basis) -> float:
    """ln(expected / projected step time), as a ground and a stack say."""
    return min(max(ground.value + stack.value, -BOUND), BOUND)


def wider(framework: str) -> float:
    """By what the interval of a framework is wider than what its features say."""
    return UNKNOWN_CODE if framework == UNKNOWN else 1.0


def features(told: Sequence[float], ground: int, stack: int) -> tuple[float, ...]:
    """In the order of :data:`FEATURES`: a constant; the :func:`traits` of a projection; how little is known of its GPU and
    its framework, 1 / (1 + sources that measured it)."""
    return (1.0, *told, 1.0 / (1.0 + ground), 1.0 / (1.0 + stack))


def expected(
    step_seconds: float,
    breakdown: Mapping[str, float],
    assumed: Sequence[str],
    gpu: Gpu,
    *,
    framework: str = "",
    cp: int = 1,
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
    told = features(
        traits(step_seconds, breakdown, assumed, cp), ground.sources if key == gpu.name else 0, stack.sources
    )
    terms = (c * min(x, most) for c, x, most in zip(known.coefficients, told, known.seen, strict=True))
    half = known.quantile * max(math.fsum(terms), known.least, LEAST) * wider(framework)
    factor = math.exp(correct(ground, stack))
    middle = step_seconds * factor
    return Expected(
        low=middle * math.exp(-half),
        middle=middle,
        high=middle * math.exp(half),
        level=known.level,
        factor=factor,
        sources=ground.sources,
        cells=ground.cells,
        rests_on=key,
        stack_sources=stack.sources,
        stack_cells=stack.cells,
    )


@cache
def load() -> Experience | None:
    """What the package carries; None where the file is absent. Raises :class:`InputError` for a broken file."""
    from projector.experience_file import parse

    return parse(_FILE.read_text(encoding="utf-8"), str(_FILE)) if _FILE.is_file() else None
