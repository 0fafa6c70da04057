"""MLPerf Training logs: lines ``:::MLLOG {json}`` behind any prefix (mlcommons/logging, mlperf_logging/mllog).

Step times, by what the submitter logs: ``tracked_stats`` with ``train_step_time`` (or ``train_step_timing in s``) or
``throughput`` in samples/s, else the time from ``block_start`` to ``block_stop``. Evaluations are timed apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.ingest.logs.events import Arguments, Evaluation, Event, Fact, Failure, Step
from harness.ingest.logs.protocol import STEP, Lines
from harness.ingest.logs.words import MLLOG_WORDS

__all__ = ["NAME", "events", "weigh"]

NAME = "mllog"

_MARK = ":::MLLOG"
_STEPS = ("train_step_time", "train_step_timing", '"throughput"', '"block_stop"')
_TIMES = ("train_step_time", "train_step_timing in s")
_VENDOR = re.compile(r"^(?:\d+x)?(?:NVIDIA|AMD)?[ _]?(?:HGX|DGX|Instinct)?[ _]?", re.IGNORECASE)
_LONGEST = 100_000  # characters of one entry


def weigh(line: str) -> int:
    if _MARK not in line:
        return 0
    return STEP if any(key in line for key in _STEPS) else 1


def events(lines: Lines) -> Iterator[Event]:
    run = _Run()
    for number, line in lines:
        start = line.find(_MARK)
        if start >= 0 and (entry := _entry(line[start + len(_MARK) :])) is not None:
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
    """What was logged so far. ``count``: steps given; ``timed``: one was given since the block began."""

    stated: dict[str, object] = field(default_factory=dict)
    block: tuple[float, float] | None = None
    count: int = 0
    timed: bool = False
    per_step: bool = False
    line: int = 0

    def feed(self, entry: Mapping[str, Any], number: int) -> Iterator[Event]:
        key, value = entry["key"], entry.get("value")
        metadata = entry.get("metadata")
        samples = _number(metadata.get("samples_count")) if isinstance(metadata, Mapping) else None
        now = _number(entry.get("time_ms"))
        if key in MLLOG_WORDS and self.count == 0:
            self.stated.setdefault(MLLOG_WORDS[key], value)
            self.line = self.line or number
        elif key == "submission_platform" and isinstance(value, str):
            yield Fact("gpu", _VENDOR.sub("", value.strip()), number)
        elif key == "submission_benchmark" and isinstance(value, str):
            yield Fact("model", value, number)
        elif key == "block_start":
            self.timed = False
            self.block = (now, samples or 0.0) if now is not None else None
        elif key == "tracked_stats" and isinstance(value, Mapping):
            yield from self._stats(value, number)
        elif key == "block_stop":
            yield from self._stop(now, samples, number)
        elif key in ("eval_stop", "eval_accuracy"):
            yield Evaluation(number, apart=True)
        elif key == "run_stop" and isinstance(metadata, Mapping) and metadata.get("status") == "aborted":
            yield Failure("error", "the run was aborted", number)

    def _stats(self, value: Mapping[str, Any], number: int) -> Iterator[Event]:
        """A line with the loss is of one step (or a few); one without averages a whole block, and repeats these."""
        seconds = next((found for name in _TIMES if (found := _number(value.get(name)))), None)
        rate = _number(value.get("throughput"))
        losses = [found for name, found in value.items() if isinstance(name, str) and name.endswith("train_loss")]
        self.per_step = self.per_step or (bool(losses) and seconds is not None)
        if not (seconds or rate) or (self.per_step and not losses):
            return
        if "max_memory_usage" in value and self.count == 0:
            yield Fact("note", f"max_memory_usage {value['max_memory_usage']} (no unit stated)", number)
        yield from self._step(seconds, rate, number, _number(losses[0]) if losses else None)

    def _stop(self, now: float | None, samples: float | None, number: int) -> Iterator[Event]:
        if self.timed or self.block is None or now is None or samples is None:
            return
        elapsed, done = (now - self.block[0]) / 1000, samples - self.block[1]
        if elapsed > 0 and done > 0:
            yield from self._step(None, done / elapsed, number)

    def _step(
        self, seconds: float | None, rate: float | None, number: int, loss: float | None = None
    ) -> Iterator[Event]:
        yield from self.end()
        self.count += 1
        self.timed = True
        batch = _number(self.stated.get("global_batch_size"))
        yield Step(
            iteration=self.count,
            seconds=seconds,
            line=number,
            samples_per_s=rate,
            global_batch_size=int(batch) if batch else None,
            loss=loss,
        )

    def end(self) -> Iterator[Event]:
        """The arguments, before the first step or at the end."""
        if self.stated and self.count == 0 and self.line >= 0:
            yield Arguments(dict(self.stated), self.line)
            self.line = -1


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < 1e18 else None
