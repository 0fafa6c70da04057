"""What ``projector performance`` has made: projections by mode, and the schedules that were tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from projector.cli.comparison import Row
    from projector.projection import Projection


@dataclass(frozen=True, kw_only=True)
class Projections:
    """By mode, in the order asked for; ``refused``: modes without one and why; ``compared``: schedules tried."""

    by_mode: dict[str, Projection]
    refused: dict[str, str]
    compared: tuple[Row, ...] = ()

    @property
    def first(self) -> Projection:
        return next(iter(self.by_mode.values()))
