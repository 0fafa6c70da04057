"""What measured runs say of projections: a factor per GPU and a 90 % interval, as ``harness calibrate`` learnt them.

The figures stand in ``experience.yaml`` beside this file; ``python -m harness calibrate --out`` writes it. A projection is
never changed by it: the interval stands beside what the models give. Its half width in ln(step time) is a quantile times
a difficulty that is linear in what the projection knows of its own uncertainty (see :func:`features`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from projector.errors import InputError, Problem
from projector.hardware.types import Gpu

__all__ = [
    "COMMUNICATION",
    "FEATURES",
    "LEAST",
    "Expected",
    "Experience",
    "Ground",
    "expected",
    "features",
    "load",
    "parse",
]

COMMUNICATION = ("tp_s", "ep_s", "cp_s", "pp_s", "dp_s")
FEATURES = ("constant", "assumed", "communication", "host", "thin")
LEAST = 0.02  # difficulty of the easiest run: measured runs repeat no better
_MANY = 8.0  # assumed entries that count as all
_FILE = Path(__file__).with_name("experience.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Measured over projected step time on one GPU (or its architecture, vendor, or all): the weighted median over
    ``cells`` of model family and framework.
    """

    factor: float
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """``level``: share of runs that the interval is to hold. ``least``: difficulty of the easiest run; ``seen``: the
    largest of each feature, beyond which nothing is known. ``grounds``: by GPU, ``arch:…``, ``vendor:…`` and ``all``.
    """

    level: float
    quantile: float
    least: float
    coefficients: tuple[float, ...]
    seen: tuple[float, ...]
    grounds: Mapping[str, Ground]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Step seconds that measured runs let expect, and the ends of the interval; ``rests_on``: the key of its factor."""

    low: float
    middle: float
    high: float
    level: float
    factor: float
    cells: int
    rests_on: str


def features(assumed: int, breakdown: Mapping[str, float], step_seconds: float, cells: int) -> tuple[float, ...]:
    """What a projection knows of its own uncertainty, each from 0 to 1, in the order of :data:`FEATURES`.

    A constant; how much was ``assumed`` (entries); exposed communication and host time as shares of the step; how thin
    the ground of its factor is (``cells`` of its own GPU; 0: none).
    """
    exposed = sum(breakdown.get(name, 0.0) for name in COMMUNICATION) / step_seconds
    host = breakdown.get("host_s", 0.0) / step_seconds
    thin = 1.0 / math.sqrt(cells) if cells > 0 else 1.0
    return (1.0, min(assumed / _MANY, 1.0), min(exposed, 1.0), min(host, 1.0), thin)


def expected(
    step_seconds: float,
    breakdown: Mapping[str, float],
    assumed: Sequence[str],
    gpu: Gpu,
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
    ground = known.grounds[key]
    own = ground.cells if key == gpu.name else 0
    told = features(len(assumed), breakdown, step_seconds, own)
    terms = (c * min(x, most) for c, x, most in zip(known.coefficients, told, known.seen, strict=True))
    half = known.quantile * max(math.fsum(terms), known.least, LEAST)
    middle = step_seconds * ground.factor
    return Expected(
        low=middle * math.exp(-half),
        middle=middle,
        high=middle * math.exp(half),
        level=known.level,
        factor=ground.factor,
        cells=ground.cells,
        rests_on=key,
    )


@cache
def load() -> Experience | None:
    """What the package carries; None where the file is absent. Raises :class:`InputError` for a broken file."""
    return parse(_FILE.read_text(encoding="utf-8"), str(_FILE)) if _FILE.is_file() else None


def parse(text: str, where: str) -> Experience:
    """The experience of a file's text. Raises :class:`InputError` naming the first thing that is not as expected."""
    import yaml

    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return Experience(
            level=float(data["level"]),
            quantile=float(data["quantile"]),
            least=float(data["least"]),
            coefficients=tuple(float(data["coefficients"][name]) for name in FEATURES),
            seen=tuple(float(data["seen"][name]) for name in FEATURES),
            grounds={
                str(key): Ground(factor=float(cell["factor"]), cells=int(cell["cells"]))
                for key, cell in data["grounds"].items()
            },
        )
    except yaml.YAMLError as error:
        raise InputError([Problem(where, "", str(error), "valid YAML")]) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        expected_keys = f"level, quantile, least, coefficients and seen ({', '.join(FEATURES)}), grounds"
        raise InputError([Problem(where, "", f"{type(error).__name__}: {error}", expected_keys)]) from error
