"""Logs of PaddleNLP's trainer: ``loss: …, global_step: 10, interval_runtime: 2.2591, interval_steps_per_second: 4.427, …``.

The time of a step is the interval's over its steps: from one printed ``global_step`` to the next, and of the first line
by its steps a second. Samples a second are not taken: releases before 2.4 counted one batch an interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Checkpoint, Evaluation, Event, Fact, Step
from harness.evidence.ingest.logs.numbers import NUMBER, group
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

__all__ = ["NAME", "events", "weigh"]

NAME = "paddlenlp"

_STEP = re.compile(r"\bglobal_step: ([0-9]{1,15})\b")
_RUNTIME = re.compile(rf"\binterval_runtime: {NUMBER}")
_STEPS = re.compile(rf"\binterval_steps_per_second: {NUMBER}")
_TOKENS = re.compile(rf"\binterval_tokens_per_second_per_device: {NUMBER}")
_RESERVED = re.compile(rf"\bmax_memory_reserved: {NUMBER}")
_LOSS = re.compile(rf"\bloss: {NUMBER}")
_SETTING = re.compile(
    r"- ?\s{0,20}(Instantaneous batch size per device|Total train batch size \(w\. parallel, distributed & accumulation\)"
    r"|tensor_parallel_degree|pipeline_parallel_degree|max_seq_length|max_seq_len|model_name_or_path|world_size)\s{0,20}"
    r"[=:]\s{0,3}(\S{1,120})"
)
_WORDS = {
    "Instantaneous batch size per device": "micro_batch_size",
    "Total train batch size (w. parallel, distributed & accumulation)": "global_batch_size",
    "tensor_parallel_degree": "tensor_model_parallel_size",
    "pipeline_parallel_degree": "pipeline_model_parallel_size",
    "max_seq_length": "seq_length",
    "max_seq_len": "seq_length",
    "model_name_or_path": "model_name",
    "world_size": "world_size",
}
_AGREE = 0.05  # relative: steps a second are printed to three or four digits


def weigh(line: str) -> int:
    if "interval_runtime:" in line and _STEP.search(line):
        return STEP
    return int("paddle" in line and ("PaddleNLP" in line or "paddlenlp" in line))


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    config = KeyedDump(_SETTING, _WORDS, least=2)
    last = -1
    for number, line in lines:
        if "interval_runtime:" in line:
            if (found := _step(line, number, last)) is not None:
                if "framework" not in seen:
                    seen.add("framework")
                    yield Fact("framework", NAME, number)
                if (arguments := config.take()) is not None:
                    yield arguments
                last = found.iteration
                yield found
        elif "Running Evaluation" in line:
            yield Evaluation(number)
        elif "Saving model checkpoint to" in line:
            yield Checkpoint(number)
        elif not config.feed(line, number) and (event := shared(line, number, seen)) is not None:
            yield event
    if (arguments := config.take()) is not None:
        yield arguments


def _step(line: str, number: int, last: int) -> Step | None:
    index, runtime, rate = _STEP.search(line), group(_RUNTIME.search(line)), group(_STEPS.search(line))
    if index is None or not runtime:
        return None
    iteration = int(index[1])
    steps = iteration - last if 0 <= last < iteration else round(runtime * rate) if rate else 0
    if rate and steps and abs(steps / (runtime * rate) - 1) > max(_AGREE, 0.5 / steps):
        steps = round(runtime * rate)  # a restart, or lines that are missing
    if steps < 1:
        return None
    reserved = group(_RESERVED.search(line))
    return Step(
        iteration=iteration,
        seconds=runtime / steps,
        line=number,
        tokens_per_s=group(_TOKENS.search(line)),
        memory_gib=reserved if reserved and reserved < 1000 else None,
        memory_kind="reserved" if reserved and reserved < 1000 else None,
        loss=group(_LOSS.search(line)),
        mean=steps > 1,
    )
