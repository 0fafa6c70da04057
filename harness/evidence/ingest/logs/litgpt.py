"""Logs of litgpt: ``iter 2 step 1`` with ``iter time: 548.72 ms (step)``.

An ``iter`` is one micro-batch; ``(step)`` marks the one with the optimizer's step. A step's time is the sum of its
iterations where all are printed; where only the last is, it is taken for all (a ``note`` says so).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from harness.evidence.ingest.logs.events import Evaluation, Event, Fact, Memory
from harness.evidence.ingest.logs.numbers import NUMBER, measure, measured
from harness.evidence.ingest.logs.trainer import Trainer
from harness.evidence.ingest.logs.words import one_of, same

_MEMORY = re.compile(rf"Memory used: {NUMBER} GB")
_LATE = 64  # iterations after which none is printed again
_SOON = 8  # iterations after which the first one is a new start's
_GB = 1e9 / 2**30  # litgpt divides by 1e9


class LitGpt(Trainer):
    NAME = "litgpt"
    steps = {
        "iter time:": re.compile(
            r"\biter\s{1,9}([0-9]{1,15})\s{1,9}step\s{1,9}([0-9]{1,15}) \|"
            rf".{{0,120}}?iter time:\s{{1,9}}{NUMBER} ms(\s\(step\))?"
        )
    }
    hints = ("litgpt.", "lit_model")
    figures = {"loss": re.compile(rf"loss train: {NUMBER}")}
    words = {
        **same("devices", "num_nodes", "global_batch_size", "micro_batch_size", "model_name"),
        "max_seq_length": "seq_length",
    }
    settings = re.compile(rf"(?:^|[\s(])'?{one_of(words)}'?[:=]\s?('?[\w./-]{{1,80}}'?)[,)}}](?![0-9])")
    said = {"Validating": Evaluation}

    def __init__(self) -> None:
        """The iterations since the last optimizer step; ``complete``: none is missing."""
        super().__init__()
        self.seconds, self.last, self.complete = 0.0, -1, False
        self.recent: deque[int] = deque(maxlen=_LATE)

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        index, step, seconds = int(match[1]), int(match[2]), (measured(match[3]) or 0.0) / 1000
        if index in self.recent and (index > 1 or self.last < _SOON):
            return  # another rank's print
        self.recent.append(index)
        if index != self.last + 1:
            self.seconds, self.complete = 0.0, index == 1
        self.last = index
        self.seconds += seconds
        if match[4] is None or not step or not seconds:
            return
        pieces = 1 if self.complete else max(round(index / step), 1)
        if pieces > 1 and self.once("pieces"):
            yield Fact("note", f"times are of one micro-batch of {pieces} a step: the others are not printed", number)
        yield self.made(line, number, step, self.seconds if self.complete else seconds * pieces)
        self.seconds, self.complete = 0.0, True

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        used = measure(_MEMORY.search(line)) if "Memory used:" in line else None
        return [Memory(used * _GB, "allocated", number)] if used else None
