"""Logs of tinygrad's trainer: ``    4 4.32 s run, 11.8750 loss, …, 1454.57 GB used, 401488.40 GFLOPS``.

Memory and rate are those of all its GPUs together, and the line does not say how many: neither is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.events import Event, Step
from harness.evidence.ingest.logs.numbers import NUMBER, finite
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

__all__ = ["NAME", "events", "weigh"]

NAME = "tinygrad"

_STEP = re.compile(rf"^\s{{0,20}}([0-9]{{1,15}})\s{{1,9}}{NUMBER} (m?s) run,(?: {NUMBER} loss,)?")


def weigh(line: str) -> int:
    return STEP if " run, " in line and " loss, " in line and _STEP.match(line) else 0


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    for number, line in lines:
        match = _STEP.match(line) if " run, " in line else None
        seconds = finite(match[2]) if match else None
        if match and seconds:
            yield Step(
                iteration=int(match[1]),
                seconds=seconds / (1000 if match[3] == "ms" else 1),
                line=number,
                loss=finite(match[4]) if match[4] else None,
            )
        elif (event := shared(line, number, seen)) is not None:
            yield event
