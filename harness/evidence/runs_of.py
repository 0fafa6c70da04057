"""Reads measured runs of any file: a strict or loose table, a training log of any dialect (plain or packed), a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contracts.runs import MeasuredRun
from projector.errors import InputError, Problem, raise_all

if TYPE_CHECKING:  # readers of logs take a tenth of a second to import, and most runs are tables of suites
    from harness.evidence.ingest.context import Context


def runs_of(path: str | Path, said: Context | None = None) -> tuple[MeasuredRun, ...]:
    """Reads the runs of the file at ``path`` (``-``: a log on standard input), at least one.

    ``said`` is what a user says of a log beside it (:func:`harness.evidence.ingest.context.read_context` makes it of the
    flags): its GPU, their number, its framework and its recipe, where the log does not print them. Raises
    :class:`InputError` for a file that cannot be read, for a log without its whole configuration, and for one that denies
    what is said of it.
    """
    from harness.evidence.ingest import command

    runs = command.load(path, said=said).runs
    if not runs:
        raise InputError([Problem(str(path), "", "no runs", "a list of measured runs")])
    return runs


def repeated(runs: Iterable[MeasuredRun], path: Path, origin: dict[str, Path]) -> Iterator[Problem]:
    """Yields a mistake for each run at ``path`` whose id another has; ``origin`` keeps by id where a run was read."""
    for run in runs:
        if run.id in origin:
            yield Problem(str(path), run.id, "a duplicate id", f"an id that {origin[run.id]} does not have")
        origin[run.id] = path


def runs_of_all(
    paths: Iterable[Path], said: Context | None = None, unread: list[Problem] | None = None
) -> list[MeasuredRun]:
    """Reads the runs of several files, in order; ``said`` is of the logs among them. A log's run is called by its file;
    where several have that name, by its folder as well. Raises :class:`InputError` with the mistakes of all files, for an id
    that two tables have, and for flags that no log takes. ``unread``: takes the mistakes of unreadable files, where the
    others are wanted all the same."""
    files = tuple(dict.fromkeys(paths))
    if not files:
        return []
    from harness.evidence.ingest import command
    from harness.evidence.ingest.context import Context

    runs: list[MeasuredRun] = []
    problems: list[Problem] = []
    origin: dict[str, Path] = {}
    names = Counter(path.name for path in files)
    if said not in (None, Context()) and all(map(command.is_table, files)):
        problems.append(Problem("command line", "--recipe, --gpu, --gpus, --framework", "no log", "a log to say it of"))
    for path in files:
        try:
            batch = runs_of(path, said)
        except InputError as error:
            (problems if unread is None else unread).extend(error.problems)
            continue
        if not command.is_table(path):
            batch = tuple(
                replace(run, id=f"{path.parent.name}/{run.id}") if names[path.name] > 1 else run for run in batch
            )
        problems += repeated(batch, path, origin)
        runs += batch
    raise_all(problems)
    return runs
