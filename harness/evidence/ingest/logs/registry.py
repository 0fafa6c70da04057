"""The dialects, and which one a log speaks: decided by its lines, never by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType

from harness.evidence.ingest.logs import dialect, foreign, history, megatron, tprimat, trace
from harness.evidence.ingest.logs.events import STEP, DocumentDialect, Event, LineDialect
from harness.evidence.ingest.logs.source import Source

DOCUMENTS: tuple[DocumentDialect, ...] = (tprimat, trace)
#: Where a line is of two, the first is the more special one.
LINES: tuple[LineDialect, ...] = (*dialect.read_all(), history)
NAMES = (*(each.NAME for each in LINES), *(document.NAME for document in DOCUMENTS))
_BY_NAME = MappingProxyType({each.NAME: each for each in LINES})
_MARKS = tuple((each.MARKS, each) for each in LINES)
#: A trainer that prints the lines of those it is built on, too: its own other lines tell it.
_BUILT_ON = MappingProxyType({megatron.NEOX: (megatron.NAME, megatron.DEEPSPEED)})
_NEARLY = 0.9
_WINDOW = 2000  # lines read after the first step to see what other steps there are


def is_document(head: str) -> bool:
    """Returns whether a text is a benchmark file, a trace, a trainer's log or a run's history, and no table of runs."""
    first = head.lstrip().partition("\n")[0]
    return (
        any(each.recognises(head) for each in DOCUMENTS)
        or any(mark in head for mark in foreign.DOCUMENTS)
        or STEP in (_BY_NAME["hf-trainer"].weigh(first), history.weigh(first))
    )


def detect(source: Source) -> str | None:
    """Returns the dialect with most steps among the first lines that hold any; without a step, the one with most lines. A
    line is a step of the first dialect that knows it: one that is cut may be anyone's."""
    head = source.head()
    for document in DOCUMENTS:
        if document.recognises(head):
            return document.NAME
    steps: Counter[str] = Counter()
    others: Counter[str] = Counter()
    remaining = _WINDOW
    for _, line in source.lines():
        for hints, candidate in _MARKS:
            for hint in hints:
                if hint in line:
                    break
            else:
                continue
            weight = candidate.weigh(line)
            if weight == STEP:
                steps[candidate.NAME] += 1
                break
            if weight:
                others[candidate.NAME] += 1
        remaining -= bool(steps)
        if remaining < 0:
            break
    best = _leading(steps)
    return next((name for name, below in _BUILT_ON.items() if others[name] and best in below), best) or _leading(others)


def _leading(counts: Counter[str]) -> str | None:
    """Returns the first of :data:`LINES` with nearly most lines: one line more of another may be that the log was cut."""
    least = _NEARLY * max(counts.values(), default=0)
    return next((known.NAME for known in LINES if counts[known.NAME] >= least), None) if counts else None


def events_of(source: Source, name: str) -> Iterator[Event]:
    """Yields the events of a log in the dialect ``name``."""
    for document in DOCUMENTS:
        if name == document.NAME:
            return document.read(source)
    return _events_with_task(_BY_NAME[name], source)


def _events_with_task(spoken: LineDialect, source: Source) -> Iterator[Event]:
    tasks: list[Event] = []
    yield from spoken.events(foreign.watched(source.lines(), tasks))
    yield from tasks
