"""What the dialects of most trainers share: lines of steps, lines of settings, and what every trainer prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from harness.evidence.ingest.logs.clock import SHORTEST, Clock, taken
from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Arguments, Checkpoint, Evaluation, Event, Fact, Step
from harness.evidence.ingest.logs.numbers import measured, scaled
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

_FINE = 20  # grains of a rounded step number between two readings: good to a twentieth
_NOTHING = re.compile(r"(?!)")
_COUNTS = ("tokens_per_s", "loss", "mib", "bytes")  # that may have thousands and no decimals
_GIB = {"bytes": 2.0**-30, "mib": 2.0**-10, "gib": 1.0, "gb": 1e9 / 2**30}


class Trainer:
    """A dialect. A subclass says what its lines look like and what they mean; an instance reads one log.

    ``steps``: text of a line → the pattern that tells a step by it; its groups ``step``, ``s`` (``minutes`` before it) or
    ``ms`` and fields of :class:`Step` are read; of one with a clock (:func:`harness.evidence.ingest.logs.clock.taken`) the
    time since an earlier line, at least ``shortest`` seconds before.
    ``heads``: a line with the ``step`` of those that follow it without one. ``hints``: texts of other lines of this trainer.
    ``figures``: fields of :class:`Step` beside number and time → pattern with the number as its first group;
    ``allocated_mib``, ``reserved_bytes`` and the like are memory. ``settings``: pattern of a line with a key and a value,
    ``words``: key → Megatron-LM's name; fewer than ``least`` of them are a coincidence.
    ``said``: text of a line → event.
    """

    NAME: ClassVar[str]
    framework: ClassVar[bool] = True  # whether the trainer is one, and not run by any
    steps: ClassVar[Mapping[str, re.Pattern[str]]]
    heads: ClassVar[re.Pattern[str] | None] = None
    hints: ClassVar[tuple[str, ...]] = ()
    figures: ClassVar[Mapping[str, re.Pattern[str]]] = {}
    settings: ClassVar[re.Pattern[str]] = _NOTHING
    words: ClassVar[Mapping[str, str]] = {}
    least: ClassVar[int] = 2
    shortest: ClassVar[float] = SHORTEST
    said: ClassVar[Mapping[str, type[Checkpoint | Evaluation]]] = {}

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.head: str | None = None
        self.clock = Clock(self.shortest)
        self.config = KeyedDump(self.settings, self.words, self.least)

    @classmethod
    def weigh(cls, line: str) -> int:
        """As :meth:`harness.evidence.ingest.logs.protocol.LineDialect.weigh`."""
        if any(text in line and pattern.search(line) for text, pattern in cls.steps.items()):
            return STEP
        return int(any(text in line for text in cls.hints))

    @classmethod
    def events(cls, lines: Lines) -> Iterator[Event]:
        """As :meth:`harness.evidence.ingest.logs.protocol.LineDialect.events`."""
        return cls()._read(lines)

    def step(self, match: re.Match[str], line: str, number: int) -> Iterable[Event]:
        """The events of a line with a step; none where it says nothing new."""
        said = {name: text for name, text in match.groupdict().items() if text is not None}
        index, now = said.pop("step", self.head), taken(said)
        figures = {name: _number(name, text) for name, text in said.items()}
        seconds, ms, minutes = (figures.pop(unit, None) for unit in ("s", "ms", "minutes"))
        if index is None:
            return ()
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
        return () if found is None else (found,)

    def once(self, key: str) -> bool:
        """Whether this is the first time that ``key`` is asked for."""
        first = key not in self.seen
        self.seen.add(key)
        return first

    def made(self, line: str, number: int, iteration: int | str, seconds: float | None, **known: Any) -> Step:
        """A step with what the line says beside its number and its time."""
        for name, pattern in self.figures.items():
            found = pattern.search(line)
            value = _number(name, found[1]) if found else None
            kind, _, unit = name.partition("_")
            if unit not in _GIB:
                known[name] = value
            elif value:
                known |= {"memory_gib": value * _GIB[unit], "memory_kind": kind}
        return Step(iteration=int(iteration), seconds=seconds, line=number, **known)

    def _read(self, lines: Lines) -> Iterator[Event]:
        for number, line in lines:
            if self.heads is not None and (head := self.heads.search(line)):
                self.head = head["step"]
            pattern = next((pattern for text, pattern in self.steps.items() if text in line), None)
            if pattern is not None and (match := pattern.search(line)) is not None:
                if self.framework and self.once("framework"):
                    yield Fact("framework", self.NAME, number)
                yield from self.arguments(number)
                yield from self.step(match, line, number)
            elif (event := next((kind for text, kind in self.said.items() if text in line), None)) is not None:
                yield event(number)
            elif (own := self.other(line, number)) is not None:
                yield from own
            elif not self.config.feed(line, number) and (common := shared(line, number, self.seen)) is not None:
                yield common
        yield from self.arguments(0)


def _number(name: str, text: str) -> float | None:
    """A figure; of one that has decimals a comma alone is none."""
    return scaled(text) if name.endswith(_COUNTS) else measured(text)


def _grain(index: str) -> float:
    """What a printed step number is rounded to; 0 where it is whole."""
    if index.isdecimal():
        return 0.0
    digits = len(index[:-1].partition(".")[2])
    return (scaled("1" + index[-1]) or 0.0) / float(10**digits)
