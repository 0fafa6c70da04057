"""Logs of XTuner: ``mmengine - INFO - Iter(train) [ 10/720]  … time: 2.6851`` and, from 1.0 on, ``Step 1/100 … time: …``.

An MMEngine iteration is one micro-batch: with ``accumulative_counts`` of them to a step, which only the configuration
says. Other MMEngine trainers print the same line; of images these say so in the names of their losses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.events import Arguments, Checkpoint, Event, Fact
from harness.evidence.ingest.logs.numbers import NUMBER, measure
from harness.evidence.ingest.logs.trainer import Trainer
from harness.evidence.ingest.logs.words import one_of, same

_OLD = "Iter(train) ["
_PIECES = "times of one micro-batch: how many make a step (`accumulative_counts`) is not printed"
_RANK = re.compile(r"\[RANK ([0-9]{1,7})\]")


class XTuner(Trainer):
    NAME = "xtuner"
    steps = {
        _OLD: re.compile(
            rf"Iter\(train\) \[\s{{0,12}}([0-9]{{1,15}})/[0-9]{{1,15}}\].{{0,200}}?\btime: {NUMBER}(?=\s)"
        ),
        "[XTuner]": re.compile(rf"\bStep ([0-9]{{1,15}})/[0-9]{{1,15}} .{{0,120}}?\btime: {NUMBER}(?=\s)"),
    }
    hints = ("xtuner", "[XTuner]")
    figures = {
        "tokens_per_s": re.compile(rf"\btgs: {NUMBER}"),
        "allocated_mib": re.compile(rf"\bmemory: {NUMBER}(?=\s{{1,9}}\S)"),
        "reserved_gib": re.compile(rf"\breserved_memory: {NUMBER} ?GB"),
        "loss": re.compile(rf"\b(?:reduced_llm_loss|loss): {NUMBER}"),
    }
    words = {
        "accumulative_counts": "gradient_accumulation_steps",
        "batch_size": "micro_batch_size",
        "max_length": "seq_length",
        **same("sequence_parallel_size"),
    }
    settings = re.compile(rf"^\s{{0,20}}'?{one_of(words)}'?\s?[=:]\s?([0-9]{{1,9}}),?\s*$")
    said = {"Saving checkpoint": Checkpoint}

    def __init__(self) -> None:
        super().__init__()
        self.pieces, self.rank = 0, ""

    def arguments(self, number: int) -> Iterator[Arguments]:
        for found in super().arguments(number):
            self.pieces = int(str(found.values.get("gradient_accumulation_steps", self.pieces)))
            yield found

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        """From 1.0 on every rank prints its own line: those of one of them count."""
        rank = _RANK.search(line)
        if rank is not None and _OLD not in line:
            self.rank = self.rank or rank[1]
            if rank[1] != self.rank:
                return
        if not (seconds := measure(match, 2)):
            return
        if _OLD not in line:
            yield self.made(line, number, match[1], seconds)
        elif self.pieces:
            yield self.made(line, number, match[1], seconds * self.pieces)
        elif self.once("pieces"):
            yield Fact("note", _PIECES, number)
