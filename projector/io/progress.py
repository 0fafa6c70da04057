"""What long work says of itself, on stderr and only where that is a terminal: nothing of it gets into a log or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Told(Protocol):
    def __call__(self, done: int | None = None, total: int | None = None, words: str | None = None) -> None:
        """How many are done, of how many, and what is being done; None: as before."""


@contextmanager
def progress(words: str, total: int | None = None) -> Iterator[Told]:
    """A bar while the block runs, gone afterwards; without a ``total`` one that only shows that something happens."""
    if not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    counted = [MofNCompleteColumn()] if total else []
    with Progress(*columns, *counted, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)

        def told(done: int | None = None, total: int | None = None, words: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=words)

        yield told


def _silent(done: int | None = None, total: int | None = None, words: str | None = None) -> None:
    """Nobody is looking."""
