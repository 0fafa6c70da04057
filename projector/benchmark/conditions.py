"""Reads what a timing is taken under: clock, power, temperature and load of the device, and who else uses it."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from projector.benchmark.device import Device, clocks_mhz
from projector.benchmark.launcher import launched, place
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.operators.types import Operator
from projector.step.timing import Clock, Phase, Segment

_BUSY = 20.0  # percent of the time that kernels of others ran
# seconds between looks, and for which what ran here before may show (drivers average over one)
_LOOK_EVERY, _BUSY_FADES = (0.05, 3.0)


def under(device: Device) -> dict[str, Any]:
    """Returns the conditions at this moment, less those that neither the driver nor torch tells.

    ``clock_mhz``, ``power_watts``, ``temperature_c``, ``busy_percent``; ``others``: processes with memory of this GPU
    but for this one; for a CPU ``clock_mhz`` and ``load``, runnable threads of the machine over the last minute.
    """
    if device.type == "cpu":
        clock = statistics.fmean(clocks_mhz() or [0.0])
        figures: dict[str, Any] = {"clock_mhz": round(clock) or None, "load": _or_none(lambda: os.getloadavg()[0])}
    else:
        cuda, index = device.torch.cuda, device.index
        power = _or_none(lambda: cuda.power_draw(index)) or None  # 0: amd-smi does not know
        unit = 1.0 if device.torch.version.hip else 1e-3  # torch passes on amd-smi's watts and NVML's milliwatts
        figures = {
            "clock_mhz": _or_none(lambda: cuda.clock_rate(index)) or None,
            "power_watts": None if power is None else power * unit,
            "temperature_c": _or_none(lambda: cuda.temperature(index)),
            "busy_percent": _or_none(lambda: cuda.utilization(index)),
            "others": _or_none(lambda: len(_others(device, index))),
        }
    return {name: value for name, value in figures.items() if value is not None}


def refuse_busy(device: Device, ranks: int = 1) -> None:
    """Raises :class:`InputError` for a GPU on which others compute now: nothing that is timed there could be used.

    ``ranks``: how many will be started here, on the first GPUs; a rank that a launcher started looks at its own.
    """
    if device.type == "cpu":
        return
    device.synchronize()
    for index in range(ranks) if ranks > 1 and launched() is None else (device.index,):
        busy, ends = _busy(device, index), time.monotonic() + _BUSY_FADES
        while busy >= _BUSY and time.monotonic() < ends:
            time.sleep(_LOOK_EVERY)
            busy = _busy(device, index)
        if busy >= _BUSY:
            others = _or_none(partial(_others, device, index)) or ["a process that the driver does not name"]
            found = f"{busy:.0f} % busy before anything is timed: {', '.join(others)}"
            raise InputError([Problem(place(), f"cuda:{index}", found, "a GPU that nobody else uses")])


def _busy(device: Device, index: int) -> float:
    """Returns the percentage of time that kernels ran; 0 where the driver does not say, as for part of a GPU (MIG)."""
    return float(_or_none(lambda: device.torch.cuda.utilization(index)) or 0.0)


def _others(device: Device, index: int) -> list[str]:
    listed = str(device.torch.cuda.list_gpu_processes(index))
    ours = (os.getpid(), os.getppid())  # ranks are started by a process that looked at the device
    return [f"process {number}" for number in re.findall(r"process\s+(\d+)", listed) if int(number) not in ours]


def _or_none(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # every management library fails in its own way, and none of them is needed
        return None


# A clock that knows phases which were measured whole: what the projection asks of blocks, answered by live times.
@dataclass(frozen=True)
class Live(Clock):
    """A clock that answers phases which were measured whole. ``phases``: by the operators that a model would price."""

    phases: Mapping[tuple[Operator, ...], Phase] = field(default_factory=dict)

    def phase(self, operators: Sequence[Operator], **how: Any) -> Phase:
        """Returns the measured phase of ``operators``, else the priced one."""
        measured = self.phases.get(tuple(operators))
        return super().phase(operators, **how) if measured is None else measured

    def work(self, operators: Iterable[Operator]) -> float:
        """Returns the seconds of a phase that was measured as a whole: nobody saw its operators one by one."""
        measured = self.phases.get(tuple(operators))
        return super().work(operators) if measured is None else measured.compute


def measured_phase(seconds: float, beyond: Mapping[str, float] | None = None, more: float = 0.0) -> Phase:
    """Returns a phase of ``seconds`` that were measured, followed by what was only priced: communication ``beyond``
    them by group, and ``more`` seconds of compute."""
    exposed = dict(beyond or {})
    return Phase((Segment(seconds + more + sum(exposed.values()), 0.0),), seconds + more, exposed, seconds)
