"""The dialects, and which one a log speaks: decided by its lines, never by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType

from harness.evidence.ingest.logs import foreign, history, huggingface, megatron, tprimat, trace
from harness.evidence.ingest.logs.dialect import STEP, Dialect, read_all
from harness.evidence.ingest.logs.events import DocumentDialect, Event
from harness.evidence.ingest.logs.history import HistoryDialect
from harness.evidence.ingest.logs.source import Source

DOCUMENTS: tuple[DocumentDialect, ...] = (tprimat, trace)
#: Where a line is of two, the first is the more special one.
LINES: tuple[Dialect, ...] = (*read_all(), HistoryDialect())
_BY_NAME = MappingProxyType({each.name: each for each in LINES})
NAMES = (*_BY_NAME, *(document.NAME for document in DOCUMENTS))
_MARKS = tuple((each.marks, each) for each in LINES)
#: A trainer that prints the lines of those it is built on, too: its own other lines tell it.
BUILT_ON = MappingProxyType(
    {megatron.NEOX: (megatron.NAME, megatron.DEEPSPEED), huggingface.NAME: (megatron.DEEPSPEED,)}
)
_NEARLY = 0.9
_WINDOW = 2000  # lines read after the first step to see what other steps there are


def is_document(head: str) -> bool:
    """Returns whether a text is a benchmark file, a trace, a trainer's log or a run's history, and no table of runs."""
    first = head.lstrip().partition("\n")[0]
    return (
        any(each.recognises(head) for each in DOCUMENTS)
        or any(mark in head for mark in foreign.DOCUMENTS)
        or STEP in (_BY_NAME[name].weigh(first) for name in ("hf-trainer", history.NAME))
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
        for marks, candidate in _MARKS:
            weight = candidate.weigh(line) if any(map(line.__contains__, marks)) else 0
            if weight == STEP:
                steps[candidate.name] += 1
                break
            if weight:
                others[candidate.name] += 1
        remaining -= bool(steps)
        if remaining < 0:
            break
    best = _leading(steps)
    return next((name for name, below in BUILT_ON.items() if others[name] and best in below), best) or _leading(others)


def _leading(counts: Counter[str]) -> str | None:
    """Returns the first of :data:`LINES` with nearly most lines: one line more of another may be that the log was cut."""
    least = _NEARLY * max(counts.values(), default=0)
    return next((known.name for known in LINES if counts[known.name] >= least), None) if counts else None


def events_of(source: Source, name: str) -> Iterator[Event]:
    """Yields the events of a log in the dialect ``name``; last what other task than a language model its lines tell."""
    document = next((each for each in DOCUMENTS if name == each.NAME), None)
    if document is not None:
        yield from document.read(source)
        return
    tasks: list[Event] = []
    dialect = _BY_NAME[name]
    yield from dialect.events(foreign.watched(source.lines(tuple(dialect.steps) if dialect.late else ()), tasks))
    yield from tasks
