"""Projections relative to a run that was measured: what both share, and a model has wrong, cancels in the ratio of the two.

expected = measured anchor × projected target / projected anchor. The interval is that of the ratio: ln(projected ratio /
measured ratio) over pairs of measured runs, by the kinds of change between them (:mod:`projector.workload.kinds`). It stands
in ``ratios.yaml`` beside this file; ``python -m harness calibrate --ratios`` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem
from projector.io.files import parse_yaml

_FILE = Path(__file__).with_name("ratios.yaml")
_DIGITS = 4
_HEAD = """\
# Written by `python -m harness calibrate --ratios`: how far off ratios of two projections are, by the kinds of change
# between the two runs. spread: typical |ln(projected ratio / measured ratio)| of a kind, those of several add up in squares;
# repeat: of one configuration measured twice; other: of a kind without pairs. Half width of the interval in ln:
# quantile x spread.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """``level``: share of ratios that the interval is to hold; ``repeat``, ``other``, ``kinds``: spreads in ln, 0 or more.

    ``evidence``: what they were learnt from, as text.
    """

    level: float
    quantile: float
    repeat: float
    other: float
    kinds: Mapping[str, float]
    evidence: Mapping[str, str] = field(default_factory=dict)

    def spread(self, kinds: Collection[str]) -> float:
        """Typical |ln error| of a ratio between two runs that differ in these kinds."""
        return math.hypot(*(self.kinds.get(kind, self.other) for kind in kinds)) if kinds else self.repeat

    def half_width(self, kinds: Collection[str]) -> float:
        """Of the interval, in ln."""
        return self.quantile * self.spread(kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """``ratio``: projected target / projected anchor; ``low``, ``middle``, ``high``: step seconds of the target. ``low`` and
    ``high`` are None where nothing is known of ratios."""

    ratio: float
    middle: float
    low: float | None = None
    high: float | None = None
    level: float | None = None


def relative(
    measured: float, anchor: float, target: float, kinds: Collection[str], known: Ratios | None = None
) -> Relative:
    """From the ``measured`` seconds of an anchor, its projected seconds and those of the target, all positive.

    ``kinds``: in which the two differ; ``known``: None takes what the package carries.
    """
    ratio = target / anchor
    middle = measured * ratio
    known = known or load()
    if known is None:
        return Relative(ratio=ratio, middle=middle)
    width = math.exp(known.half_width(kinds))
    return Relative(ratio=ratio, middle=middle, low=middle / width, high=middle * width, level=known.level)


@cache
def load() -> Ratios | None:
    """What the package carries; None where the file is absent. Raises :class:`InputError` for a broken file."""
    return parse(_FILE.read_text(encoding="utf-8"), str(_FILE)) if _FILE.is_file() else None


def parse(content: str, where: str) -> Ratios:
    """The ratios of a file's text. Raises :class:`InputError` naming the first thing that is not as expected."""
    data = parse_yaml(content, where)
    try:
        return Ratios(
            **{name: _spread(data[name]) for name in ("level", "quantile", "repeat", "other")},
            kinds={str(kind): _spread(value) for kind, value in data["kinds"].items()},
            evidence={str(key): str(value) for key, value in data["evidence"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        keys = "level, quantile, repeat, other, kinds (spreads, 0 or more) and evidence"
        raise InputError([Problem(where, "", f"{type(error).__name__}: {error}", keys)]) from error


def _spread(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0.0):
        raise ValueError(f"{value} is no finite number of 0 or more")
    return number


def text(known: Ratios) -> str:
    """The file's text."""
    lines = ["evidence:", *(f'  {key}: "{value}"' for key, value in known.evidence.items())]
    lines += [f"{name}: {getattr(known, name):.{_DIGITS}f}" for name in ("level", "quantile", "repeat", "other")]
    lines += ["kinds:", *(f"  {kind}: {value:.{_DIGITS}f}" for kind, value in sorted(known.kinds.items()))]
    return _HEAD + "\n".join(lines) + "\n"
