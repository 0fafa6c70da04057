"""Logs of PaddleNLP's trainer: ``loss: …, global_step: 10, interval_runtime: 2.2591, interval_steps_per_second: 4.427, …``.

The time of a step is the interval's over its steps: from one printed ``global_step`` to the next, and of the first line
by its steps a second. Samples a second are not taken: releases before 2.4 counted one batch an interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.events import Checkpoint, Evaluation, Event
from harness.evidence.ingest.logs.numbers import NUMBER, measure
from harness.evidence.ingest.logs.trainer import Trainer
from harness.evidence.ingest.logs.words import TRAINER_WORDS, one_of, same

_RUNTIME = re.compile(rf"\binterval_runtime: {NUMBER}")
_STEPS = re.compile(rf"\binterval_steps_per_second: {NUMBER}")
_AGREE = 0.05  # relative: steps a second are printed to three or four digits


class PaddleNlp(Trainer):
    NAME = "paddlenlp"
    steps = {"interval_runtime:": re.compile(r"\bglobal_step: ([0-9]{1,15})\b")}
    hints = ("PaddleNLP", "paddlenlp")
    figures = {
        "tokens_per_s": re.compile(rf"\binterval_tokens_per_second_per_device: {NUMBER}"),
        "reserved_gib": re.compile(r"\bmax_memory_reserved: ([0-9]{1,3}(?:\.[0-9]*)?)(?![0-9,])"),
        "loss": re.compile(rf"\bloss: {NUMBER}"),
    }
    words = {
        **TRAINER_WORDS,
        "tensor_parallel_degree": "tensor_model_parallel_size",
        "pipeline_parallel_degree": "pipeline_model_parallel_size",
        "max_seq_length": "seq_length",
        "max_seq_len": "seq_length",
        "model_name_or_path": "model_name",
        **same("world_size"),
    }
    settings = re.compile(rf"- ?\s{{0,20}}{one_of(words)}\s{{0,20}}[=:]\s{{0,3}}(\S{{1,120}})")
    said = {"Running Evaluation": Evaluation, "Saving model checkpoint to": Checkpoint}
    last = -1

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        iteration, runtime, rate = int(match[1]), measure(_RUNTIME.search(line)), measure(_STEPS.search(line))
        if not runtime:
            return
        steps = iteration - self.last if 0 <= self.last < iteration else round(runtime * rate) if rate else 0
        if rate and steps and abs(steps / (runtime * rate) - 1) > max(_AGREE, 0.5 / steps):
            steps = round(runtime * rate)  # a restart, or lines that are missing
        if steps >= 1:
            self.last = iteration
            yield self.made(line, number, iteration, runtime / steps, mean=steps > 1)
