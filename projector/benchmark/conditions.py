"""What a timing was taken under: clock, power, temperature and load of the device, and who else uses it."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

from projector.benchmark.device import Device, clocks_mhz
from projector.errors import InputError, Problem

__all__ = ["refuse_busy", "under"]

_BUSY = 20.0  # percent of the time that kernels of others ran
_LOOKS, _APART = 5, 0.05  # samples of that, and seconds between them


def under(device: Device) -> dict[str, Any]:
    """Conditions at this moment; what the driver (or torch without its management library) does not tell is left out.

    ``clock_mhz``, ``power_watts``, ``temperature_c``, ``busy_percent``; ``others``: processes with memory of this GPU but
    for this one; of a CPU ``clock_mhz`` and ``load``, runnable threads of the machine over the last minute.
    """
    if device.type == "cpu":
        clock = statistics.fmean(clocks_mhz() or [0.0])
        found: dict[str, Any] = {"clock_mhz": round(clock) or None, "load": _told(lambda: os.getloadavg()[0])}
    else:
        cuda, index = device.torch.cuda, device.index
        power = _told(lambda: cuda.power_draw(index))
        found = {
            "clock_mhz": _told(lambda: cuda.clock_rate(index)),
            "power_watts": None if power is None else power / 1e3,
            "temperature_c": _told(lambda: cuda.temperature(index)),
            "busy_percent": _told(lambda: cuda.utilization(index)),
            "others": _told(lambda: len(_others(device))),
        }
    return {name: value for name, value in found.items() if value is not None}


def refuse_busy(device: Device) -> None:
    """Raises :class:`InputError` for a GPU on which others compute now: nothing that is timed there could be used."""
    if device.type == "cpu":
        return
    looks = []
    for _ in range(_LOOKS):
        looks.append(_told(lambda: device.torch.cuda.utilization(device.index)))
        time.sleep(_APART)
    busy = statistics.median([look for look in looks if look is not None] or [0.0])
    if busy >= _BUSY:
        others = _told(lambda: _others(device)) or ["a process that the driver does not name"]
        found = f"{busy:.0f} % busy before anything is timed: {', '.join(others)}"
        raise InputError([Problem("--device", device.place, found, "a GPU that nobody else uses")])


def _others(device: Device) -> list[str]:
    listed = str(device.torch.cuda.list_gpu_processes(device.index))
    return [f"process {number}" for number in re.findall(r"process\s+(\d+)", listed) if int(number) != os.getpid()]


def _told(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # every management library fails in its own way, and none of them is needed
        return None
