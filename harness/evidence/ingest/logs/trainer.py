"""The reader of lines that a :class:`Dialect` describes: steps, settings, and what every trainer prints. A subclass reads
what a description cannot say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.evidence.ingest.logs.clock import Clock, taken
from harness.evidence.ingest.logs.dialect import Dialect
from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Arguments, Checkpoint, Evaluation, Event, Fact, Lines, Memory, Step
from harness.evidence.ingest.logs.numbers import measure, measured, scaled, whole
from harness.evidence.ingest.logs.shared_lines import shared

_FINE = 20  # grains of a rounded step number between two readings: good to a twentieth
_COUNTS = ("tokens_per_s", "loss", "mib", "mb", "bytes")  # that may have thousands and no decimals
_GIB = {"bytes": 2.0**-30, "mib": 2.0**-10, "mb": 1e6 / 2**30, "gib": 1.0, "gb": 1e9 / 2**30}


class Trainer:
    """Reads one log in the dialect ``of``."""

    def __init__(self, of: Dialect) -> None:
        self.of = of
        self.seen: set[str] = set()
        self.head: str | None = None
        self.clock = Clock(of.shortest)
        self.config = KeyedDump(of.compiled(of.settings), of.known, of.least)

    def step(self, match: re.Match[str], line: str, number: int) -> Iterable[Event]:
        """The events of a line with a step; none where it says nothing new."""
        said = {name: text for name, text in match.groupdict().items() if text is not None}
        index, now = said.pop("step", self.head), taken(said)
        figures = {name: _number(name, text) for name, text in said.items()}
        seconds, ms, minutes = (figures.pop(unit, None) for unit in ("s", "ms", "minutes"))
        if index is None:
            return ()
        if self.of.quotient:
            work, rate = (measure(self.of.compiled(pattern).search(line)) for pattern in self.of.quotient)
            return (self.made(line, number, index, work / rate, mean=True),) if work and rate else ()
        if now is not None:
            return self._since(index, now, line, number, figures)
        if minutes and seconds is not None:
            seconds += 60 * minutes
        return (self.made(line, number, index, ms / 1000 if ms else seconds, **figures),)

    def _since(
        self, index: str, now: float, line: str, number: int, figures: Mapping[str, float | None]
    ) -> Iterator[Event]:
        """The mean step since an earlier line. A step number that is rounded (``1.68k``) has to go on far enough."""
        step, before = int(scaled(index) or 0), self.clock.before
        if before is not None and 0 <= step - before.step < _grain(index) * _FINE:
            return
        if found := self.clock.since(step, now):
            yield self.made(line, number, step, found[0], mean=found[1] > 1, **figures)

    def other(self, line: str, number: int) -> Iterable[Event] | None:  # noqa: ARG002
        """The events of another line; None where it is not this trainer's own."""
        return None

    def arguments(self, number: int) -> Iterable[Arguments]:  # noqa: ARG002
        """The settings since the last step, before the one on line ``number`` (0: at the end)."""
        found = self.config.take()
        if found is None:
            return ()
        return (found._replace(values=_in_sequences(found.values)) if "tokens" in self.of.words.values() else found,)

    def once(self, key: str) -> bool:
        """Whether this is the first time that ``key`` is asked for."""
        first = key not in self.seen
        self.seen.add(key)
        return first

    def made(self, line: str, number: int, iteration: int | str, seconds: float | None, **known: Any) -> Step:
        """A step with what the line says beside its number and its time."""
        for name, pattern in self.of.figure_patterns.items():
            found = pattern.search(line)
            value = _number(name, found[1]) if found else None
            kind, _, unit = name.partition("_")
            if unit not in _GIB:
                known[name] = value
            elif value:
                known |= {"memory_gib": value * _GIB[unit], "memory_kind": kind}
        return Step(iteration=int(iteration), seconds=seconds, line=number, **known)

    def read(self, lines: Lines) -> Iterator[Event]:
        """The events of a log, in its order. Never raises for any text."""
        of, steps = self.of, tuple(self.of.step_patterns.items())
        heads = of.compiled(of.heads).search if of.heads else None
        others = self._others()
        for number, line in lines:
            if heads is not None and (head := heads(line)):
                self.head = head["step"]
            for text, pattern in steps:
                if text in line:
                    match = pattern.search(line)
                    break
            else:
                match = None
            if match is not None:
                if of.framework and self.once("framework"):
                    yield Fact("framework", of.name, number)
                yield from self.arguments(number)
                yield from self.step(match, line, number)
            elif (told := _told(others, line, number)) is not None:
                yield told
            elif (own := self.other(line, number)) is not None:
                yield from own
            elif not self.config.feed(line, number) and (common := shared(line, number, self.seen)) is not None:
                yield common
        yield from self.arguments(0)

    def _others(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        """(what it tells, pattern) of the lines that have no step."""
        of = self.of
        told = {"checkpoint": of.checkpoint, "evaluation": of.evaluation, "gpus": of.gpus, **of.memory}
        return tuple((name, of.compiled(pattern)) for name, pattern in told.items() if pattern)


def _told(others: Iterable[tuple[str, re.Pattern[str]]], line: str, number: int) -> Event | None:
    """The event of a line without a step that its dialect describes."""
    for name, pattern in others:
        if (found := pattern.search(line)) is None:
            continue
        if name == "checkpoint":
            return Checkpoint(number)
        if name == "evaluation":
            return Evaluation(number)
        if name == "gpus":
            return Fact("gpus", int(found[1]), number)
        kind, _, unit = name.partition("_")
        if used := _number(name, found[1]):
            return Memory(used * _GIB[unit], kind, number)
    return None


def _in_sequences(values: Mapping[str, object]) -> dict[str, object]:
    """Counts: products taken apart, and the batch that is stated in ``tokens`` in sequences, where they divide it; as it
    stands where no length does."""
    counts: dict[str, object] = {}
    for name, value in values.items():
        names, texts = name.split(" x "), str(value).split(" x ")
        if len(names) == len(texts):
            counts |= {each: whole(text) or 0 for each, text in zip(names, texts, strict=True)}
    if "seq_length" not in counts:
        return counts
    tokens, length = counts.pop("tokens", 0), counts["seq_length"]
    if isinstance(tokens, int) and isinstance(length, int) and length and tokens and tokens % length == 0:
        counts["global_batch_size"] = tokens // length
    return counts


def _number(name: str, text: str) -> float | None:
    """A figure; of one that has decimals a comma alone is none."""
    return scaled(text) if name.endswith(_COUNTS) else measured(text)


def _grain(index: str) -> float:
    """What a printed step number is rounded to; 0 where it is whole."""
    if index.isdecimal():
        return 0.0
    digits = len(index[:-1].partition(".")[2])
    return (scaled("1" + index[-1]) or 0.0) / float(10**digits)
