"""What a calibration is learnt from, and what it says of a row."""

from __future__ import annotations

import math

from projector.dataclass import dataclass
from projector.posterior import LEVEL, Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One comparable row: ``facts`` of its projection, ``log_ratio`` = ln(measured / projected step time), that is
    ln(projected / measured TGS); one that is not finite: projected, not measured."""

    run_id: str
    facts: Facts
    log_ratio: float

    @property
    def source(self) -> str:
        """Who published it (:func:`harness.contracts.sources.publisher`)."""
        return self.facts.source

    @property
    def family(self) -> str:
        return self.facts.family

    @property
    def cell(self) -> tuple[str, str, str]:
        """What weighs as one."""
        return (self.facts.family, self.facts.gpu, self.facts.framework)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What rows of others say of one: ``log`` is ln(expected / projected step time), ``deviation`` its standard
    deviation in ln, ``half`` the half width of the 90 % interval, infinite where there was too little to learn it from."""

    log: float
    deviation: float
    half: float = math.inf
    level: float = LEVEL

    @property
    def value(self) -> float:
        """The multiplier on the projected step time."""
        return math.exp(self.log)
