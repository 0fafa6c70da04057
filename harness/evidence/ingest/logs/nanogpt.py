"""Logs of nanoGPT (``iter 10: loss 3.4575, time 92.16ms``) and of its speed runs (``step:1/1490 train_time:92ms``).

The first prints the time of the iteration, the second the training time so far, evaluations left out: a step's is the
difference of two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.evidence.ingest.logs.clock import Clock
from harness.evidence.ingest.logs.events import Evaluation, Event, Fact, Memory
from harness.evidence.ingest.logs.numbers import NUMBER, finite, group
from harness.evidence.ingest.logs.trainer import Trainer

__all__ = ["NanoGpt"]

_EVALUATED = re.compile(r"\bstep [0-9]{1,15}: train loss \S{1,20}, val loss ")
_PEAK = re.compile(rf"peak memory (?:allocated|consumption): [0-9]{{1,9}} MiB reserved: {NUMBER} MiB")
_MIB_PER_GIB = 1024


class NanoGpt(Trainer):
    NAME = "nanogpt"
    steps = {
        "train_time:": re.compile(
            rf"^\s{{0,9}}(?:s:|step:)([0-9]{{1,15}})/[0-9]{{1,15}}\s(?:(?:train_loss|loss):{NUMBER} )?"
            rf".{{0,60}}?train_time:{NUMBER}(ms|s)\b"
        ),
        # behind what a launcher may put before each line (a clock, a rank)
        "iter ": re.compile(
            rf"^(?:.{{0,80}}[\s\]:])?iter ([0-9]{{1,15}}): loss (?:{NUMBER}|-?nan|-?inf), time {NUMBER}(ms)"
        ),
    }

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(shortest=1.0)  # seconds: below, its milliseconds are too coarse

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        index, time = int(match[1]), (finite(match[3]) or 0.0) / (1000 if match[4] == "ms" else 1)
        loss = finite(match[2]) if match[2] else None
        if "train_time:" in line:
            if found := self.clock.since(index, time):
                yield self.made(line, number, index, found[0], loss=loss, mean=found[1] > 1)
        elif time:
            if match[2] is None and self.once("broken"):
                yield Fact("note", f"line {number}: the loss is no number from step {index} on", number)
            yield self.made(line, number, index, time, loss=loss)

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        if "val loss" in line and _EVALUATED.search(line):
            return [Evaluation(number)]  # the time of the iteration after it holds it
        used = group(_PEAK.search(line)) if "peak memory" in line else None
        return [Memory(used / _MIB_PER_GIB, "reserved", number)] if used else None
