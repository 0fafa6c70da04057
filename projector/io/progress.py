"""Shows on stderr how far long work is: as a bar on a terminal, elsewhere as a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_FIRST = 3.0  # seconds until the first line where there is no terminal; each further one waits twice as long
_LONGEST = 60.0


class Told(Protocol):
    def __call__(self, done: int | None = None, total: int | None = None, words: str | None = None) -> None:
        """Shows how many are done, of how many, and what is being done; None leaves a part as before."""


@contextmanager
def progress(words: str, total: int | None = None) -> Iterator[Told]:
    """Shows a bar while the block runs; without a ``total`` it only shows that something happens."""
    if not sys.stderr.isatty():
        yield _lines(words, total)
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


def _lines(what: str, of: int | None) -> Told:
    """Returns what writes a line on stderr after some seconds, then ever more seldom: short work writes none."""
    began, wait = time.monotonic(), _FIRST
    due = began + wait

    def update(done: int | None = None, total: int | None = None, words: str | None = None) -> None:
        nonlocal what, of, wait, due
        what, of, now = words or what, total or of, time.monotonic()
        if now >= due:
            share = f", {done:,} of {of:,}" if of and done is not None else ""
            print(f"{now - began:.0f} s: {what}{share}", file=sys.stderr, flush=True)
            wait = min(2 * wait, _LONGEST)
            due = now + wait

    return update
