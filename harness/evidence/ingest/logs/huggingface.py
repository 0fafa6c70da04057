"""Logs of Hugging Face's Trainer (TRL, Axolotl, LLaMA-Factory): its head, its losses, its progress bar and its summary.

No line has the time of a step. The bar gives it as the time from one print to a later one; evaluations and checkpoints
between them are cut like everywhere.
Without a bar the summary (``train_steps_per_second``) is the mean of all steps
with everything in between, and the log says no more: ``note``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import field

from harness.evidence.ingest.logs.clock import Clock, elapsed_seconds, seconds_of
from harness.evidence.ingest.logs.dialect import WORDS, one_of
from harness.evidence.ingest.logs.dumps import KeyedDump
from harness.evidence.ingest.logs.events import Event, Fact, Lines, Mark, Memory, Step
from harness.evidence.ingest.logs.numbers import NUMBER, measure, whole
from harness.evidence.ingest.logs.shared_lines import shared
from projector.dataclass import dataclass

NAME = "hf-trainer"

_SECONDS = re.compile(rf"'train_runtime': '?{NUMBER}")
_RATE = re.compile(rf"'train_steps_per_second': '?{NUMBER}")
_SAMPLES = re.compile(rf"'train_samples_per_second': '?{NUMBER}")
_COUNT = re.compile(r"global_step=([0-9]{1,15})")
_BAR = re.compile(
    r"(?:^|[|\s])\s{0,3}([0-9]{1,12})/([0-9]{1,12}) \[(?:([0-9]{1,5}):)?([0-9]{1,2}):([0-9]{2})<[^\]]{0,40}(?:it/s|s/it)"
)
#: What ms-swift prints beside the losses, where its bar goes elsewhere.
_SO_FAR = re.compile(
    r"'(?:global_step/max_steps|iteration)': '([0-9]{1,12})/([0-9]{1,12})'.{0,200}?'elapsed_time': '([0-9dhms ]{2,30})'"
)
#: The most that torch reserved, of ms-swift and of Axolotl.
_RESERVED = re.compile(rf"'memory(?:\(GiB\)|/device_reserved \(GiB\))': '?{NUMBER}")
_SETTING = re.compile(rf"{one_of(WORDS[NAME])}\s?=\s?([0-9,]{{1,15}})")
_EXACT = 0.02  # relative: a batch that samples and steps a second make up
_SAME = 0.02  # relative: ranks' runtimes of one training
_FEW = 10  # steps of a training whose mean is still that of its first ones
_MOST_WAITING = 100_000  # steps of a bar kept until it is known whose it is
_MOST_BARS = 64  # bars of different lengths that are followed
_LEAST = 4  # steps of a bar before it is told from those of loading and of data sets


@dataclass
class _Bar:
    """The prints of progress bars. ``total``: steps of the training's bar, by the head or by the bar beside a loss (0: not
    yet known; bars of data sets and of loading look the same, so that steps wait until it is)."""

    total: int = 0
    recent: int = 0
    clocks: dict[int, Clock] = field(default_factory=dict)
    waiting: dict[int, list[Step]] = field(default_factory=dict)
    drawn: bool = False
    prints: int = 0
    summaries: int = 0
    runtime: float = 0.0

    def start(self, total: int = 0) -> None:
        """Begins a training: what bars printed before does not belong to it."""
        self.total = self.recent = total
        self.runtime = 0.0
        self.clocks.clear()
        self.waiting.clear()

    def confirm(self) -> list[Step]:
        """Takes the bar beside a loss for the training's and returns its steps so far."""
        if self.total or not self.recent:
            return []
        self.total = self.recent
        steps = self.waiting.get(self.total, [])
        self.waiting.clear()
        self.prints += len(steps)
        return steps

    def take(self, step: Step) -> list[Step]:
        """Returns the step where the training's bar is known; else keeps it."""
        if self.total:
            self.prints += 1
            return [step]
        waiting = self.waiting.setdefault(self.recent, [])
        if len(waiting) < _MOST_WAITING:
            waiting.append(step)
        return []


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    config = KeyedDump(_SETTING, WORDS[NAME], least=2)
    bar, framework = _Bar(), NAME
    for number, line in lines:
        steps: list[Step] = []
        if "it/s" in line or "s/it" in line:
            for match in _BAR.finditer(line[:4000]):
                bar.drawn = True
                # The mean step since a print of the same bar, where its clock is fine enough for one
                steps += _since(int(match[1]), int(match[2]), seconds_of(match[3], match[4], match[5]), bar, number)
        if "'elapsed_time': '" in line and not bar.drawn and (far := _SO_FAR.search(line)):
            steps += _since(int(far[1]), int(far[2]), elapsed_seconds(far[3]) or 0.0, bar, number)
        if "{'loss':" in line or "'train_runtime'" in line:
            steps += bar.confirm()
            framework = "megatron-lm" if "'iteration': '" in line else framework  # of ms-swift
        if steps and "framework" not in seen:
            seen.add("framework")
            yield Fact("framework", framework)
            yield from config.take()
        yield from steps
        if "'memory" in line and (reserved := measure(_RESERVED.search(line))):
            yield Memory(reserved, "reserved")
        if "'train_runtime'" in line and "{'loss':" not in line:  # beside a loss it is the clock so far
            yield from _summary(line, number, bar, config)
        elif "{'eval_" in line or "Running Evaluation" in line:
            yield Mark.EVALUATION
        elif "Saving model checkpoint to" in line:
            yield Mark.CHECKPOINT
        elif "Running training *****" in line:
            bar.start()
            yield Mark.RESTART
        elif config.feed(line, number):
            if "optimization steps" in line and (total := whole(str(config.found.get("train_iters")))):
                bar.start(total)
        elif (event := shared(line, number, seen)) is not None:
            yield event
    yield from config.take()


