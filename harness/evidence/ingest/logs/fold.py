"""The fold of a log's events to its runs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.evidence.ingest.logs.events import (
    Arguments,
    Curve,
    Event,
    Fact,
    Failure,
    Kernels,
    Mark,
    Memory,
    Step,
    Timers,
)
from harness.evidence.ingest.logs.logged import AFTER_CHECKPOINT, AFTER_EVALUATION, COLUMNS, SKIPPED, Logged

_LEAST = 10  # steps of a start whose level can be told
_WARM_UP = 5  # of them that do not count
_MOST = 64  # starts of a file that are told apart: more are a job that keeps crashing
_SAME_START = 0.05  # relative difference of two levels of one run


def apart(record: Logged, memory: Mapping[int, Mapping[str, float]]) -> list[Logged]:
    """Splits a record into its runs; the record alone where its starts are one run. ``memory``: peaks by start."""
    starts = np.unique(record.segment)
    if not 2 <= len(starts) <= _MOST or len(np.unique(record.config)) > 1:
        return [record]
    groups: list[list[int]] = [[int(starts[0])]]
    for start in map(int, starts[1:]):
        if _counts_from_beginning(record, groups[-1][0], start) and _speeds_differ(record, groups[-1][-1], start):
            groups.append([start])
        else:
            groups[-1].append(start)
    if len(groups) == 1:
        return [record]
    return [_of_starts(record, group, memory, index) for index, group in enumerate(groups, start=1)]


def _counts_from_beginning(record: Logged, first: int, start: int) -> bool:
    """Tells whether a start counts from where the run's first one did, or from one (a first step may go unprinted)."""
    begin, now = (int(record.iteration[record.segment == one][0]) for one in (first, start))
    return now <= max(begin, 1)


def _speeds_differ(record: Logged, one: int, other: int) -> bool:
    levels = [record.value[record.segment == start] for start in (one, other)]
    if min(map(len, levels)) < _LEAST:
        return False
    first, second = (float(np.median(level[_WARM_UP:])) for level in levels)
    return abs(second / first - 1) > _SAME_START


def _of_starts(record: Logged, group: list[int], memory: Mapping[int, Mapping[str, float]], index: int) -> Logged:
    in_group: npt.NDArray[np.bool_] = np.isin(record.segment, group)
    note = f"start {index} of several in one file, each at another speed: the file prints no arguments for it alone"
    columns = {name: getattr(record, name)[in_group] for name in COLUMNS}
    columns["segment"] = columns["segment"] - columns["segment"][0]
    return replace(
        record,
        name=f"{record.name} start {index}".strip(),
        memory=_largest(memory.get(start, {}) for start in group),
        memory_ratio=None,
        timers={},
        notes=[*record.notes, note],
        **columns,
    )


