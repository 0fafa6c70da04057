"""What an import did with every row: mapped, assumed, refused or left unread, as data (a command line prints it)."""

from __future__ import annotations

from collections import Counter
from dataclasses import field

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.steady import SteadyState
from projector.dataclass import dataclass
from projector.errors import Problem
from projector.io.table import values
from projector.workload.structure import to_mapping


@dataclass(frozen=True, kw_only=True)
class RowReport:
    """What an import did with one row of the input. ``mapped``: ``field=value`` with the key it came from; ``unread``:
    ``key: words`` that nothing reads.

    ``refused``: why the row cannot be projected (the run carries the same text as ``problem``); ``doubts``: stated values
    that contradict each other but do not stop a projection. ``read``: the figures of a log without its whole configuration,
    in words; ``missing``: (thing, flag that states it), where nothing else is wrong.
    """

    where: str
    id: str
    mapped: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()

    @property
    def usable(self) -> bool:
        return not self.refused

    @property
    def status(self) -> str:
        """Returns ``usable``; ``incomplete`` where something that a flag can state is missing and nothing wrong;
        ``refused``."""
        return "usable" if self.usable else "incomplete" if self.missing else "refused"

    @property
    def flagged(self) -> tuple[str, ...]:
        """Returns what is missing, by the flag that states it."""
        flags = dict.fromkeys(flag for _, flag in self.missing)
        return tuple(f"{', '.join(name for name, by in self.missing if by == flag)} ({flag})" for flag in flags)


@dataclass(frozen=True, kw_only=True)
class LogRun:
    """One run of a log: the strict run, its report, and the steps behind them (``state`` None without steps).

    ``scale``: seconds of a step for one unit of ``record.value``. ``problems``: contradictions for which the run is refused.
    """

    run: MeasuredRun
    row: RowReport
    dialect: str
    record: Logged
    state: SteadyState | None
    scale: float
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Runs of one input with one :class:`RowReport` each, in the same order; ``logs``: the steps behind those of logs."""

    runs: tuple[MeasuredRun, ...]
    rows: tuple[RowReport, ...]
    logs: tuple[LogRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class IngestReport(Converted):
    """Everything one ``ingest`` did. ``written``: the files it wrote, with the number of runs in each; ``problems``: of the
    inputs that could not be read, which the others do not suffer from."""

    written: dict[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    @property
    def usable(self) -> int:
        return sum(row.usable for row in self.rows)

    def to_mapping(self) -> dict[str, object]:
        """Returns the report as plain values, for JSON: figures and missing things of each row, and the mistakes."""
        return {
            "rows": [_row_mapping(run, row) for run, row in zip(self.runs, self.rows, strict=True)],
            "written": dict(self.written),
            "problems": [
                {"where": p.where, "key": p.key, "found": str(p.found), "expected": p.expected} for p in self.problems
            ],
        }

    @property
    def refusals(self) -> Counter[str]:
        """Counts the rows that each reason stops (a row with two reasons counts in both)."""
        return Counter(reason for row in self.rows for reason in row.refused)


def _row_mapping(run: MeasuredRun, row: RowReport) -> dict[str, object]:
    m = run.measured
    return {
        **values(row, "id where status"),
        **values(run, "gpu gpus model=model_name"),
        "measured": {name: value for name, value in to_mapping(m).items() if value not in (None, "", [])},
        "read": list(row.read),
        "missing": [{"name": name, "flag": flag} for name, flag in row.missing],
        **{name: list(getattr(row, name)) for name in ("mapped", "assumed", "refused", "doubts", "unread")},
    }
