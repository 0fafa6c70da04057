"""Steps by a clock that a log prints beside their number: the mean step from one reading to a later one."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import field
from datetime import date
from functools import lru_cache
from typing import NamedTuple

from harness.evidence.ingest.logs.numbers import measured
from projector.dataclass import dataclass

#: Day and time of day to the millisecond, as a logger puts them before a line, for :func:`taken`.
STAMP = (
    r"(?P<day>20[0-9]{2}-[01][0-9]-[0-3][0-9])[ T](?P<hour>[0-2][0-9]):(?P<minute>[0-5][0-9]):"
    r"(?P<second>[0-5][0-9][.,][0-9]{3})"
)
_LATE = 64  # readings after which none is printed again
SHORTEST = 20.0  # seconds between readings of a clock of whole seconds: good to a twentieth
#: The time so far on a bar, ``02:03`` or ``1:02:03``.
CLOCK = r"(?P<clock>(?:[0-9]{1,5}:)?[0-9]{1,2}:[0-9]{2})"
#: The same of any logger, and how far into a line it may stand.
_BEFORE = re.compile(
    r"\b(20[0-9]{2}[-/]?[01][0-9][-/]?[0-3][0-9][ T_]{1,2}[0-2][0-9]:[0-5][0-9]):([0-5][0-9](?:[.,][0-9]{1,6})?)"
)
_WITHIN = 200
_PARTS = (
    re.compile(r"(?:([0-9]{1,4}) days?, )?([0-9]{1,5}):([0-9]{2}):([0-9]{2})"),
    re.compile(r"(?:([0-9]{1,4})d )?(?:([0-9]{1,4})h )?(?:([0-9]{1,4})m )?([0-9]{1,4})s"),
)
_STAMPED = ("day", "hour", "minute", "second")


class _Reading(NamedTuple):
    step: int
    now: float
    position: int


@dataclass
class Clock:
    """Keeps the reading that the next one counts from; ``shortest``: seconds between two readings that give a step.

    A clock that runs back begins anew, but for a reading that was there before: another rank prints it late. A number that
    falls back while the clock goes on is of another job that writes to the same file: it is left out.
    """

    shortest: float = SHORTEST
    before: _Reading | None = None
    _recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_LATE))

    def since(self, index: int, now: float, position: int | None = None) -> tuple[float, int] | None:
        """Returns (seconds a step, steps) since the reading before; None where there is none yet.

        ``position``: a count that goes up at least once a step (the batches of a bar). A step number that outran it was
        printed late, and its time is not known before the count has caught up.
        """
        if (index, now) in self._recent:
            return None
        self._recent.append((index, now))
        reading, before = _Reading(index, now, index if position is None else position), self.before
        if before is None or now < before.now:
            self.before = reading
            return None
        steps = index - before.step
        if steps < 1 or now - before.now < self.shortest or reading.position - before.position < steps:
            return None
        self.before = reading
        return (now - before.now) / steps, steps


def stamp(line: str) -> float:
    """Returns the seconds since some day of the date and time that a logger puts before a line; NaN where there are none."""
    match = _BEFORE.search(line, 0, _WITHIN)
    return math.nan if match is None else _to_the_minute(match[1]) + float(match[2].replace(",", "."))


@lru_cache(maxsize=64)
def _to_the_minute(text: str) -> float:
    """Returns the seconds of a date and time to the minute; NaN on a day that no calendar has."""
    digits = re.sub("[^0-9]", "", text)
    return _calendar_seconds(f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}", digits[8:10], digits[10:12], "0") or math.nan


def seconds_of(hours: str | None, minutes: str, seconds: str, days: str | None = None) -> float:
    """Returns the seconds of a clock's parts."""
    return ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes)) * 60.0 + int(seconds)


def elapsed_seconds(text: str) -> float | None:
    """Returns the seconds of ``4 days, 3:31:13`` or of ``3h 31m 13s``."""
    parts = next((match for pattern in _PARTS if (match := pattern.fullmatch(text))), None)
    return seconds_of(parts[2], parts[3] or "0", parts[4], parts[1]) if parts else None


def taken(said: dict[str, str]) -> float | None:
    """Removes a clock from the groups of a match and returns its seconds: a :data:`CLOCK`, a :data:`STAMP`, or the time so
    far as ``clock_s`` or ``clock_ms``; None where there is none."""
    if "clock" in said:
        *hours, minutes, seconds = said.pop("clock").split(":")
        return seconds_of(hours[0] if hours else None, minutes, seconds)
    if "day" in said:
        return _calendar_seconds(*(said.pop(name) for name in _STAMPED))
    for name, unit in (("clock_s", 1.0), ("clock_ms", 1e-3)):
        if name in said:
            return (measured(said.pop(name)) or 0.0) * unit
    return None


def _calendar_seconds(day: str, hour: str, minute: str, second: str) -> float:
    """Returns seconds since some day; 0 on a day that no calendar has."""
    try:
        days = date.fromisoformat(day).toordinal()
    except ValueError:
        return 0.0
    return seconds_of(hour, minute, "0", str(days)) + float(second.replace(",", "."))
