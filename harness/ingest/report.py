"""What an import did with every row: mapped, assumed, refused or left unused, as data (a command line prints it)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.runs import MeasuredRun

if TYPE_CHECKING:
    from harness.ingest.logs.build import LogRun

__all__ = ["Converted", "IngestReport", "RowReport"]


@dataclass(frozen=True, kw_only=True)
class RowReport:
    """One row of the input. ``mapped``: ``field=value`` with the key it came from; ``unused``: keys nothing reads.

    ``refused``: why the row cannot be projected (the run carries the same text as ``problem``); ``doubts``: stated
    values that contradict each other but do not stop a projection.
    """

    where: str
    id: str
    mapped: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return not self.refused


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Runs of one input with one :class:`RowReport` each, in the same order; ``logs``: the steps behind those of logs."""

    runs: tuple[MeasuredRun, ...]
    rows: tuple[RowReport, ...]
    logs: tuple[LogRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class IngestReport:
    """Everything one ``ingest`` did. ``written``: the files it wrote, with the number of runs in each."""

    runs: tuple[MeasuredRun, ...]
    rows: tuple[RowReport, ...]
    logs: tuple[LogRun, ...] = ()
    written: dict[str, int] = field(default_factory=dict)

    @property
    def usable(self) -> int:
        return sum(row.usable for row in self.rows)

    @property
    def refusals(self) -> Counter[str]:
        """Reasons with the number of rows that each stops (a row with two reasons counts in both)."""
        return Counter(reason for row in self.rows for reason in row.refused)
