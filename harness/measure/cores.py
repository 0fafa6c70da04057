"""Measures how a process on a CPU shares it with others: seconds without a core, and seconds of core that the machine
used."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TASKS, _STAT = Path("/proc/self/task"), Path("/proc/stat")
_RAN = (1, 2, 3, 8)  # words of the first line: user, nice, system, stolen by other machines of the host


def waited() -> float:
    """Returns the seconds for which threads of this process were ready to run and had no core; 0 where the system does
    not say. Linux: ``/proc/<pid>/task/<tid>/schedstat``, second figure, nanoseconds (kernel documentation, sched-stats).
    """
    total = 0
    with suppress(OSError, ValueError, IndexError):
        for task in _TASKS.iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


def used() -> float:
    """Returns the seconds of core that all programs of this machine have used, those of other machines on its host
    included; 0 where the system does not say. Linux: ``/proc/stat`` (proc(5)), in ticks."""
    try:
        words = _STAT.read_text().split(maxsplit=_RAN[-1] + 1)
        return sum(int(words[i]) for i in _RAN) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
