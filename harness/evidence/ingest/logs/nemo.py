"""Logs of NeMo: NeMo 2's progress line (``train_step_timing in s: …``) and NeMo 1's progress bar (``…=…``).

Releases of NeMo 1 that do not time their steps print a bar alone. Its ``s/it`` is the mean since the start, evaluations and
checkpoints in it; the step is the time from one print of the bar's clock to a later one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.dumps import CONFIGURATION, KeyedDump
from harness.evidence.ingest.logs.events import Event, Fact, Step
from harness.evidence.ingest.logs.numbers import NUMBER, counted, finite, group, loss
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared
from harness.evidence.ingest.logs.words import NEMO_WORDS

__all__ = ["NAME", "events", "weigh"]

NAME = "nemo"

_TIMING = re.compile(rf"train_step_timing in s[:=]\s?{NUMBER}(?=[\s,|\]])")
_STEP = re.compile(rf"global_step[:=]\s?{NUMBER}")
_ITERATION = re.compile(r"iteration ([0-9]{1,18})/")
_BAR = re.compile(r"\|\s{0,3}([0-9]{1,15})/[0-9]{1,15} \[")
_CLOCK = re.compile(r"\|\s{0,3}[0-9]{1,15}/[0-9]{1,15} \[(?:([0-9]{1,5}):)?([0-9]{1,2}):([0-9]{2})<")
_SHORTEST = 20.0  # seconds from print to print: the bar counts whole ones, so that an interval is good to a twentieth
_BATCH = re.compile(rf"global_batch_size[:=]\s?{NUMBER}")
_TOKENS = re.compile(rf"tokens_per_sec_per_gpu[:=]\s?{NUMBER}")
_TFLOPS = re.compile(rf"TFLOPS_per_GPU[:=]\s?{NUMBER}")
_PEAK = re.compile(rf"peak_memory_usage[:=]\s?{NUMBER}")
_GIB = 2**30


def weigh(line: str) -> int:
    if "train_step_timing in s" in line and _TIMING.search(line):
        return STEP
    if _is_bar(line) and _CLOCK.search(line):
        return STEP
    return int("[NeMo " in line or "Experiment configuration" in line)


def _is_bar(line: str) -> bool:
    return "reduced_train_loss=" in line and "global_step=" in line


def events(lines: Lines) -> Iterator[Event]:
    """Progress bars repeat a step until the next is done: the first print of a step counts, so a repeat is no step."""
    config = KeyedDump(CONFIGURATION, NEMO_WORDS, least=6)
    seen: set[str] = set()
    named = timed = False
    last = -1
    before: tuple[int, float] | None = None
    for number, line in lines:
        if (times := "train_step_timing in s" in line) or (not timed and _is_bar(line)):
            timed = timed or times
            if times:
                found = _step(line, number)
            else:
                found, before = _between(line, number, before)
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


def _index(line: str) -> int | None:
    """The step's number. The bar rounds its counts to three digits from 1000 on (``global_step=1.01e+3``): there the
    bar's own position, else the line's ``iteration``, is the number."""
    step = _STEP.search(line)
    exact = step is not None and not any(mark in step[1] for mark in "eE")
    found = step if exact else _BAR.search(line) or _ITERATION.search(line) or step
    return counted(found[1]) if found else None


def _between(line: str, number: int, before: tuple[int, float] | None) -> tuple[Step | None, tuple[int, float] | None]:
    """(mean step since the print before, the print that the next one counts from)."""
    clock, index = _CLOCK.search(line), _index(line)
    if clock is None or index is None:
        return None, before
    now = int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3])
    if before is None or index < before[0] or now < before[1]:
        return None, (index, now)
    steps, seconds = index - before[0], now - before[1]
    if not steps or seconds < _SHORTEST:
        return None, before
    return Step(iteration=index, seconds=seconds / steps, line=number, loss=loss(line), mean=steps > 1), (index, now)


def _step(line: str, number: int) -> Step | None:
    timing = _TIMING.search(line)
    seconds = finite(timing[1]) if timing else None
    index = _index(line)
    if not seconds or index is None:
        return None
    batch = _BATCH.search(line)
    peak = group(_PEAK.search(line))
    return Step(
        iteration=index,
        seconds=seconds,
        line=number,
        tokens_per_s=group(_TOKENS.search(line)),
        tflops=group(_TFLOPS.search(line)),
        global_batch_size=counted(batch[1]) if batch else None,
        memory_gib=peak / _GIB if peak else None,
        memory_kind="allocated" if peak else None,
        loss=loss(line),
    )