def _since(index: int, total: int, now: float, bar: _Bar, number: int) -> list[Step]:
    if (bar.total and total != bar.total) or (total not in bar.clocks and len(bar.clocks) >= _MOST_BARS):
        return []
    bar.recent = total
    mean_step = bar.clocks.setdefault(total, Clock()).since(index, now) if total >= _LEAST else None
    return bar.take(Step(iteration=index, seconds=mean_step[0], line=number, mean=True)) if mean_step else []


def _summary(line: str, number: int, bar: _Bar, config: KeyedDump) -> Iterator[Event]:
    """Yields the mean step of a run without a bar; a summary of another runtime is another run's, not another rank's."""
    seconds = measure(_SECONDS.search(line))
    if bar.prints or not seconds or (bar.runtime and abs(seconds / bar.runtime - 1) < _SAME):
        return
    steps = _step_count(line, seconds, config)
    bar.runtime = seconds
    bar.summaries += 1
    if bar.summaries > 1:
        yield Fact("run", f"run {bar.summaries}")
    yield Fact("framework", NAME)
    yield from config.take()
    if steps is None or steps < _FEW:
        count = "a number of steps that it does not tell" if steps is None else f"{steps} steps, warm-up among them"
        yield Fact("note", f"no step time: only the runtime of the whole training ({seconds:.6g} s), of {count}")
        return
    samples = measure(_SAMPLES.search(line))
    batch = samples * seconds / steps if samples else 0.0
    exact = batch >= 1 and abs(round(batch) / batch - 1) < _EXACT
    yield Fact("note", "the mean of a whole training: its first steps, evaluations and checkpoints are in it")
    size = round(batch) if exact else None
    yield Step(iteration=steps, seconds=seconds / steps, line=number, global_batch_size=size, mean=True)


def _step_count(line: str, seconds: float, config: KeyedDump) -> int | None:
    """Returns how many steps a summary is of: as stated, else the one whole number that the rounded rate allows."""
    if (count := _COUNT.search(line)) is not None:
        return int(count[1])
    if (total := whole(str(config.found.get("train_iters", "")))) is not None:
        return total
    rate = _RATE.search(line)
    value = measure(rate)
    if rate is None or not value or any(mark in rate[1] for mark in "eE"):
        return None
    half = 0.5 * 10.0 ** -len(rate[1].partition(".")[2])
    least, most = math.ceil(seconds * (value - half)), math.floor(seconds * (value + half))
    return least if least == most else None
