"""What a dialect offers. Most logs are lines; TPrimat's files and traces are one JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

from harness.evidence.ingest.logs.events import Event
from harness.evidence.ingest.logs.source import Source

Lines: TypeAlias = Iterable[tuple[int, str]]

#: What :meth:`LineDialect.weigh` answers for a line with a step; 1 for another line of this trainer, 0 for foreign ones.
STEP = 2


class LineDialect(Protocol):
    """A module or a class of this shape is a dialect; :mod:`harness.evidence.ingest.logs.registry` lists them."""

    @property
    def NAME(self) -> str: ...  # noqa: N802 - a constant of a module

    @property
    def MARKS(self) -> tuple[str, ...]:  # noqa: N802
        """Texts without any of which a line is none of this dialect's."""
        ...

    def weigh(self, line: str) -> int:
        """0: not of this dialect, 1: of it, 2: a step of it."""
        ...

    def events(self, lines: Lines) -> Iterator[Event]:
        """Events in the order of the log. Never raises for any text."""
        ...


class DocumentDialect(Protocol):
    NAME: str

    def recognises(self, head: str) -> bool:
        """Whether the first 64 KiB open such a document."""
        ...

    def read(self, source: Source) -> Iterator[Event]: ...
