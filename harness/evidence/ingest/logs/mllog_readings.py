"""Step times of an MLPerf log that states none: the progress between two marks over the time between them, and stated
throughputs. Neither has a unit of its own (samples, tokens or steps): two readings of one log decide it together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from statistics import median

from harness.evidence.ingest.logs.numbers import real
from projector.dataclass import dataclass

#: Relative: evaluations and a pipeline's fill are inside a block; the units differ by factors of a batch or more.
_AGREE = 0.15
_CLOSE = 0.05  # two readings of one quantity that differ by more are a doubt
_ROUND = 1e-3  # of a step
_MOST = 200_000  # readings kept of one kind
_COUNTERS = ("samples_count", "epoch_num")
_STOPS = ("block_stop", "eval_start", "run_stop")
_STARTS = ("block_start", "eval_stop")


@dataclass(frozen=True)
class Rate:
    """``value``: counts a second; ``line``: where it was logged; ``counts``: done since the mark before."""

    value: float
    line: int
    counts: float = 0.0


@dataclass
class Progress:
    """The position of the run's counter at each pause, and the seconds it trained to get there.

    Training resumes where it paused, so the count at a start is never read (submitters log steps there, or the size of
    the block); a mark without a count takes that of the evaluation behind it. Where no mark stands before an evaluation,
    its result ends the block.
    """

    counter: str = ""
    rates: list[Rate] = field(default_factory=list)
    losses: list[Rate] = field(default_factory=list)
    _position: float | None = None
    _since: float | None = None
    _paused: tuple[float, int] | None = None
    _reached: float | None = None
    _loss: tuple[float, float] | None = None

    def feed(self, key: str, metadata: Mapping[str, float], now: float, line: int) -> None:
        name = next((name for name in _COUNTERS if metadata.get(name) is not None), "")
        count = metadata.get(name)
        if name and self.counter and name != self.counter:
            count = None
        if key == "train_loss":
            self._take_loss(name, count, now, line)
        elif key in _STARTS:
            self._resume(key, count, now)
        elif key in _STOPS or key == "eval_accuracy":
            if self._paused is None and (key in _STOPS or (count or 0.0) > (self._position or 0.0)):
                self._paused = (now, line)
            if count is not None:
                self.counter = self.counter or name
                self._reached = max(self._reached or 0.0, count)
            self._loss = None

    def _resume(self, key: str, count: float | None, now: float) -> None:
        self.close()
        zero = self._position is None and (count == 0 or count is None) and key == "block_start"
        self._position = 0.0 if zero else self._position
        self._since, self._paused, self._loss = now, None, None

    def close(self) -> None:
        """Takes the block that ended last into the rates."""
        if self._paused is None or self._reached is None:
            return
        (until, line), self._paused = self._paused, None
        if self._position is not None and self._since is not None and until > self._since:
            done = self._reached - self._position
            if done > 0 and len(self.rates) < _MOST:
                self.rates.append(Rate(done / (until - self._since), line, done))
        self._position, self._since = self._reached, None

    def _take_loss(self, name: str, count: float | None, now: float, line: int) -> None:
        if count is None or name != "samples_count":
            return
        if self._loss is not None and now > self._loss[1] and count > self._loss[0] and len(self.losses) < _MOST:
            done = count - self._loss[0]
            self.losses.append(Rate(done / (now - self._loss[1]), line, done))
        self._loss = (count, now)


@dataclass
class Readings:
    """What a log states of its speed. ``stated``: step times in seconds; ``throughput``: as logged, of no stated unit."""

    progress: Progress = field(default_factory=Progress)
    throughput: list[Rate] = field(default_factory=list)
    stated: list[float] = field(default_factory=list)


def decide(readings: Readings, batch: float | None, length: float | None) -> tuple[list[Rate], list[str]]:
    """Returns (samples a second with their lines, doubts). There are no rates where steps are stated (only doubts about
    these), nor where two readings contradict each other in every unit."""
    progress = readings.progress
    progress.close()
    counts, throughput = _median(progress.rates), _median(readings.throughput)
    units = _units(progress, batch, length)
    if readings.stated:
        return [], list(_step_time_doubts(median(readings.stated), counts, units, batch))
    if counts is None and throughput is not None:
        return readings.throughput, [f"throughput {throughput:.6g} read as samples/s: the log does not say its unit"]
    if counts is None:
        return [], []
    if throughput is None:
        if not units:
            unknown = (
                "no multiples of the batch" if length else "tokens or samples: the length of a sample is not logged"
            )
            return [], [f"the counts ({progress.counter}) are {unknown}: their unit is unknown"]
        return _scaled(progress.rates, units[0]), list(_loss_doubts(progress, counts * units[0]))
    for size in units:
        for scale in (1.0, 1 / length) if length else (1.0,):
            if abs(counts * size / (throughput * scale) - 1) <= _AGREE:
                whole = len(readings.throughput) * 2 < len(progress.rates)  # one figure of the whole run
                return (_scaled(progress.rates, size) if whole else _scaled(readings.throughput, scale)), []
    return [], [
        f"throughput {throughput:.6g} is in no unit what the log's own counts and times say ({counts:.6g} a second)"
    ]


def _units(progress: Progress, batch: float | None, length: float | None) -> list[float]:
    """Lists how many samples one count may be, the likeliest first: all counts are whole steps in it.

    The benchmark's GPT-3 counts tokens as its epochs; what is called samples may be tokens or steps, too.
    """
    named, sizes = progress.counter == "samples_count", [1.0]
    if length:
        sizes.append(1 / length)
    elif not named:
        return []  # tokens or samples: the length would tell
    if not named:
        sizes.reverse()
    if batch:
        sizes = [size for size in sizes if _whole_steps(progress, size / batch)] + ([batch] if named else [])
    return sizes


def _whole_steps(progress: Progress, steps: float) -> bool:
    """Returns whether most counts are whole steps (the last block may end where the data do)."""
    done = [rate.counts * steps for rate in progress.rates]
    return sum(abs(count - round(count)) < _ROUND and count > 1 - _ROUND for count in done) * 2 > len(done)


def _step_time_doubts(seconds: float, counts: float | None, units: list[float], batch: float | None) -> Iterator[str]:
    """Yields a doubt where the stated step time is that of the log's counts and times in no unit."""
    if counts is None or not batch or not units:
        return
    steps = [batch / (counts * size) for size in units]
    nearest = min(steps, key=lambda step: abs(math.log(step / seconds)))
    if abs(nearest / seconds - 1) > _AGREE:
        yield f"stated step times of {seconds:.6g} s, but {nearest:.6g} s by the log's own counts and times"


def _loss_doubts(progress: Progress, rate: float) -> Iterator[str]:
    lost = _median(progress.losses)
    if lost is not None and abs(lost / rate - 1) > _CLOSE:
        yield f"{rate:.6g} samples/s from block to block, but {lost:.6g} between two lines of the loss: evaluation inside?"


def _median(rates: list[Rate]) -> float | None:
    return median(rate.value for rate in rates) if rates else None


def _scaled(rates: list[Rate], size: float) -> list[Rate]:
    return [Rate(rate.value * size, rate.line, rate.counts) for rate in rates]


def numbers_of(metadata: object) -> dict[str, float]:
    """Returns the counters of an entry's metadata that are numbers."""
    if not isinstance(metadata, Mapping):
        return {}
    return {name: number for name in _COUNTERS if (number := real(metadata.get(name))) is not None}
