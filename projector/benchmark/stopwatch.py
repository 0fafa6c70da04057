"""Times one kernel on the device at hand: warm-up, a cold cache, device events, the median and the spread.

On a GPU the host first queues a pause, so that it is ahead when the kernel starts and launch cost stays out of the
time; on a CPU the clock is ``time.perf_counter`` and what the framework's dispatcher costs is part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from projector.benchmark.device import Device
from projector.benchmark.timings import Seconds

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Call = Callable[[], object]

_FLUSH = 2  # caches written over by a flush: replacement is not strictly least-recently-used
_PAUSE = 1_000_000  # cycles of one pause, by whichever clock the device counts them
_LEAST_LEAD = 5e-4  # seconds of the pause at least: what writes over the caches is issued behind it, too
_LEAD = 2.0  # times what the host needs to issue a call, for which the device pauses first
_NOISY, _MOST_ROUNDS, _FEWEST = 0.1, 4, 3
_WARM_SECONDS = 0.02  # a clock that rests wakes up within some milliseconds


def _preemptions() -> int:
    """Returns how often the system has taken the CPU from this process; always 0 where it does not count that."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class Stopwatch:
    """Times calls on ``device``: ``samples`` runs each, fewer (at least 3) where they would take above ``most``
    seconds, and up to four times as many where they scatter by more than a tenth. Runs in which the system took a CPU
    away for another process say nothing of the kernel: they are left out where at least three others remain.

    ``warm``: seconds of warm-up at least. ``flush``: write over the caches before each run, so that operands come from
    memory as in a training step.
    """

    def __init__(
        self, device: Device, samples: int = 11, flush: bool = True, most: float = 2.0, warm: float = _WARM_SECONDS
    ) -> None:
        self.device = device
        self.samples = samples
        self.most = most
        self.warm = warm
        self.flush = flush
        self._paused = 0.0
        size, torch = _FLUSH * device.cache_bytes() if flush else 0, device.torch
        self._buffer: Any = torch.zeros(size, dtype=torch.int8, device=device.place) if flush else None

    @property
    def condition(self) -> str:
        """Returns how kernels are timed, for the column ``condition``; the number of runs follows it."""
        return f"live, {'cold' if self.flush else 'warm'} cache"

    def time(self, call: Call) -> Seconds:
        """Returns the seconds of ``call`` on the device."""
        seconds, issued = self._warm(call)
        samples = max(_FEWEST, min(self.samples, int(self.most / max(seconds, 1e-9))))
        measure = partial(self._events, issued) if self.device.type == "cuda" else self._clock
        times = measure(call, samples)
        start = time.perf_counter()
        found = Seconds.of(times)
        while found.spread > _NOISY and len(times) < _MOST_ROUNDS * samples and time.perf_counter() - start < self.most:
            times += measure(call, samples)
            found = Seconds.of(times)
        return found

    def _warm(self, call: Call) -> tuple[float, float]:
        """Runs ``call`` until the device is awake; returns the last run's seconds, and those of the host until then."""
        began = time.perf_counter()
        for count in range(1000):
            start = time.perf_counter()
            call()
            issued = time.perf_counter() - start
            self.device.synchronize()
            seconds = time.perf_counter() - start
            if count >= 1 and time.perf_counter() - began > self.warm:
                break
        return seconds, issued

    def _clock(self, call: Call, samples: int) -> list[float]:
        clean: list[float] = []
        disturbed: list[float] = []
        for _ in range(_MOST_ROUNDS * samples):
            if self._buffer is not None:
                self._buffer.add_(1)
            preempted, start = _preemptions(), time.perf_counter()
            call()
            seconds = time.perf_counter() - start
            (clean if _preemptions() == preempted else disturbed).append(seconds)
            if len(clean) == samples or (len(clean) + len(disturbed) >= samples and sum(disturbed) > self.most):
                break
        return clean if len(clean) >= _FEWEST else clean + disturbed

    def _pause(self) -> float:
        """Returns the seconds of one pause: its cycles are counted by a clock that is 20 times slower on some AMD GPUs."""
        if self._paused == 0.0:
            self.device.synchronize()
            start = time.perf_counter()
            self.device.torch.cuda._sleep(_PAUSE)
            self.device.synchronize()
            self._paused = max(time.perf_counter() - start, 1e-6)
        return self._paused

    def _events(self, issued: float, call: Call, samples: int) -> list[float]:
        cuda = self.device.torch.cuda
        pairs, cycles = [], max(1, round(_PAUSE * (_LEAD * issued + _LEAST_LEAD) / self._pause()))
        for _ in range(samples):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda._sleep(cycles)
            if self._buffer is not None:
                self._buffer.add_(1)
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        self.device.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairs]
