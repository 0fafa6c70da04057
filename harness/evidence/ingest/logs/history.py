"""The history of one run, a step a record: JSON lines (a trainer's own metrics file), a CSV (an export of W&B, of its
history or of one chart) or event files of TensorBoard.

Only keys whose unit is known are taken: a bare ``time`` may be anything, and a bare ``tps`` that of a GPU or of the job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from harness.evidence.ingest.logs.clock import Clock, elapsed_seconds
from harness.evidence.ingest.logs.dialect import STEP, Dialect
from harness.evidence.ingest.logs.events import Event, Fact, Lines, Mark
from harness.evidence.ingest.logs.jsonstream import mapping_of
from harness.evidence.ingest.logs.numbers import counted, finite
from harness.evidence.ingest.logs.trainer import GIB, Trainer
from harness.evidence.ingest.record import figure_of
from projector.dataclass import dataclass
from projector.io.files import read_yaml

NAME = "history"

_TOLD = read_yaml(Path(__file__).with_name("history.yaml"))
#: Keys of a record; of several that mean the same the first that it has.
_INDEX, _SECONDS, _QUOTIENT, _RATE, _LOSS, _CLOCKS, _COUNTS, _EVALUATED = (
    tuple(_TOLD[key]) for key in ("index", "seconds", "quotient", "rate", "loss", "clocks", "counts", "evaluated")
)
_NAMED: Mapping[str, str] = _TOLD["named"]
_MEMORY: Mapping[str, str] = _TOLD["memory"]
_RUNS = frozenset(_TOLD["runs"])
_ELAPSED = "elapsed_time"  # of trainers on Hugging Face's, beside the step under one of two names
_CHARTED = re.compile(r"^.* - (?=\S)")  # W&B's export of a chart: each column with its run's name before it
_LONGEST = 20_000
#: Figures that a key may name by its words, by what their unit is of a second or of a token a second.
_UNITS = {"step_seconds": 1.0, "iteration_ms": 0.001, "tokens_per_s_per_gpu": 1.0}
_TIMES, _RATES = ("step_seconds", "iteration_ms"), ("tokens_per_s_per_gpu",)
#: What stands before a record: nothing, or what a logger or a launcher puts there; no mark of other loggers' records.
_BEFORE = re.compile(r"\s*(?:(?!:::|DLLL)[^{\"'(]){0,80}(?=\{)")
_AVERAGED = re.compile("avg|average|mean|median|smooth", re.IGNORECASE)
Row = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class HistoryDialect(Dialect):
    """The history of one run, a step a record: JSON lines (a trainer's own metrics file), a CSV (an export of W&B, of its
    history or of one chart) or event files of TensorBoard."""

    name: str = NAME
    about: str = __doc__ or ""
    hints: tuple[str, ...] = ("{", "step", "iteration", "Step")
    hook: str = "history:History"

    def weigh(self, line: str) -> int:
        row = _parsed_record(line) or dict.fromkeys(_header(line), 1.0)
        return STEP if row and not _RUNS & set(map(str.lower, row)) and _has_time(row) else 0


class History(Trainer):
    def __init__(self, of: Dialect) -> None:
        super().__init__(of)
        self.columns: list[str] = []
        self.counter = self.timer = ""
        self.spent, self.exact = 0.0, False
        self.rates: list[float] = []  # of the records since the last step with a time

    def read(self, lines: Lines) -> Iterator[Event]:
        for number, line in lines:
            row = _parsed_record(line)
            if row is None and self.columns and len(cells := _cells(line)) == len(self.columns):
                row = dict(zip(self.columns, map(finite, cells), strict=True))
            if row is None:
                self.columns = self.columns or _header(line)
            elif _has_time(row):
                yield from self._step(row, line, number)
                if any(name.startswith(_EVALUATED) and value is not None for name, value in row.items()):
                    yield Mark.EVALUATION

    def _step(self, row: Row, line: str, number: int) -> Iterator[Event]:
        clocked = _ELAPSED in row
        count = (
            next((row[name] for name in _COUNTS if row.get(name) is not None), None) if clocked else self._count(row)
        )
        index, seconds, mean = counted(str(count).partition("/")[0]), _seconds(row), False
        self.timer = self.timer or next((name for name in _CLOCKS if _number(row, name) is not None), "")
        now = elapsed_seconds(str(row[_ELAPSED])) if clocked else _number(row, self.timer)
        self.exact = self.exact or (seconds is not None and seconds != int(seconds))
        if seconds is not None and not self.exact:  # whole seconds: only several together tell their mean
            self.spent += seconds
            seconds, now = None, self.spent
        rates = (value for name in _RATE if (value := _number(row, name)))
        rate = next(chain(rates, _by_words(row, _RATES)), None)
        self.rates += [rate] if rate else []
        if seconds is None and now is not None and index is not None and (since := self.clock.since(index, now)):
            seconds, mean = since[0], True
        if index is None or (seconds is None and (now is not None or rate is None)):
            return
        rate, self.rates = (sum(self.rates) / len(self.rates) if self.rates else None), []
        framework = next((name for key, name in _NAMED.items() if key in row), None)
        if framework is not None and self.once("framework"):
            yield Fact("framework", framework)
        loss = next((value for name in _LOSS if (value := _number(row, name)) is not None), None)
        yield self.made(line, number, index, seconds, tokens_per_s=rate, loss=loss, mean=mean, **_memory(row))

    def _count(self, row: Row) -> object:
        """Returns the step by one counter: a record without it (of the machine, of an evaluation) has no step."""
        best = next((name for name in _INDEX if row.get(name) is not None or name in self.columns), "")
        if best and (not self.counter or _INDEX.index(best) < _INDEX.index(self.counter)):
            self.counter, self.clock = best, Clock()
        return row.get(self.counter)


def _parsed_record(line: str) -> dict[str, object] | None:
    """Parses the record of a line and flattens what it nests one level deep; returns None where the line is no record."""
    start = _BEFORE.match(line) if len(line) <= _LONGEST else None
    row = mapping_of(line[start.end() :]) if start else None
    if row is None:
        return None
    inner = [value for value in row.values() if isinstance(value, dict)]
    return {key: value for part in (row, *inner) for key, value in part.items() if not isinstance(value, dict | list)}


def _header(line: str) -> list[str]:
    """Returns the columns of a CSV; empty for a line that names no step and for a chart of several runs."""
    columns = _cells(line) if ("step" in line or "iteration" in line or "Step" in line) and len(line) < _LONGEST else []
    names = [_CHARTED.sub("", name) for name in columns]
    if len(set(names)) < len(names):
        return []
    return names if any(name in _INDEX for name in names) and not any(map(finite, names)) else []


def _cells(line: str) -> list[str]:
    return [cell.strip().strip('"') for cell in line.rstrip("\r\n").split("\t" if "\t" in line else ",")]


def _has_time(row: Row) -> bool:
    """Returns whether a record has a step and a time, a rate or a clock."""
    if _ELAPSED in row and any(name in row for name in _COUNTS):
        return True
    times = (*_SECONDS, *_RATE, *_CLOCKS)
    return any(name in row for name in _INDEX) and (
        any(name in times or _named_figure(name) for name in row) or all(name in row for name in _QUOTIENT)
    )


@lru_cache(maxsize=4096)
def _named_figure(name: str) -> str:
    """Returns which of :data:`_UNITS` a key is by its words, with its unit among them, perhaps behind a group (``train/``);
    empty for any other, for an evaluation's and for what is averaged over records."""
    if name.startswith(_EVALUATED) or _AVERAGED.search(name):
        return ""
    figure = figure_of(name) or figure_of(name.partition("/")[2])
    return figure if figure in _UNITS else ""


def _by_words(row: Row, figures: Collection[str]) -> Iterator[float]:
    """Yields the positive values of a record's keys that are one of these figures by their words."""
    for name in row:
        if (figure := _named_figure(name)) in figures and (value := _number(row, name)):
            yield value * _UNITS[figure]


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return finite(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None


def _memory(row: Row) -> dict[str, Any]:
    """Returns the first memory that a record states, as a step has it."""
    for name, told in _MEMORY.items():
        if value := _number(row, name):
            kind, _, unit = told.partition("_")
            return {"memory_gib": value * GIB[unit], "memory_kind": kind}
    return {}


def _seconds(row: Row) -> float | None:
    named = (value for name in _SECONDS if (value := _number(row, name)))
    tokens, rate = (_number(row, name) for name in _QUOTIENT)
    return next(chain(named, _by_words(row, _TIMES)), tokens / rate if tokens and rate else None)
