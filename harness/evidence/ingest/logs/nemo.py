"""Logs of NeMo: NeMo 2's progress line (``train_step_timing in s: …``) and NeMo 1's progress bar (``…=…``).

Releases of NeMo 1 that do not time their steps print a bar alone. Its ``s/it`` is the mean since the start, evaluations and
checkpoints in it; the step is the time from one print of the bar's clock to a later one.
The bar counts batches, and ``train_step_timing`` is of one: where Lightning accumulates gradients, several make a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.clock import CLOCK, taken
from harness.evidence.ingest.logs.dumps import CONFIGURATION
from harness.evidence.ingest.logs.events import Event, Fact
from harness.evidence.ingest.logs.numbers import NUMBER, counted, loss, measured
from harness.evidence.ingest.logs.trainer import Trainer
from harness.evidence.ingest.logs.words import NEMO_WORDS

_TIMING = re.compile(rf"train_step_timing in s[:=]\s?{NUMBER}(?=[\s,|\]])")
_CLOCK = re.compile(rf"\|\s{{0,3}}[0-9]{{1,15}}/[0-9]{{1,15}} \[{CLOCK}<(?=.{{0,2000}}global_step=)")
_STEP = re.compile(rf"global_step[:=]\s?{NUMBER}")
_ITERATION = re.compile(r"iteration ([0-9]{1,18})/")
_BAR = re.compile(r"\|\s{0,3}([0-9]{1,15})/[0-9]{1,15} \[")
_BATCH = re.compile(rf"global_batch_size[:=]\s?{NUMBER}")


class NeMo(Trainer):
    """Progress bars repeat a step until the next is done: the first print of a step counts, so a repeat is no step."""

    NAME = "nemo"
    steps = {"train_step_timing in s": _TIMING, "reduced_train_loss=": _CLOCK}
    hints = ("[NeMo ", "Experiment configuration")
    figures = {
        "tokens_per_s": re.compile(rf"tokens_per_sec_per_gpu[:=]\s?{NUMBER}"),
        "tflops": re.compile(rf"TFLOPS_per_GPU[:=]\s?{NUMBER}"),
        "allocated_bytes": re.compile(rf"peak_memory_usage[:=]\s?{NUMBER}"),
    }
    settings = CONFIGURATION
    words = NEMO_WORDS
    least = 6
    timed = False
    last = -1

    def __init__(self) -> None:
        super().__init__()
        self.origin: tuple[int, int] | None = None  # step and batch that the batches of a step are counted from

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        index = _index(line)
        self.timed = self.timed or match.re is _TIMING
        if index is None:
            return
        if match.re is _CLOCK:
            yield from () if self.timed else self._between(match, index, line, number)
        elif (seconds := measured(match[1])) and index != self.last:
            self.last, batch = index, _BATCH.search(line)
            if (pieces := self._pieces(index, line)) > 1:
                seconds *= pieces
                if self.once("pieces"):
                    yield Fact("note", f"times are of one batch of {pieces} that accumulate to a step", number)
            size = counted(batch[1]) if batch else None
            yield self.made(line, number, index, seconds, global_batch_size=size, loss=loss(line))

    def _pieces(self, index: int, line: str) -> int:
        """Batches of a step, by how the bar and the step number have gone on."""
        bar = _BAR.search(line)
        batch = int(bar[1]) if bar else index
        if self.origin is None or index <= self.origin[0] or batch < self.origin[1]:
            self.origin = (index, batch)
            return 1
        return round((batch - self.origin[1]) / (index - self.origin[0])) or 1

    def _between(self, match: re.Match[str], index: int, line: str, number: int) -> Iterator[Event]:
        """The mean step since the print before. A bar counts batches: one a step, or more where gradients accumulate."""
        bar, now = _BAR.search(line), taken(match.groupdict())
        if now is not None and (found := self.clock.since(index, now, int(bar[1]) if bar else None)):
            yield self.made(line, number, index, found[0], loss=loss(line), mean=found[1] > 1)


def _index(line: str) -> int | None:
    """The step's number. The bar rounds its counts to three digits from 1000 on (``global_step=1.01e+3``): there the
    bar's own position, else the line's ``iteration``, is the number."""
    step = _STEP.search(line)
    exact = step is not None and not any(mark in step[1] for mark in "eE")
    found = step if exact else _BAR.search(line) or _ITERATION.search(line) or step
    return counted(found[1]) if found else None
