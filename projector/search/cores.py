"""Work on several cores: processes that know all that this one knows when they begin.

A process is forked, so that it starts in milliseconds with everything that is in memory, and says what it found in one
message. Where processes cannot be forked, or one is lost, the work is done here.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from projector.dataclass import dataclass

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_T = TypeVar("_T")


def usable() -> int:
    """How many processes may work at once: the cores this process may use. One where none can be forked safely: outside
    Linux, and beside other threads, as in a server."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" and threading.active_count() == 1 else 1


@dataclass
class Clock:
    """CPU seconds of a search: of this process and, where some worked side by side, of the one that took longest.
    ``others``: what the rest of them took beside it."""

    others: float = 0.0
    _ahead: float = field(default_factory=lambda: -time.process_time())

    def now(self) -> float:
        """CPU seconds since the clock was made."""
        return time.process_time() + self._ahead

    def beside(self, works: Sequence[Callable[[], _T]], jobs: int) -> list[_T]:
        """What each of ``works`` returns, ``jobs`` of them at once. An exception of one of them is raised here."""
        if jobs < 2 or len(works) < 2:
            return [work() for work in works]
        found: list[_T] = []
        for first in range(0, len(works), jobs):
            found += self._forked(works[first : first + jobs])
        return found

    def _forked(self, works: Sequence[Callable[[], _T]]) -> list[_T]:
        from multiprocessing import get_context

        fork, began = get_context("fork"), self.now()
        pipes = [fork.Pipe(duplex=False) for _ in works]
        processes = [
            fork.Process(target=self._send, args=(work, began, sender), daemon=True)
            for work, (_, sender) in zip(works, pipes, strict=True)
        ]
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        found: list[_T] = []
        took = []
        try:
            for work, (receiver, _) in zip(works, pipes, strict=True):
                try:
                    value, error, seconds = receiver.recv()
                except EOFError:
                    value, error, seconds = work(), None, 0.0
                if error is not None:
                    raise error
                found.append(value)
                took.append(seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()
        self._ahead += max(took)
        self.others += sum(took) - max(took)
        return found

    def _send(self, work: Callable[[], _T], began: float, sender: Connection) -> None:
        self._ahead, self.others = began - time.process_time(), 0.0
        value, wrong = None, None
        try:
            value = work()
        except Exception as error:  # told to who waits for it
            wrong = error
        sender.send((value, wrong, self.now() - began + self.others))
