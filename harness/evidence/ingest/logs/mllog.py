"""MLPerf Training logs: lines ``:::MLLOG {json}`` behind any prefix (mlcommons/logging, mlperf_logging/mllog).

Step times, by what the submitter logs: ``tracked_stats`` with ``train_step_time`` (``train_step_timing``), else their
``throughput``, else the counts and times of the marks (see :mod:`harness.evidence.ingest.logs.mllog_readings`, which
decides the units). Evaluations are timed apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.evidence.ingest.logs.events import Arguments, Evaluation, Event, Fact, Failure, Restart, Step
from harness.evidence.ingest.logs.mllog_readings import Rate, Readings, decide, numbers_of
from harness.evidence.ingest.logs.mllog_system import LAUNCH, SYSTEM, layout, platform, system
from harness.evidence.ingest.logs.numbers import positive, real
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.words import MLLOG_WORDS

NAME = "mllog"
MARKS = (":::MLLOG",)

_MARK = ":::MLLOG"
_STEPS = ("train_step_time", "train_step_timing", '"throughput"', '"block_stop"', '"eval_stop"')
_TIMES = ("train_step_time", "train_step_timing", "train_step_timing in s")
_LONGEST = 100_000  # characters of one entry
_MOST = 200_000  # readings kept of one kind


def weigh(line: str) -> int:
    if _MARK not in line:
        return 0
    return STEP if any(key in line for key in _STEPS) else 1


def events(lines: Lines) -> Iterator[Event]:
    run = _Run()
    before = ""
    for number, line in lines:
        if SYSTEM in line:
            yield from run.machines(system(line, number))
            continue
        if LAUNCH in line:
            run.layout = layout(line)
            continue
        start = line.find(_MARK)
        if start < 0 or (text := line[start + len(_MARK) :].strip()) == before:
            continue  # another rank's print of the same entry
        before = text
        if (entry := _entry(text)) is not None:
            yield from run.feed(entry, number)
    yield from run.end()


def _entry(text: str) -> Mapping[str, Any] | None:
    if len(text) > _LONGEST:
        return None
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, Mapping) and isinstance(entry.get("key"), str) else None


@dataclass
class _Run:
    """What was logged so far. ``count``: steps given."""

    stated: dict[str, object] = field(default_factory=dict)
    readings: Readings = field(default_factory=Readings)
    kept: list[Event] = field(default_factory=list)
    count: int = 0
    starts: int = 0
    per_step: bool = False
    noted: bool = False
    line: int = 0
    gpus: int = 0
    layout: Mapping[str, int] = field(default_factory=dict)

    def feed(self, entry: Mapping[str, Any], number: int) -> Iterator[Event]:
        key, value = entry["key"], entry.get("value")
        now = real(entry.get("time_ms"))
        if key in MLLOG_WORDS and self.count == 0:
            self.stated.setdefault(MLLOG_WORDS[key], value)
            self.line = self.line or number
        elif key == "submission_platform" and isinstance(value, str):
            yield from self.machines(platform(value.strip(), number))
        elif key == "submission_benchmark" and isinstance(value, str):
            yield Fact("model", value, number)
        elif key == "run_start" and now is not None:
            yield from self._begin(number)
        elif key == "tracked_stats" and isinstance(value, Mapping):
            yield from self._stats(value, number)
        elif key in ("eval_stop", "eval_accuracy"):
            yield Evaluation(number, apart=True)
        if now is not None:
            self.readings.progress.feed(key, numbers_of(entry.get("metadata")), now / 1000, number)
        if key == "run_stop" and _aborted(entry.get("metadata")):
            self.kept.append(Failure("error", "the run was aborted", number))

    def machines(self, facts: Iterator[Fact]) -> Iterator[Event]:
        """What the system record and the platform's name say; of two counts of GPUs the first stands, with a doubt."""
        for fact in facts:
            if fact.key == "gpus" and self.gpus and fact.value != self.gpus:
                yield Fact(
                    "note", f"{self.gpus} GPUs by the system record, {fact.value} by the platform's name", fact.line
                )
                continue
            if fact.key == "gpus" and isinstance(fact.value, int):
                self.gpus = fact.value
            yield fact

    def _begin(self, number: int) -> Iterator[Event]:
        """A second run in the file starts a new count, and its steps are cut like a restart's."""
        self.starts += 1
        if self.starts > 1 and (self.count or self.readings.progress.rates or self.readings.throughput):
            yield from self._unstated()
            self.readings = Readings()
            self.count = 0
            yield Restart("a new run", number)

    def _stats(self, value: Mapping[str, Any], number: int) -> Iterator[Event]:
        """A line with the loss is of one step (or a few); one without averages a whole block, and repeats these."""
        seconds = next((found for name in _TIMES if (found := real(value.get(name)))), None)
        rate = real(value.get("throughput"))
        losses = [found for name, found in value.items() if isinstance(name, str) and name.endswith("train_loss")]
        self.per_step = self.per_step or (bool(losses) and seconds is not None)
        if "max_memory_usage" in value and not self.noted:
            self.noted = True
            yield Fact("note", f"max_memory_usage {value['max_memory_usage']} (no unit stated)", number)
        if not seconds:
            if rate and rate > 0 and len(self.readings.throughput) < _MOST:
                self.readings.throughput.append(Rate(rate, number))
        elif losses or not self.per_step:
            if len(self.readings.stated) < _MOST:
                self.readings.stated.append(seconds)
            yield from self._step(number, seconds, None, real(losses[0]) if losses else None)

    def _step(
        self, number: int, seconds: float | None, rate: float | None, loss: float | None = None, mean: bool = False
    ) -> Iterator[Event]:
        yield from self.arguments()
        self.count += 1
        batch = real(self.stated.get("global_batch_size"))
        yield Step(
            iteration=self.count,
            seconds=seconds,
            line=number,
            samples_per_s=rate,
            global_batch_size=int(batch) if batch else None,
            loss=loss,
            mean=mean,
        )

    def arguments(self) -> Iterator[Event]:
        """The arguments, before the first step or at the end."""
        if self.stated and self.count == 0 and self.line >= 0:
            yield Arguments({**self.stated, **self._parallel()}, self.line)
            self.line = -1

    def _parallel(self) -> dict[str, object]:
        """The sizes of the configuration's name, where the logged batch is the one that they make."""
        sizes = dict(self.layout)
        samples, model = sizes.pop("samples", 0), 1
        for size in [value for name, value in sizes.items() if name != "world_size"]:
            model *= size
        batch = self.stated.get("global_batch_size")
        fits = model > 0 and samples > 0 and batch == samples * sizes.get("world_size", 0) / model
        return {**sizes} if fits else {}

    def _unstated(self) -> Iterator[Event]:
        """Steps of a run that states no step time, from its counts and throughputs."""
        batch, length = real(self.stated.get("global_batch_size")), real(self.stated.get("seq_length"))
        rates, doubts = decide(self.readings, positive(batch), positive(length))
        for doubt in doubts:
            yield Fact("note", doubt, self.line)
        for rate in rates:
            yield from self._step(rate.line, None, rate.value, mean=True)

    def end(self) -> Iterator[Event]:
        yield from self._unstated()
        yield from self.arguments()
        yield from self.kept


def _aborted(metadata: object) -> bool:
    return isinstance(metadata, Mapping) and metadata.get("status") == "aborted"
