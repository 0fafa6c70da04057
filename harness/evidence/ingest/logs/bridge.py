"""Logs of Megatron-Bridge: Megatron-LM's line with ``seq_length``, and the configuration as ``key: value`` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs import megatron
from harness.evidence.ingest.logs.dumps import CONFIGURATION, KeyedDump
from harness.evidence.ingest.logs.events import Event, Fact, Step
from harness.evidence.ingest.logs.numbers import NUMBER, group, measure
from harness.evidence.ingest.logs.protocol import Lines
from harness.evidence.ingest.logs.words import WORDS

NAME = "megatron-bridge"

_TIME = re.compile(rf"Step Time :\s{{0,9}}{NUMBER}s\b")
_MOST_ALONE = 200_000  # steps kept until an iteration line is seen
_RATE = re.compile(rf"utilization:\s{{0,9}}{NUMBER}\s?(?:MODEL_)?TFLOP/s/GPU")


def events(lines: Lines) -> Iterator[Event]:
    """Megatron-LM's events; arguments from the configuration where no dump is printed.

    The rate stands on a line of its own before the iteration line. Where these are all there is, their rounded times count.
    """
    config = KeyedDump(CONFIGURATION, WORDS["megatron"], least=6)
    rate: list[float | None] = [None]
    alone: list[Step] = []
    named = False

    def watched() -> Iterator[tuple[int, str]]:
        for number, line in lines:
            if "TFLOP/s/GPU" in line and "utilization:" in line:
                rate[0] = group(_RATE.search(line))
                if not named and len(alone) < _MOST_ALONE and (seconds := measure(_TIME.search(line))):
                    alone.append(Step(iteration=len(alone) + 1, seconds=seconds, line=number, tflops=rate[0]))
            elif ":" in line and len(line) < 300 and "|" not in line:
                config.feed(line, number)
            yield number, line

    for event in megatron.events(watched()):
        if isinstance(event, Step):
            if not named:
                named = True
                yield Fact("framework", NAME, event.line)
            if (arguments := config.take()) is not None:
                yield arguments
            if event.tflops is None and rate[0] is not None:
                event, rate[0] = event._replace(tflops=rate[0]), None
        yield event
    if (arguments := config.take()) is not None:
        yield arguments
    if alone and not named:
        yield Fact("framework", NAME, alone[0].line)
        yield from alone
