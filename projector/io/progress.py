"""Shows how far long work is, on stderr and only where that is a terminal, so that no log or pipe gets any of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Told(Protocol):
    def __call__(self, done: int | None = None, total: int | None = None, words: str | None = None) -> None:
        """Shows how many are done, of how many, and what is being done; None leaves a part as before."""


@contextmanager
def progress(words: str, total: int | None = None) -> Iterator[Told]:
    """Shows a bar while the block runs; without a ``total`` it only shows that something happens."""
    if not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    counted = [MofNCompleteColumn()] if total else []
    with Progress(*columns, *counted, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)

        def update(done: int | None = None, total: int | None = None, words: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=words)

        yield update


def _silent(done: int | None = None, total: int | None = None, words: str | None = None) -> None:
    """Shows nothing, where nobody is looking."""
