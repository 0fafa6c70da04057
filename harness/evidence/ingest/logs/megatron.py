"""Logs of Megatron-LM and of Primus: all six line shapes, the argument dump in both prefixes, timers, memory lines; and of
trainers that print its lines beside their own: DeepSpeed, Megatron-Bridge, GPT-NeoX (EleutherAI/gpt-neox@ea7aefd8
megatron/logging.py, megatron/neox_arguments/neox_args.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness.evidence.ingest.logs.dialect import WORDS
from harness.evidence.ingest.logs.dumps import CONFIGURATION, DottedDump, KeyedDump, renamed
from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Lines, Mark, Step, Timers
from harness.evidence.ingest.logs.iteration_line import has_time, step
from harness.evidence.ingest.logs.numbers import NUMBER, count, finite, group, measure, measured
from harness.evidence.ingest.logs.shared_lines import shared
from projector.intake.values import literal

NAME, DEEPSPEED, NEOX = "megatron", "megatron-deepspeed", "gpt-neox"

_WORLD = re.compile(r"using world size:\s{0,9}([0-9,]{1,12})")
_VOCABULARY = re.compile(r"padded vocab \(size: ([0-9,]{1,12})\)")
_SYNC_FREE = re.compile(r"Enable Sync-Free MoE Stage ([0-9])")
_TIMER = re.compile(r"([A-Za-z][\w/-]{1,60}):\s{0,9}([0-9]+\.?[0-9]*)")
_TIMER_LINE = re.compile(r"(?:^|[\]:>])\s{1,40}([a-z][\w-]{1,60}) \.{2,80}: \(([0-9.]{1,20}), ([0-9.]{1,20})\)")
_PRIMUS = ("hip mem usage", "compute per GPU (TFLOP", "Primus", "primus")


def events(lines: Lines) -> Iterator[Event]:
    dump = DottedDump()
    seen: set[str] = set()
    for number, line in lines:
        if has_time(line):
            if (logged_step := step(line, number)) is not None:
                yield from dump.take()
                if "world" not in seen:
                    yield from _first_line_facts(line, number, seen)
                yield logged_step
        elif "time (ms)" in line:
            start = line.index("time (ms)")  # before it may stand ``logging.py:96``
            times = ((match[1], measured(match[2])) for match in _TIMER.finditer(line, start, 8000))
            if known := {name: value / 1000 for name, value in times if value is not None}:
                yield Timers(known)
        elif "..." in line:
            if (timer := _TIMER_LINE.search(line)) and (slowest := measured(timer[3])) is not None:
                yield Timers({timer[1]: slowest / 1000})
            elif not dump.feed(line, number) and (event := shared(line, number, seen)) is not None:
                yield event
        else:
            yield from _other_line(line, number, dump, seen)
    yield from dump.take()


def _first_line_facts(line: str, number: int, seen: set[str]) -> Iterator[Event]:
    """Yields what the first iteration line says beside its step."""
    seen.add("world")
    if (event := shared(line[:200], number, seen)) is not None:
        yield event
    if "framework" not in seen and any(mark in line for mark in _PRIMUS):
        seen.add("framework")
        yield Fact("framework", "primus")


def _other_line(line: str, number: int, dump: DottedDump, seen: set[str]) -> Iterator[Event]:
    if "-- arguments --" in line:
        dump.begins()
    elif "-- end of arguments --" in line and not dump.ends():
        yield Fact("note", f"line {number}: the list of arguments begins before the log, and is not read")
    elif "world size" in line and (world := count(_WORLD.search(line))):
        dump.note("world_size", world)
        yield Mark.RESTART
        yield Fact("gpus", world)
    elif "padded vocab" in line and (vocabulary := count(_VOCABULARY.search(line))):
        yield Fact("vocab_size", vocabulary)
    elif "Sync-Free" in line and (stage := _SYNC_FREE.search(line)):
        dump.note("turbo_sync_free_moe_stage", int(stage[1]))
    elif (event := shared(line, number, seen)) is not None:
        yield event
    if "framework" not in seen and "rimus" in line:
        seen.add("framework")
        yield Fact("framework", "primus")


_THROUGHPUT = re.compile(
    rf"(?:global_step=|\b[0-9]{{1,9}}/)([0-9]{{1,15}}), RunningAvgSamplesPerSec=.{{0,60}}?CurrSamplesPerSec={NUMBER}"
)
_ENGINE = re.compile(
    rf"steps: ([0-9]{{1,15}}) loss: {NUMBER}?.{{0,40}}? iter time \(s\): {NUMBER} samples/sec: {NUMBER}"
)
_MOST_WAITING = 200_000  # steps of the timer kept until it is clear that Megatron prints none
_PEAK = re.compile(rf"MaxMemAllocated={NUMBER}GB")


def of_deepspeed(lines: Lines) -> Iterator[Event]:
    """Yields the events of Megatron-DeepSpeed (BigScience), of DeepSpeed's throughput timer and of its pipeline engine:
    Megatron's events, and steps of DeepSpeed's own lines only until Megatron prints a step."""
    seen: set[str] = set()
    config = DottedDump(least=4)
    waiting: list[Event] = []
    for event in events(_without_own(lines, config, waiting, seen)):
        if isinstance(event, Step):
            seen.add("megatron")
            waiting.clear()
        yield from _framework_once(event, seen)
        yield event
    if waiting and "megatron" not in seen:
        for printed in config.take():
            known = renamed(printed, WORDS["deepspeed"])
            yield known._replace(values={**known.values, "deepspeed": True})
        yield from _framework_once(waiting[0], seen)
        yield from waiting


def _without_own(lines: Lines, config: DottedDump, waiting: list[Event], seen: set[str]) -> Iterator[tuple[int, str]]:
    """Yields the lines that are not DeepSpeed's own; puts DeepSpeed's into ``config`` and ``waiting``."""
    for number, line in lines:
        if "SamplesPerSec=" in line or "iter time (s):" in line:
            if "megatron" not in seen and len(waiting) < _MOST_WAITING and (step := _step(line, number)) is not None:
                waiting.append(step)
        elif "config.py" in line and "..." in line:
            config.feed(line, number)
        else:
            yield number, line


def _framework_once(event: Event, seen: set[str]) -> Iterator[Event]:
    if isinstance(event, (Step, Arguments)) and "named" not in seen:
        seen.add("named")
        yield Fact("framework", DEEPSPEED)


def _step(line: str, number: int) -> Step | None:
    """Reads DeepSpeed's step; ``CurrSamplesPerSec`` is of the whole job (deepspeed/utils/timer.py: batch size over time)."""
    if match := _THROUGHPUT.search(line):
        peak = measure(_PEAK.search(line))
        kind = "allocated" if peak else None
        return Step(int(match[1]), None, number, samples_per_s=measure(match, 2), memory_gib=peak, memory_kind=kind)
    if match := _ENGINE.search(line):
        loss, rate = finite(match[2]) if match[2] else None, measure(match, 4)
        return Step(int(match[1]), measure(match, 3), number, samples_per_s=rate, loss=loss)
    return None


