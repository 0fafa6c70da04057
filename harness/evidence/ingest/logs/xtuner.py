"""Logs of XTuner: ``mmengine - INFO - Iter(train) [ 10/720]  … time: 2.6851`` and, from 1.0 on, ``Step 1/100 … time: …``.

An MMEngine iteration is one micro-batch: with ``accumulative_counts`` of them to a step, which only the configuration
says. Other MMEngine trainers print the same line; of images these say so in the names of their losses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Checkpoint, Event, Fact, Step
from harness.evidence.ingest.logs.numbers import NUMBER, group
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

__all__ = ["NAME", "events", "weigh"]

NAME = "xtuner"

_OLD = re.compile(rf"Iter\(train\) \[\s{{0,12}}([0-9]{{1,15}})/[0-9]{{1,15}}\].{{0,200}}?\btime: {NUMBER}(?=\s)")
_NEW = re.compile(rf"\bStep ([0-9]{{1,15}})/[0-9]{{1,15}} .{{0,120}}?\btime: {NUMBER}(?=\s)")
_TOKENS = re.compile(rf"\btgs: {NUMBER}")
_RESERVED = re.compile(rf"\breserved_memory: {NUMBER} ?GB")
_ALLOCATED = re.compile(rf"\bmemory: {NUMBER}(?=\s)")
_LOSS = re.compile(rf"\b(?:reduced_llm_loss|loss): {NUMBER}")
_RANK = re.compile(r"\[RANK ([0-9]{1,7})\]")
_SETTING = re.compile(
    r"^\s{0,20}'?(accumulative_counts|batch_size|max_length|sequence_parallel_size)'?\s?[=:]\s?([0-9]{1,9}),?\s*$"
)
_WORDS = {
    "accumulative_counts": "gradient_accumulation_steps",
    "batch_size": "micro_batch_size",
    "max_length": "seq_length",
    "sequence_parallel_size": "sequence_parallel_size",
}
_MIB_PER_GIB = 1024  # MMEngine's "memory" is torch's maximum allocated in 2**20 bytes


def weigh(line: str) -> int:
    if ("Iter(train) [" in line and _OLD.search(line)) or ("[XTuner]" in line and _NEW.search(line)):
        return STEP
    return int("xtuner" in line or "[XTuner]" in line)


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    config = KeyedDump(_SETTING, _WORDS, least=2)
    pieces = 0
    for number, line in lines:
        if "Iter(train) [" in line or "[XTuner]" in line:
            found = _old(line, number, max(pieces, 1)) if "Iter(train) [" in line else _new(line, number, seen)
            if found is None:
                continue
            if (arguments := config.take()) is not None:
                count = arguments.values.get("gradient_accumulation_steps")
                pieces = int(count) if isinstance(count, str) and count.isdecimal() else pieces
                yield arguments
                found = _old(line, number, max(pieces, 1)) or found
            if "framework" not in seen:
                seen.add("framework")
                yield Fact("framework", NAME, number)
                if "Iter(train) [" in line and not pieces:
                    note = "times are of one iteration: of one micro-batch where gradients accumulate, which is not printed"
                    yield Fact("note", note, number)
            yield found
        elif "Saving checkpoint" in line:
            yield Checkpoint(number)
        elif not config.feed(line, number) and (event := shared(line, number, seen)) is not None:
            yield event
    if (arguments := config.take()) is not None:
        yield arguments


def _old(line: str, number: int, pieces: int) -> Step | None:
    match = _OLD.search(line)
    seconds = group(match, 2)
    if match is None or not seconds:
        return None
    used = group(_ALLOCATED.search(line))
    return Step(
        iteration=int(match[1]),
        seconds=seconds * pieces,
        line=number,
        memory_gib=used / _MIB_PER_GIB if used else None,
        memory_kind="allocated" if used else None,
        loss=group(_LOSS.search(line)),
    )


def _new(line: str, number: int, seen: set[str]) -> Step | None:
    """Every rank prints its own line: those of one of them count."""
    match = _NEW.search(line)
    rank = _RANK.search(line)
    if match is None or (rank is not None and not _mine(rank[1], seen)):
        return None
    used = group(_RESERVED.search(line))
    return Step(
        iteration=int(match[1]),
        seconds=group(match, 2),
        line=number,
        tokens_per_s=group(_TOKENS.search(line)),
        memory_gib=used,
        memory_kind="reserved" if used else None,
        loss=group(_LOSS.search(line)),
    )


def _mine(rank: str, seen: set[str]) -> bool:
    if not any(name.startswith("rank ") for name in seen):
        seen.add(f"rank {rank}")
    return f"rank {rank}" in seen
