"""Runs work on several cores, in processes that know all that this one knows when they begin.

A process is forked, so that it starts in milliseconds with everything that is in memory, and sends how far it is and its
result. Where processes cannot be forked, or one is lost, the work is done in this process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from projector.dataclass import dataclass

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_T = TypeVar("_T")
#: What is done in a process; it may tell on its way how far it is.
Work = Callable[[Callable[[Any], None]], _T]
_NEWS = 1  # second between two messages of a process on its way


def _nothing(number: int, news: Any) -> None: ...


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

    def beside(self, works: Sequence[Work[_T]], jobs: int, told: Callable[[int, Any], None] = _nothing) -> list[_T]:
        """Returns what each of ``works`` returns, and runs ``jobs`` of them at once. ``told``: gets the number of a work
        and what it tells on its way. Raises what one of them raises."""
        if jobs < 2 or len(works) < 2:
            return [work(partial(told, number)) for number, work in enumerate(works)]
        results: list[_T] = []
        for first in range(0, len(works), jobs):
            results += self._forked(works[first : first + jobs], lambda i, news, first=first: told(first + i, news))  # type: ignore[misc]
        return results

    def _forked(self, works: Sequence[Work[_T]], told: Callable[[int, Any], None]) -> list[_T]:
        from multiprocessing import get_context
        from multiprocessing.connection import wait

        fork, began = get_context("fork"), self.now()
        pipes = [fork.Pipe(duplex=False) for _ in works]
        processes = [
            fork.Process(target=self._send, args=(work, began, sender), daemon=True)
            for work, (_, sender) in zip(works, pipes, strict=True)
        ]
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        working = {receiver: number for number, (receiver, _) in enumerate(pipes)}
        results: dict[int, _T] = {}
        cpu_seconds = []
        try:
            while working:
                ready = wait(list(working))
                for receiver, number in [each for each in working.items() if each[0] in ready]:
                    try:
                        news, end = receiver.recv()
                    except EOFError:
                        news, end = None, (works[number](partial(told, number)), None, 0.0)
                    if end is None:
                        told(number, news)
                        continue
                    results[number], error, seconds = end
                    if error is not None:
                        raise error
                    cpu_seconds.append(seconds)
                    del working[receiver]
        finally:
            for process in processes:
                process.kill()
                process.join()
        self._ahead += max(cpu_seconds)
        self.others += sum(cpu_seconds) - max(cpu_seconds)
        return [results[number] for number in range(len(works))]

    def _send(self, work: Work[_T], began: float, sender: Connection) -> None:
        self._ahead, self.others = began - time.process_time(), 0.0
        value, failure, due = None, None, 0.0

        def tell(news: Any) -> None:
            nonlocal due
            if (now := time.monotonic()) >= due:
                due = now + _NEWS
                sender.send((news, None))

        try:
            value = work(tell)
        except Exception as error:  # raised in the process that waits for the result
            failure = error
        sender.send((None, (value, failure, self.now() - began + self.others)))