_STEP_TIME = re.compile(rf"Step Time :\s{{0,9}}{NUMBER}s\b")
_MOST_ALONE = 200_000  # steps kept until an iteration line is seen
_RATE = re.compile(rf"utilization:\s{{0,9}}{NUMBER}\s?(?:MODEL_)?TFLOP/s/GPU")


def of_bridge(lines: Lines) -> Iterator[Event]:
    """Yields Megatron-LM's events of Megatron-Bridge; arguments come from the configuration where no dump is printed.

    The rate stands on a line of its own before the iteration line. Without iteration lines the rounded times of these lines
    count.
    """
    config = KeyedDump(CONFIGURATION, WORDS["megatron"], least=6)
    rate: list[float | None] = [None]
    alone: list[Step] = []
    named = False

    def watched() -> Iterator[tuple[int, str]]:
        for number, line in lines:
            if "TFLOP/s/GPU" in line and "utilization:" in line:
                rate[0] = group(_RATE.search(line))
                if not named and len(alone) < _MOST_ALONE and (seconds := measure(_STEP_TIME.search(line))):
                    alone.append(Step(iteration=len(alone) + 1, seconds=seconds, line=number, tflops=rate[0]))
            elif ":" in line and len(line) < 300 and "|" not in line:
                config.feed(line, number)
            yield number, line

    for event in events(watched()):
        if isinstance(event, Step):
            if not named:
                named = True
                yield Fact("framework", "megatron-bridge")
            yield from config.take()
            if event.tflops is None and rate[0] is not None:
                event, rate[0] = event._replace(tflops=rate[0]), None
        yield event
    yield from config.take()
    if alone and not named:
        yield Fact("framework", "megatron-bridge")
        yield from alone


_SAID = re.compile(r"\.{0,3}(?:updated|default)$")


def of_neox(lines: Lines) -> Iterator[Event]:
    """Yields the events of GPT-NeoX: Megatron-LM's line behind ``samples/sec: …``, and a dump under GPT-NeoX's names,
    which are replaced by Megatron-LM's. The world size of one that the launcher prints is none of the job's."""
    for event in events(lines):
        if isinstance(event, Arguments):
            values = {name: _SAID.sub("", str(value)) for name, value in event.values.items()}
            event = renamed(event._replace(values=values), WORDS[NEOX])
        yield event


def configuration(found: Arguments) -> Mapping[str, object]:
    """Returns all arguments that were dumped and set, under GPT-NeoX's names."""
    renamed_back = ((theirs, found.values[ours]) for theirs, ours in WORDS[NEOX].items() if ours in found.values)
    read = ((name, literal(value)) for name, value in (*renamed_back, *found.unread))
    return {name: value for name, value in read if value is not None}
