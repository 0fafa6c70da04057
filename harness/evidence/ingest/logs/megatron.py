"""Logs of Megatron-LM and of Primus: all six line shapes, the argument dump in both prefixes, timers, memory lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.dumps import DottedDump
from harness.evidence.ingest.logs.events import Event, Fact, Restart, Timers
from harness.evidence.ingest.logs.iteration_line import Steps, has_time
from harness.evidence.ingest.logs.numbers import measured, whole
from harness.evidence.ingest.logs.protocol import Lines
from harness.evidence.ingest.logs.shared_lines import shared

NAME = "megatron"

_WORLD = re.compile(r"using world size:\s{0,9}([0-9,]{1,12})")
_VOCABULARY = re.compile(r"padded vocab \(size: ([0-9,]{1,12})\)")
_SYNC_FREE = re.compile(r"Enable Sync-Free MoE Stage ([0-9])")
_TIMER = re.compile(r"([A-Za-z][\w/-]{1,60}):\s{0,9}([0-9]+\.?[0-9]*)")
_TIMER_LINE = re.compile(r"(?:^|[\]:>])\s{1,40}([a-z][\w-]{1,60}) \.{2,80}: \(([0-9.]{1,20}), ([0-9.]{1,20})\)")
_PRIMUS = ("hip mem usage", "compute per GPU (TFLOP", "Primus", "primus")


def events(lines: Lines) -> Iterator[Event]:
    dump, steps = DottedDump(), Steps()
    seen: set[str] = set()
    for number, line in lines:
        if has_time(line):
            if (found := steps.read(line, number)) is not None:
                if (arguments := dump.take()) is not None:
                    yield arguments
                if "world" not in seen:
                    yield from _once(line, number, seen)
                yield found
        elif "time (ms)" in line:
            yield from _timers(line, number)
        elif "..." in line:
            if (timer := _TIMER_LINE.search(line)) and (slowest := measured(timer[3])) is not None:
                yield Timers({timer[1]: slowest / 1000}, number)
            elif not dump.feed(line, number) and (event := shared(line, number, seen)) is not None:
                yield event
        else:
            yield from _other(line, number, dump, seen)
    if (arguments := dump.take()) is not None:
        yield arguments


def _once(line: str, number: int, seen: set[str]) -> Iterator[Event]:
    """What the first iteration line says beside its step."""
    seen.add("world")
    if (event := shared(line[:200], number, seen)) is not None:
        yield event
    if "framework" not in seen and any(mark in line for mark in _PRIMUS):
        seen.add("framework")
        yield Fact("framework", "primus", number)


def _timers(line: str, number: int) -> Iterator[Event]:
    found = {match[1]: value for match in _TIMER.finditer(line, 0, 8000) if (value := measured(match[2])) is not None}
    if found:
        yield Timers({name: value / 1000 for name, value in found.items()}, number)


def _other(line: str, number: int, dump: DottedDump, seen: set[str]) -> Iterator[Event]:
    if "-- arguments --" in line:
        dump.begins()
    elif "-- end of arguments --" in line and not dump.ends():
        yield Fact("note", f"line {number}: the list of arguments begins before the log, and is not read", number)
    elif "world size" in line and (world := _count(_WORLD, line)):
        dump.note("world_size", world)
        yield Fact("gpus", world, number)
        yield Restart("a new start", number)
    elif "padded vocab" in line and (vocabulary := _count(_VOCABULARY, line)):
        yield Fact("vocab_size", vocabulary, number)
    elif "Sync-Free" in line and (stage := _SYNC_FREE.search(line)):
        dump.note("turbo_sync_free_moe_stage", int(stage[1]))
    elif (event := shared(line, number, seen)) is not None:
        yield event
    if "framework" not in seen and "rimus" in line:
        seen.add("framework")
        yield Fact("framework", "primus", number)


def _count(pattern: re.Pattern[str], line: str) -> int | None:
    match = pattern.search(line)
    return whole(match[1]) if match else None
