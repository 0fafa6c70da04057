"""Runs work on several cores, in processes that know all that this one knows when they begin.

A process is forked, so that it starts in milliseconds with everything that is in memory, and sends its result in one
message. Where processes cannot be forked, or one is lost, the work is done in this process.
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


def usable_cores() -> int:
    """Returns how many processes may work at once: the cores that this process may use. Returns 1 where none can be
    forked safely: outside Linux, and beside other threads, as in a server."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" and threading.active_count() == 1 else 1


@dataclass
class Clock:
    """CPU seconds of a search: of this process and, where some worked side by side, of the one that took longest.
    ``others``: CPU seconds of all other processes."""

    others: float = 0.0
    _ahead: float = field(default_factory=lambda: -time.process_time())

    def now(self) -> float:
        """Returns the CPU seconds since the clock was made."""
        return time.process_time() + self._ahead

    def beside(self, works: Sequence[Callable[[], _T]], jobs: int) -> list[_T]:
        """Returns what each of ``works`` returns, and runs ``jobs`` of them at once. Raises what one of them raises."""
        if jobs < 2 or len(works) < 2:
            return [work() for work in works]
        results: list[_T] = []
        for first in range(0, len(works), jobs):
            results += self._forked(works[first : first + jobs])
        return results

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
        results: list[_T] = []
        cpu_seconds = []
        try:
            for work, (receiver, _) in zip(works, pipes, strict=True):
                try:
                    value, error, seconds = receiver.recv()
                except EOFError:
                    value, error, seconds = work(), None, 0.0
                if error is not None:
                    raise error
                results.append(value)
                cpu_seconds.append(seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()
        self._ahead += max(cpu_seconds)
        self.others += sum(cpu_seconds) - max(cpu_seconds)
        return results

    def _send(self, work: Callable[[], _T], began: float, sender: Connection) -> None:
        self._ahead, self.others = began - time.process_time(), 0.0
        value, failure = None, None
        try:
            value = work()
        except Exception as error:  # raised in the process that waits for the result
            failure = error
        sender.send((value, failure, self.now() - began + self.others))
