"""Logs of DeepSpeed: Megatron-DeepSpeed's iteration lines (BigScience), the throughput timer and the pipeline engine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs import megatron
from harness.evidence.ingest.logs.dumps import DottedDump, renamed
from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Step
from harness.evidence.ingest.logs.numbers import NUMBER, finite, measure
from harness.evidence.ingest.logs.protocol import Lines
from harness.evidence.ingest.logs.words import WORDS

NAME = "megatron-deepspeed"

_TIMER = re.compile(
    rf"(?:global_step=|\b[0-9]{{1,9}}/)([0-9]{{1,15}}), RunningAvgSamplesPerSec=.{{0,60}}?CurrSamplesPerSec={NUMBER}"
)
_ENGINE = re.compile(
    rf"steps: ([0-9]{{1,15}}) loss: {NUMBER}?.{{0,40}}? iter time \(s\): {NUMBER} samples/sec: {NUMBER}"
)
_MOST_WAITING = 200_000  # steps of the timer kept until it is clear that Megatron prints none
_PEAK = re.compile(rf"MaxMemAllocated={NUMBER}GB")


def events(lines: Lines) -> Iterator[Event]:
    """Megatron's events; steps of DeepSpeed's own lines only until Megatron prints one of its own."""
    seen: set[str] = set()
    config = DottedDump(least=4)
    waiting: list[Event] = []
    for event in megatron.events(_without_own(lines, config, waiting, seen)):
        if isinstance(event, Step):
            seen.add("megatron")
            waiting.clear()
        yield from _first(event, seen)
        yield event
    if waiting and "megatron" not in seen:
        if (printed := config.take()) is not None:
            known = renamed(printed, WORDS["deepspeed"])
            yield known._replace(values={**known.values, "deepspeed": True})
        yield from _first(waiting[0], seen)
        yield from waiting


def _without_own(lines: Lines, config: DottedDump, waiting: list[Event], seen: set[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not DeepSpeed's own; these are put into ``config`` and ``waiting``."""
    for number, line in lines:
        if "SamplesPerSec=" in line or "iter time (s):" in line:
            if "megatron" not in seen and len(waiting) < _MOST_WAITING and (found := _step(line, number)) is not None:
                waiting.append(found)
        elif "config.py" in line and "..." in line:
            config.feed(line, number)
        else:
            yield number, line


def _first(event: Event, seen: set[str]) -> Iterator[Event]:
    if isinstance(event, (Step, Arguments)) and "named" not in seen:
        seen.add("named")
        yield Fact("framework", NAME, event.line)


def _step(line: str, number: int) -> Step | None:
    """``CurrSamplesPerSec`` is of the whole job (deepspeed/utils/timer.py: batch size over the step's time)."""
    if match := _TIMER.search(line):
        peak = measure(_PEAK.search(line))
        return Step(
            iteration=int(match[1]),
            seconds=None,
            line=number,
            samples_per_s=measure(match, 2),
            memory_gib=peak,
            memory_kind="allocated" if peak else None,
        )
    if match := _ENGINE.search(line):
        return Step(
            iteration=int(match[1]),
            seconds=measure(match, 3),
            line=number,
            samples_per_s=measure(match, 4),
            loss=finite(match[2]) if match[2] else None,
        )
    return None
