"""Logs of MaxText: ``completed step: …`` lines and the ``Config param`` lines before them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Checkpoint, Evaluation, Event, Fact, Step
from harness.evidence.ingest.logs.numbers import NUMBER, finite, group, loss
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared
from harness.evidence.ingest.logs.words import MAXTEXT_WORDS

__all__ = ["NAME", "events", "weigh"]

NAME = "maxtext"

_STEP = re.compile(rf"completed step: ([0-9]{{1,15}}), seconds:\s{{0,9}}{NUMBER}(?=,)")
_TFLOPS = re.compile(rf"TFLOP/s(?:/device)?:\s{{0,9}}{NUMBER}")
_TOKENS = re.compile(rf"Tokens/s/device:\s{{0,9}}{NUMBER}")
_PARAMETER = re.compile(r"Config param (\w{1,60}):\s?(.{0,200})")
_DEVICES = re.compile(r"[Nn]um_devices[:=]?\s{0,3}([0-9]{1,7})")


def weigh(line: str) -> int:
    if "completed step:" in line and _STEP.search(line):
        return STEP
    return int("Config param " in line)


def events(lines: Lines) -> Iterator[Event]:
    config = KeyedDump(_PARAMETER, MAXTEXT_WORDS)
    seen: set[str] = set()
    for number, line in lines:
        if "completed step:" in line:
            found = _step(line, number)
            if found is None:
                continue
            if "framework" not in seen:
                seen.add("framework")
                yield Fact("framework", NAME, number)
            if (arguments := config.take()) is not None:
                yield arguments
            yield found
        elif "Config param " in line:
            config.feed(line, number)
        elif "eval metrics" in line:
            yield Evaluation(number)
        elif "saved a checkpoint at step" in line:
            yield Checkpoint(number)
        elif "evices" in line and (devices := _DEVICES.search(line)):
            yield Fact("gpus", int(devices[1]), number)
        elif (event := shared(line, number, seen)) is not None:
            yield event
    if (arguments := config.take()) is not None:
        yield arguments


def _step(line: str, number: int) -> Step | None:
    match = _STEP.search(line)
    seconds = finite(match[2]) if match else None
    if match is None or not seconds:
        return None
    return Step(
        iteration=int(match[1]),
        seconds=seconds,
        line=number,
        tokens_per_s=group(_TOKENS.search(line)),
        tflops=group(_TFLOPS.search(line)),
        loss=loss(line),
    )
