"""Logs of NeMo: NeMo 2's progress line (``train_step_timing in s: …``) and NeMo 1's progress bar (``…=…``)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.ingest.logs.dumps import CONFIGURATION, KeyedDump
from harness.ingest.logs.events import Event, Fact, Step
from harness.ingest.logs.numbers import NUMBER, finite, group, loss, whole
from harness.ingest.logs.protocol import STEP, Lines
from harness.ingest.logs.shared_lines import shared
from harness.ingest.logs.words import NEMO_WORDS

__all__ = ["NAME", "events", "weigh"]

NAME = "nemo"

_TIMING = re.compile(rf"train_step_timing in s[:=]\s?{NUMBER}(?=[\s,|\]])")
_STEP = re.compile(r"global_step[:=]\s?([0-9]{1,15})")
_ITERATION = re.compile(r"iteration ([0-9]{1,18})/")
_BATCH = re.compile(r"global_batch_size[:=]\s?([0-9]{1,15})")
_TOKENS = re.compile(rf"tokens_per_sec_per_gpu[:=]\s?{NUMBER}")
_TFLOPS = re.compile(rf"TFLOPS_per_GPU[:=]\s?{NUMBER}")
_PEAK = re.compile(rf"peak_memory_usage[:=]\s?{NUMBER}")
_VALIDATED = re.compile(r"val(?:idation)?_loss[:=]|Validation DataLoader|validation_step_timing")
_GIB = 2**30


def weigh(line: str) -> int:
    if "train_step_timing in s" in line and _TIMING.search(line):
        return STEP
    return int("[NeMo " in line or "Experiment configuration" in line)


def events(lines: Lines) -> Iterator[Event]:
    """Progress bars repeat a step until the next is done: the first print of a step counts, so a repeat is no step."""
    config = KeyedDump(CONFIGURATION, NEMO_WORDS, least=6)
    seen: set[str] = set()
    named = False
    last = -1
    for number, line in lines:
        if "train_step_timing in s" in line:
            found = _step(line, number)
            if found is None or found.iteration == last:
                continue
            if not named:
                named = True
                yield Fact("framework", NAME, number)
            if (arguments := config.take()) is not None:
                yield arguments
            last = found.iteration
            yield found
        elif len(line) < 300 and ":" in line and "|" not in line and config.feed(line, number):
            continue
        elif (event := shared(line, number, seen)) is not None:
            yield event
    if (arguments := config.take()) is not None:
        yield arguments


def _step(line: str, number: int) -> Step | None:
    timing = _TIMING.search(line)
    seconds = finite(timing[1]) if timing else None
    index = _STEP.search(line) or _ITERATION.search(line)
    if not seconds or index is None:
        return None
    batch = _BATCH.search(line)
    peak = group(_PEAK.search(line))
    return Step(
        iteration=int(index[1]),
        seconds=seconds,
        line=number,
        tokens_per_s=group(_TOKENS.search(line)),
        tflops=group(_TFLOPS.search(line)),
        global_batch_size=whole(batch[1]) if batch else None,
        memory_gib=peak / _GIB if peak else None,
        memory_kind="allocated" if peak else None,
        loss=loss(line),
    )
