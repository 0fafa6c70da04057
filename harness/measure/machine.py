"""The machine at hand as a catalogue entry: a probe of one device, and of what joins processes, once per folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.measure.launch import Host

_LARGEST = {"cuda": 8192, "cpu": 1024}  # edge of the largest product; on a CPU a probe shall take seconds
_SAMPLES, _MOST = 5, 0.2  # runs of one kernel, and seconds that they may take
_MESSAGE = 16 * 2**20  # bytes of the largest collective
NAME = "here"


def described(here: Host, threads: int, folder: Path, told: Callable[[str], None]) -> Path:
    """The cluster file of this machine in ``folder``, made by a probe with ``threads`` (CPU) unless it is there.

    Raises :class:`projector.errors.InputError` where the device cannot be timed.
    """
    path = folder / f"{NAME}.cluster.yaml"
    if not path.is_file():
        _probe(here, threads, folder)
        told(f"probed the device, {threads} threads" + (", and what joins processes" if here.places > 1 else ""))
    return path


def _probe(here: Host, threads: int, folder: Path) -> None:
    from projector.benchmark import collectives, fabric
    from projector.benchmark.device import open_device
    from projector.benchmark.entry import entry
    from projector.benchmark.entry_files import write
    from projector.benchmark.probe import probe
    from projector.benchmark.stopwatch import Stopwatch
    from projector.errors import InputError, Problem

    device = open_device(here.device, threads if here.device == "cpu" else None)
    found = probe(device, Stopwatch(device, samples=_SAMPLES, most=_MOST), _LARGEST[here.device])
    try:
        made = entry(found, NAME)
    except ValueError as error:
        raise InputError([Problem("measure", "", device.title, f"a device that torch can time ({error})")]) from None
    joined = None
    if here.places > 1:  # two say what joins them; more would want as many cores
        swept = collectives.timed(device, _MESSAGE, _MOST, ranks=2)
        joined = replace(fabric.fitted(swept, made.gpu), ranks=here.places)
    write(made, folder, device.software(), joined)
    if device.type == "cuda":
        device.torch.cuda.empty_cache()  # trainings want the memory that this process would keep