def _largest(peaks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the largest GiB of each kind of memory."""
    largest: dict[str, float] = {}
    for used in peaks:
        for kind, gib in used.items():
            largest[kind] = max(largest.get(kind, 0.0), gib)
    return largest


_BACK = 8  # logging intervals that a number may fall behind before it means a restart (ranks print out of turn)
_MOST_TIMERS = 64
#: Arguments by which two parts of a log are no run and its restart, but two runs.
_SIZES = (
    *("world_size", "num_layers", "hidden_size", "seq_length", "global_batch_size", "micro_batch_size"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size"),
)
_SAME = 0.05  # relative difference between the times that ranks measure of one step
_NOTHING = float("nan")


def fold(events: Iterable[Event], clock: Callable[[int], float]) -> list[Logged]:
    """Folds events into the runs of a log: one, except for tables with a column a run, summaries of several runs and starts
    at another speed. ``clock`` returns the time of day before a line (NaN: none)."""
    builder = _Builder(clock)
    done: list[Logged] = []
    for event in events:
        if isinstance(event, Step):
            builder.step(event)
        elif isinstance(event, Fact) and event.key == "run":
            if builder.rows:
                done += builder.runs()
                builder = _Builder(clock)
            builder.record.name = str(event.value)
        else:
            builder.other(event)
    return [*done, *builder.runs()]


class _Builder:
    def __init__(self, clock: Callable[[int], float]) -> None:
        self.record = Logged()
        self.clock = clock
        self._columns: dict[str, array[Any]] = {name: array(np.dtype(kind).char) for name, kind in COLUMNS.items()}
        self._appends = [column.append for column in self._columns.values()]
        self._pending = 0
        self._start, self._conf = 0, -1
        self._fresh = True
        self._used: dict[tuple[int, int], dict[str, float]] = {}
        self._highest, self._interval = -1, 1
        self._basis = ""
        self._mean = False

    @property
    def rows(self) -> int:
        return len(self._columns["value"])

    def step(self, step: Step) -> None:
        basis, value = _value(step)
        if value is None or not 0 < value < 1e12 or (self._basis and basis != self._basis):
            return
        self._basis = basis
        self._check_order(step.iteration)
        length = self.record.seq_length
        if self.rows and self._fresh and length and step.seq_length and step.seq_length != length:
            self._change(f"sequences of {step.seq_length} tokens, before of {length}")
        columns, batch = self._columns, step.global_batch_size or 0
        if self.rows and columns["iteration"][-1] == step.iteration and columns["segment"][-1] == self._start:
            self.record.repeated += 1
            self.record.conflicts += abs(value / columns["value"][-1] - 1) > _SAME
            self._pending |= columns["flags"][-1] & ~SKIPPED  # flags of events before the first print stay
            for column in columns.values():  # the last print of a step counts
                column.pop()
        row = (
            step.iteration,
            value,
            _NOTHING if step.tokens_per_s is None else step.tokens_per_s,
            _NOTHING if step.tflops is None else step.tflops,
            _NOTHING if step.loss is None else step.loss,
            batch if batch < 2**31 else 0,
            self._pending | (SKIPPED if step.skipped else 0),
            self._start,
            self._conf,
            self.clock(step.line),
        )
        for append, entry in zip(self._appends, row, strict=True):
            append(entry)
        self._pending = 0
        self._fresh = False
        self._mean = step.mean
        self._take_figures(step)

    def _take_figures(self, step: Step) -> None:
        record = self.record
        record.failure = None  # an earlier start's: this one runs
        if step.global_batch_size:
            record.batch_line = step.line
        if step.memory_gib is not None and step.memory_kind:
            self._memory(step.memory_kind, step.memory_gib)
        if step.memory_ratio is not None and 0 < step.memory_ratio <= 1:
            record.memory_ratio = max(record.memory_ratio or 0.0, step.memory_ratio)
        if step.seq_length:
            record.seq_length = step.seq_length

    def _memory(self, kind: str, gib: float) -> None:
        """Keeps memory peaks by argument dump: a start under other arguments has its own."""
        if 0 < gib < 1e6:
            peaks = self._used.setdefault((self._conf, self._start), {})
            peaks[kind] = max(peaks.get(kind, 0.0), gib)

    def _check_order(self, iteration: int) -> None:
        """Begins a new start where a step number falls far behind the highest."""
        if iteration < self._highest - _BACK * self._interval:
            self._begin_start()
        if self._highest >= 0 and iteration > self._highest:
            self._interval = iteration - self._highest if self._highest else self._interval
            self._interval = min(self._interval, 1000)
        self._highest = max(self._highest, iteration)

    def _begin_start(self) -> None:
        if not self._fresh:
            self._start = min(self._start + 1, 32_000)
            self._fresh = True
        self._highest, self._interval = -1, 1

    def other(self, event: Event) -> None:
        record = self.record
        if isinstance(event, Arguments):
            self._begin_start()
            if not record.arguments or dict(record.arguments[-1].values) != dict(event.values):
                record.arguments.append(event)
                self._conf = min(len(record.arguments) - 1, 32_000)
        elif event is Mark.RESTART:
            self._begin_start()
        elif event is Mark.CHECKPOINT:
            self._pending |= AFTER_CHECKPOINT
        elif event is Mark.EVALUATION:
            self._pending |= AFTER_EVALUATION
        elif isinstance(event, Memory):
            self._memory(event.kind, event.gib)
        elif isinstance(event, Timers):
            self._timers(event)
        elif isinstance(event, Curve):
            record.curves[event.name] = event.values
        elif isinstance(event, Fact):
            if event.key == "note":
                record.notes.append(str(event.value))
            elif event.key == "gpus":
                self._take_size(event.value)
            else:
                record.facts.setdefault(event.key, event.value)
        elif isinstance(event, Failure):
            if record.failure is None or record.failure.kind != "out-of-memory":
                record.failure = event
        elif isinstance(event, Kernels):
            record.kernels = event

    def _take_size(self, gpus: str | int) -> None:
        """Takes the number of GPUs; where a start states it for the first time, the one before had another or the same."""
        before = self.record.facts.get("gpus", "a number not stated" if self._fresh else gpus)
        self.record.facts["gpus"] = gpus
        if self.rows and before != gpus:
            self._change(f"{gpus} GPUs, before with {before}")

    def _say(self, work: str) -> None:
        self.record.notes.append(f"it goes on with {work}: the steps until there do not count")

    def _change(self, work: str) -> None:
        """Begins a start that does other work than the one before, whether the log prints its arguments again or not."""
        arguments = self.record.arguments
        self._say(work)
        arguments.append(arguments[-1] if arguments else Arguments({}, 0))
        self._conf = min(len(arguments) - 1, 32_000)
        self._begin_start()

    def by_start(self) -> dict[int, dict[str, float]]:
        """Returns the memory peaks under the last arguments, by start."""
        last = self._columns["config"][-1] if self.rows else self._conf
        return {start: peaks for (conf, start), peaks in self._used.items() if conf == last}

    def _timers(self, event: Timers) -> None:
        timers = self.record.timers
        for name, seconds in event.seconds.items():
            total, count = timers.get(name, (0.0, 0))
            if count or len(timers) < _MOST_TIMERS:
                timers[name] = (total + seconds, count + 1)

    def runs(self) -> list[Logged]:
        record, peaks = self.record, self.by_start()
        # A first step alone compiles, allocates and connects
        if self.rows == 1 and self._columns["iteration"][0] in (0, 1) and not self._mean:
            record.steady = False
            record.notes.append("the only step logged is the first of the run: warm-up, not its speed")
        record.basis = self._basis or record.basis
        for name, column in self._columns.items():
            setattr(record, name, np.asarray(column))
        for work in _other_sizes(record):
            self._say(work)
        record.memory = _largest(peaks.values())
        _drop_repeated_prints(record)
        # This project's trainer (:mod:`harness.measure`) prints all that a start differs by: starts under the same
        # arguments are repetitions, and their speeds differ by the noise of the machine.
        own = bool(record.arguments) and "trainer_framework" in record.arguments[-1].values
        return [record] if own else apart(record, peaks)


def _other_sizes(record: Logged) -> Iterator[str]:
    """Yields the sizes that dumps with steps under them state otherwise than the one before, in words."""
    told = [record.arguments[place].values for place in np.unique(record.config) if place >= 0]
    names = _SIZES["gpus" in record.facts :]  # the log's own lines tell the number of ranks
    for before, now in pairwise(told):
        both = [(name, now[name], before[name]) for name in names if name in now and name in before]
        if changed := [f"{name} {new}, before {old}" for name, new, old in both if str(new) != str(old)]:
            yield ", ".join(changed)


def _value(step: Step) -> tuple[str, float | None]:
    """Returns (basis, value): seconds where the log prints them or they follow from the step's own batch."""
    if step.seconds is not None:
        return "seconds", step.seconds
    if step.samples_per_s and step.global_batch_size:
        return "seconds", step.global_batch_size / step.samples_per_s
    if step.samples_per_s:
        return "samples", 1 / step.samples_per_s
    return "tokens", 1 / step.tokens_per_s if step.tokens_per_s else None


def _drop_repeated_prints(record: Logged) -> None:
    """Keeps the last print of each iteration of a start (ranks print out of turn), in order of iterations."""
    same = np.diff(record.segment) == 0
    if record.steps < 2 or bool(np.all((np.diff(record.iteration) > 0) | ~same)):
        return
    order = np.lexsort((record.iteration, record.segment))  # stable: of equals the last printed stands last
    ordered = record.iteration[order], record.segment[order]
    last = np.append((np.diff(ordered[0]) != 0) | (np.diff(ordered[1]) != 0), True)
    keep = order[last]
    record.repeated += record.steps - len(keep)
    counted = keep[np.cumsum(np.append(False, last[:-1]))]  # of each print the one that counts
    record.conflicts += int(np.sum(np.abs(record.value[order] / record.value[counted] - 1) > _SAME))
    for name in COLUMNS:
        setattr(record, name, getattr(record, name)[keep])
