"""Logs of nanoGPT (``iter 10: loss 3.4575, time 92.16ms``) and of its speed runs (``step:1/1490 train_time:92ms``).

The first prints the time of the iteration, the second the training time so far, evaluations left out: a step's is the
difference of two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.events import Evaluation, Event, Fact, Memory, Step
from harness.evidence.ingest.logs.numbers import NUMBER, finite
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

__all__ = ["NAME", "events", "weigh"]

NAME = "nanogpt"

#: Behind what a launcher may put before each line (a clock, a rank).
_ITERATION = re.compile(rf"^(?:.{{0,80}}[\s\]:])?iter ([0-9]{{1,15}}): loss (?:{NUMBER}|-?nan|-?inf), time {NUMBER}ms")
_EVALUATED = re.compile(r"\bstep [0-9]{1,15}: train loss \S{1,20}, val loss ")
_TRAINED = re.compile(
    rf"^\s{{0,9}}(?:s:|step:)([0-9]{{1,15}})/[0-9]{{1,15}}\s(?:(?:train_loss|loss):{NUMBER} )?"
    rf".{{0,60}}?train_time:{NUMBER}(ms|s)\b"
)
_PEAK = re.compile(rf"peak memory (?:allocated|consumption): [0-9]{{1,9}} MiB(?: reserved: {NUMBER} MiB)?")
_SHORTEST = 1.0  # seconds between two readings of the clock: below, its milliseconds are too coarse
_MIB_PER_GIB = 1024


def weigh(line: str) -> int:
    if "train_time:" in line and _TRAINED.match(line):
        return STEP
    return STEP if "iter " in line and "ms" in line and _ITERATION.match(line) else 0


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    before: tuple[int, float] | None = None
    for number, line in lines:
        found: Step | None = None
        if "train_time:" in line:
            if (match := _TRAINED.match(line)) is not None:
                found, before = _between(match, before, number)
        elif "iter " in line and (match := _ITERATION.match(line)) is not None and (time := finite(match[3])):
            found = Step(iteration=int(match[1]), seconds=time / 1000, line=number, loss=finite(match[2] or ""))
            if match[2] is None and "broken" not in seen:
                seen.add("broken")
                yield Fact("note", f"line {number}: the loss is no number from step {match[1]} on", number)
        elif "val loss" in line and _EVALUATED.search(line):
            yield Evaluation(number)  # the time of the iteration after it holds it
        elif "peak memory" in line and (peak := _PEAK.search(line)) and peak[1] and (used := finite(peak[1])):
            yield Memory(used / _MIB_PER_GIB, "reserved", number)
        elif (event := shared(line, number, seen)) is not None:
            yield event
        if found is not None:
            if "framework" not in seen:
                seen.add("framework")
                yield Fact("framework", NAME, number)
            yield found


def _between(
    match: re.Match[str], before: tuple[int, float] | None, number: int
) -> tuple[Step | None, tuple[int, float] | None]:
    """(mean step since the reading before, the reading that the next one counts from)."""
    index, time = int(match[1]), (finite(match[3]) or 0.0) / (1000 if match[4] == "ms" else 1)
    if before is None or index <= before[0] or time <= before[1]:
        return None, before if before is not None and index == before[0] else (index, time)
    if time - before[1] < _SHORTEST:
        return None, before
    steps = index - before[0]
    seconds = (time - before[1]) / steps
    loss = finite(match[2]) if match[2] else None
    return Step(iteration=index, seconds=seconds, line=number, loss=loss, mean=steps > 1), (index, time)
