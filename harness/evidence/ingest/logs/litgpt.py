"""Logs of litgpt: ``iter 2 step 1`` with ``iter time: 548.72 ms (step)``.

An ``iter`` is one micro-batch; ``(step)`` marks the one with the optimizer's step. A step's time is the sum of its
iterations where all are printed; where only the last is, it is taken for all (a ``note`` says so).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Evaluation, Event, Fact, Memory, Step
from harness.evidence.ingest.logs.numbers import NUMBER, finite, group
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

__all__ = ["NAME", "events", "weigh"]

NAME = "litgpt"

_ITERATION = re.compile(
    r"\biter\s{1,9}([0-9]{1,15})\s{1,9}step\s{1,9}([0-9]{1,15}) \|"
    rf".{{0,120}}?iter time:\s{{1,9}}{NUMBER} ms(\s\(step\))?"
)
_LOSS = re.compile(rf"loss train: {NUMBER}")
_MEMORY = re.compile(rf"Memory used: {NUMBER} GB")
_SETTING = re.compile(
    r"(?:^|[\s(])'?(devices|num_nodes|global_batch_size|micro_batch_size|max_seq_length|model_name)'?[:=]\s?"
    r"('?[\w./-]{1,80}'?)[,)}]"
)
_WORDS = {
    "devices": "devices",
    "num_nodes": "num_nodes",
    "global_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size",
    "max_seq_length": "seq_length",
    "model_name": "model_name",
}
_GB = 1e9 / 2**30  # litgpt divides by 1e9


def weigh(line: str) -> int:
    if "iter time:" in line and _ITERATION.search(line):
        return STEP
    return int("litgpt." in line or "lit_model" in line)


@dataclass
class _Sum:
    """The iterations since the last optimizer step; ``complete``: none is missing."""

    seconds: float = 0.0
    last: int = -1
    complete: bool = False


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    config = KeyedDump(_SETTING, _WORDS, least=2)
    since = _Sum()
    for number, line in lines:
        if "iter time:" in line:
            if (match := _ITERATION.search(line)) is not None:
                if "framework" not in seen:
                    seen.add("framework")
                    yield Fact("framework", NAME, number)
                if (arguments := config.take()) is not None:
                    yield arguments
                yield from _iteration(match, line, number, since, seen)
        elif "Memory used:" in line and (used := group(_MEMORY.search(line))):
            yield Memory(used * _GB, "allocated", number)
        elif "Validating" in line:
            yield Evaluation(number)
        elif not config.feed(line, number) and (event := shared(line, number, seen)) is not None:
            yield event
    if (arguments := config.take()) is not None:
        yield arguments


def _iteration(match: re.Match[str], line: str, number: int, since: _Sum, seen: set[str]) -> Iterator[Event]:
    index, step, seconds = int(match[1]), int(match[2]), (finite(match[3]) or 0.0) / 1000
    if index != since.last + 1:
        since.seconds, since.complete = 0.0, index == 1
    since.last = index
    since.seconds += seconds
    if match[4] is None or not step or not seconds:
        return
    pieces = 1 if since.complete else max(round(index / step), 1)
    if pieces > 1 and "pieces" not in seen:
        seen.add("pieces")
        yield Fact("note", f"times are of one micro-batch of {pieces} a step: the others are not printed", number)
    total = since.seconds if since.complete else seconds * pieces
    yield Step(iteration=step, seconds=total, line=number, loss=group(_LOSS.search(line)))
    since.seconds, since.complete = 0.0, True
