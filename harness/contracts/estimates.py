"""What a calibration is learnt from, and what it says of a row: a factor per key, or an estimate with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from projector.experience import TRAITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One comparable row: ``log_ratio`` = ln(measured / projected step time), that is ln(projected / measured TGS); one
    that is not finite: projected, not measured.

    ``levels``: keys from finest to coarsest. ``traits``: what the projection knows of its own uncertainty
    (:func:`projector.experience.traits`). ``source``: who published it (:func:`harness.contracts.sources.publisher`).
    """

    run_id: str
    family: str
    framework: str
    levels: tuple[str, ...]
    log_ratio: float
    gpu: str = ""
    traits: tuple[float, ...] = (0.0,) * len(TRAITS)
    source: str = ""

    @property
    def cell(self) -> tuple[str, str, str]:
        """What weighs as one."""
        return (self.family, self.gpu, self.framework)


class Chosen(Protocol):
    """A law that was fitted on all rows: its name, and the inner error of each law that it was chosen among."""

    @property
    def law(self) -> str: ...
    @property
    def scores(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A multiplier on projected step time. ``spread``: weighted median absolute deviation of the log ratios.

    ``key``: what it was fitted on; ``level``: 0 the row's own key, 1 the next coarser one, …; −1: nothing to fit on
    (1.0).
    """

    key: str
    value: float
    rows: int
    cells: int
    spread: float
    level: int = 0

    @property
    def fallback(self) -> bool:
        """True where the factor does not rest on the row's own key."""
        return self.level != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a fold says of one row: ``log`` is ln(expected / projected step time).

    ``key``, ``level``: the finest of its levels with runs in the fold ("" and −1: none); ``half``: half width of the 90 %
    interval in ln(step time), infinite where there was too little to learn it from.
    """

    law: str
    log: float
    key: str
    level: int
    half: float = math.inf

    @property
    def value(self) -> float:
        """The multiplier on the projected step time."""
        return math.exp(self.log)

    @property
    def fallback(self) -> bool:
        """True where it does not rest on runs of the row's own finest level."""
        return self.level != 0
