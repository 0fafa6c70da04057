"""What is no training of a causal language model: the one place that knows, by a benchmark's name or by a telling line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from harness.evidence.ingest.logs.events import Event, Fact, Lines
from projector.io.files import read_yaml

TASK = "other_task"  # key of the fact
_SAID = read_yaml(Path(__file__).with_name("foreign.yaml"))
_HEADED = re.compile(
    r"(?:Some weights of |argument in `)"
    r"(\w{2,40}For(?:SequenceClassification|TokenClassification|MaskedLM|ImageClassification|QuestionAnswering))\b"
)
DOCUMENTS = tuple(_SAID["documents"])  # texts of what is called .json or .jsonl and is no table
_MARKS = tuple(_SAID["marks"].items())
_TOLD = tuple((text, re.compile(pattern), what) for text, pattern, what in _SAID["told"])
_UNTIMED = tuple((re.compile(pattern), why) for pattern, why in _SAID["untimed"].items())
_WATCHED = 20_000  # lines that may say it: the head and the first steps
_LONGEST = 4000


def benchmark(name: str) -> str | None:
    """Returns what a benchmark trains; None for a language model (or a benchmark that nobody knows)."""
    task: str | None = _SAID["benchmarks"].get(name.lower().replace("-", "_"))
    return task


def unread(lines: Lines) -> str | None:
    """Returns what a log of no dialect prints instead of the time of a step, where that is known."""
    for number, line in lines:
        for pattern, what in _UNTIMED:
            if pattern.search(line[:_LONGEST]):
                return str(what)
        if number >= _WATCHED:
            break
    return None


def watched(lines: Lines, found: list[Event]) -> Iterator[tuple[int, str]]:
    """Yields the lines as they are; puts the first one that says that another model is trained into ``found``."""
    stream = iter(lines)
    for number, line in stream:
        if not found and (what := _other_task(line[:_LONGEST])) is not None:
            found.append(Fact(TASK, what))
        yield number, line
        if number >= _WATCHED:
            break
    yield from stream


def _other_task(line: str) -> str | None:
    for mark, what in _MARKS:
        if mark in line:
            return str(what)
    for text, pattern, what in _TOLD:
        if text in line and pattern.search(line):
            return str(what)
    if "For" in line and (headed := _HEADED.search(line)):
        return f"{headed[1]}, a model with another head"
    return None
