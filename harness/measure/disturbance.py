"""How long other processes held the cores that a training wanted, and which of its steps say something all the same.

Linux keeps, for every thread, the time that it was ready to run and waited for a core (``/proc/<pid>/task/<tid>/
schedstat``, second figure, nanoseconds; kernel documentation, sched-stats). Where it does not exist nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

__all__ = ["QUIET", "kept", "waited"]

_TASKS = Path("/proc/self/task")
QUIET = 0.05  # share of a step in which its process may have waited for a core
_LEAST = 1 / 3  # of all steps are kept, however disturbed


def waited() -> float:
    """Seconds that the threads of this process have waited for a core so far; 0 where the system does not say."""
    total = 0
    try:
        for task in _TASKS.iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return total / 1e9
    return total / 1e9


def kept(shares: Sequence[float]) -> list[bool]:
    """Which steps count, by the share of each that was waiting: those below a twentieth, and the least disturbed third
    in any case (what is left on a machine that is never quiet)."""
    if not shares:
        return []
    enough = sorted(shares)[math.ceil(len(shares) * _LEAST) - 1]
    limit = max(QUIET, enough)
    return [share <= limit for share in shares]
