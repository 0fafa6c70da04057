"""The reader of lines that a :class:`Dialect` describes: steps, settings, and what every trainer prints. A subclass reads
what a description cannot say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.evidence.ingest.logs.clock import Clock, taken
from harness.evidence.ingest.logs.dialect import Dialect
from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Lines, Mark, Memory, Step
from harness.evidence.ingest.logs.numbers import measure, measured, scaled, whole
from harness.evidence.ingest.logs.shared_lines import shared

_FINE = 20  # grains of a rounded step number between two readings: good to a twentieth
_COUNTS = ("tokens_per_s", "loss", "mib", "mb", "bytes")  # that may have thousands and no decimals
#: GiB of each unit of memory.
GIB = {"bytes": 2.0**-30, "mib": 2.0**-10, "mb": 1e6 / 2**30, "gib": 1.0, "gb": 1e9 / 2**30}


class Trainer:
    """Reads one log in the dialect ``of``."""

    def __init__(self, of: Dialect) -> None:
        self.of = of
        self.seen: set[str] = set()
        self.head: str | None = None
        self.clock = Clock(of.shortest)
        self.config = KeyedDump(of.compiled(of.settings), of.known, of.least)

    def step(self, match: re.Match[str], line: str, number: int) -> Iterable[Event]:
        """Returns the events of a line with a step; none where the line says nothing new."""
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        index, now = groups.pop("step", self.head), taken(groups)
        figures = {name: _number(name, text) for name, text in groups.items()}
        seconds, ms, minutes = (figures.pop(unit, None) for unit in ("s", "ms", "minutes"))
        if index is None:
            return ()
        if self.of.quotient:
            work, rate = (measure(self.of.compiled(pattern).search(line)) for pattern in self.of.quotient)
            return (self.made(line, number, index, work / rate, mean=True),) if work and rate else ()
        if now is not None:
            return self._step_since(index, now, line, number, figures)
        if minutes and seconds is not None:
            seconds += 60 * minutes
        return (self.made(line, number, index, ms / 1000 if ms else seconds, **figures),)

    def _step_since(
        self, index: str, now: float, line: str, number: int, figures: Mapping[str, float | None]
    ) -> Iterator[Event]:
        """Yields the mean step since an earlier line. A rounded step number (``1.68k``) has to go on far enough."""
        step, before = int(scaled(index) or 0), self.clock.before
        if before is not None and 0 <= step - before.step < _rounding(index) * _FINE:
            return
        if mean_step := self.clock.since(step, now):
            yield self.made(line, number, step, mean_step[0], mean=mean_step[1] > 1, **figures)

    def other(self, line: str, number: int) -> Iterable[Event] | None:  # noqa: ARG002
        """Returns the events of another line; None where the line is not this trainer's own."""
        return None

    def arguments(self, number: int) -> Iterable[Arguments]:  # noqa: ARG002
        """Returns the settings since the last step, before the step on line ``number`` (0: at the end)."""
        in_tokens = "tokens" in self.of.words.values()
        return [d._replace(values=_in_sequences(d.values)) if in_tokens else d for d in self.config.take()]

    def once(self, key: str) -> bool:
        """Returns whether this is the first time that ``key`` is asked for."""
        first = key not in self.seen
        self.seen.add(key)
        return first

    def made(self, line: str, number: int, iteration: int | str, seconds: float | None, **known: Any) -> Step:
        """Returns a step with the figures that the line states beside the step's number and time."""
        for name, pattern in self.of.figure_patterns.items():
            match = pattern.search(line)
            value = _number(name, match[1]) if match else None
            kind, _, unit = name.partition("_")
            if unit not in GIB:
                known[name] = value
            elif value:
                known |= {"memory_gib": value * GIB[unit], "memory_kind": kind}
        return Step(iteration=int(iteration), seconds=seconds, line=number, **known)

    def read(self, lines: Lines) -> Iterator[Event]:
        """Yields the events of a log, in its order. Never raises for any text."""
        of, steps = self.of, tuple(self.of.step_patterns.items())
        heads = of.compiled(of.heads).search if of.heads else None
        patterns = {"checkpoint": of.checkpoint, "evaluation": of.evaluation, "gpus": of.gpus, **of.memory}
        others = [(kind, of.compiled(pattern)) for kind, pattern in patterns.items() if pattern]
        for number, line in lines:
            if heads is not None and (head := heads(line)):
                self.head = head["step"]
            match = next((found for text, pattern in steps if text in line and (found := pattern.search(line))), None)
            if match is not None:
                if of.framework and self.once("framework"):
                    yield Fact("framework", of.name)
                yield from self.arguments(number)
                yield from self.step(match, line, number)
            elif (described := _described_event(others, line)) is not None:
                yield described
            elif (events := self.other(line, number)) is not None:
                yield from events
            elif not self.config.feed(line, number) and (common := shared(line, number, self.seen)) is not None:
                yield common
        yield from self.arguments(0)


def _described_event(others: Iterable[tuple[str, re.Pattern[str]]], line: str) -> Event | None:
    """Returns the event of a line without a step that its dialect describes by (kind of event, pattern)."""
    for name, pattern in others:
        if (match := pattern.search(line)) is None:
            continue
        if name == "checkpoint":
            return Mark.CHECKPOINT
        if name == "evaluation":
            return Mark.EVALUATION
        if name == "gpus":
            return Fact("gpus", int(match[1]))
        kind, _, unit = name.partition("_")
        if used := _number(name, match[1]):
            return Memory(used * GIB[unit], kind)
    return None


def _in_sequences(values: Mapping[str, object]) -> dict[str, object]:
    """Returns the settings as counts, with products taken apart. A batch in ``tokens`` is turned into sequences where the
    sequence length divides it, and stays as it is where no length is stated."""
    counts: dict[str, object] = {}
    for name, value in values.items():
        names, texts = name.split(" x "), str(value).split(" x ")
        if len(names) == len(texts):
            counts |= {part: whole(text) or 0 for part, text in zip(names, texts, strict=True)}
    if "seq_length" not in counts:
        return counts
    tokens, length = counts.pop("tokens", 0), counts["seq_length"]
    if isinstance(tokens, int) and isinstance(length, int) and length and tokens and tokens % length == 0:
        counts["global_batch_size"] = tokens // length
    return counts


def _number(name: str, text: str) -> float | None:
    """Reads a figure; where a figure has decimals, a comma alone makes it unreadable."""
    return scaled(text) if name.endswith(_COUNTS) else measured(text)


def _rounding(index: str) -> float:
    """Returns what a printed step number is rounded to; 0 for a whole one."""
    if index.isdecimal():
        return 0.0
    digits = len(index[:-1].partition(".")[2])
    return (scaled("1" + index[-1]) or 0.0) / float(10**digits)
