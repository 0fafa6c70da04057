"""Logs of Megatron-Bridge: Megatron-LM's line with ``seq_length``, and the configuration as ``key: value`` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.ingest.logs import megatron
from harness.ingest.logs.dumps import CONFIGURATION, KeyedDump
from harness.ingest.logs.events import Event, Fact, Step
from harness.ingest.logs.iteration_line import is_step
from harness.ingest.logs.numbers import NUMBER, group
from harness.ingest.logs.protocol import STEP, Lines
from harness.ingest.logs.words import MEGATRON_WORDS

__all__ = ["NAME", "events", "weigh"]

NAME = "megatron-bridge"

_RATE = re.compile(rf"utilization:\s{{0,9}}{NUMBER}\s?MODEL_TFLOP/s/GPU")


def weigh(line: str) -> int:
    """The rate's own line counts as a step: without ``seq_length`` the iteration line beside it is Megatron-LM's."""
    if "MODEL_TFLOP/s/GPU" in line or (is_step(line) and "| seq_length:" in line):
        return STEP
    return int("megatron.bridge" in line or "Megatron-Bridge" in line)


def events(lines: Lines) -> Iterator[Event]:
    """Megatron-LM's events; arguments from the configuration where no dump is printed.

    The rate stands on a line of its own before the iteration line.
    """
    config = KeyedDump(CONFIGURATION, MEGATRON_WORDS, least=6)
    rate: list[float | None] = [None]
    named = False

    def watched() -> Iterator[tuple[int, str]]:
        for number, line in lines:
            if "MODEL_TFLOP" in line:
                rate[0] = group(_RATE.search(line))
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
