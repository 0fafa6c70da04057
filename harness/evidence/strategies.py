"""Named strategies: rows say theirs (``strategy``), a command line chooses among them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.contracts.runs import MeasuredRun
from projector.errors import InputError, Problem, nearest


def of(run: MeasuredRun) -> str:
    """The strategy of a row as compared: ``maximum_performance``; empty where it names none."""
    return _plain(str(run.switches.get("strategy", "")))


def chosen(runs: Sequence[MeasuredRun], names: Sequence[str]) -> list[MeasuredRun]:
    """The runs of these strategies; all where no name is given. Raises :class:`InputError` for names that no row has."""
    if not names:
        return list(runs)
    known = sorted({of(run) for run in runs} - {""})
    wrong = [name for name in names if _plain(name) not in known]
    if wrong:
        expected = "rows that name a strategy: there are none"
        raise InputError(
            Problem("command line", "--strategy", name, nearest(_plain(name), known) if known else expected)
            for name in wrong
        )
    wanted = {_plain(name) for name in names}
    return [run for run in runs if of(run) in wanted]


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")
