"""The machine at hand as a catalogue entry: a probe of one device, and of what joins processes, once per folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.measure.fabric import Fabric, timed
from harness.measure.launch import Host
from projector.io.files import read_yaml, write_whole

__all__ = ["described"]

_LARGEST = {"cuda": 8192, "cpu": 1024}  # edge of the largest product; on a CPU a probe shall take seconds
_SAMPLES, _MOST = 7, 0.5  # runs of one kernel, and seconds that they may take
NAME = "here"


def described(here: Host, threads: int, folder: Path, told: Callable[[str], None]) -> Path:
    """The cluster file of this machine in ``folder``, made by a probe with ``threads`` (CPU) unless it is there.

    Raises :class:`projector.errors.InputError` where the device cannot be timed.
    """
    path = folder / f"{NAME}.cluster.yaml"
    if not path.is_file():
        _probe(here, threads, folder)
        told(f"probed the device, {threads} threads")
        if here.places > 1:
            _join(path, timed(here, threads), here.places)
            told("timed all-reduces between processes")
    return path


def _probe(here: Host, threads: int, folder: Path) -> None:
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
    write(made, folder, device.software())


def _join(path: Path, fabric: Fabric, places: int) -> None:
    """Puts what was timed between processes into the cluster file: one node of ``places`` devices."""
    import yaml

    content: dict[str, Any] = read_yaml(path)
    words = {
        "bandwidth_gbs": float(f"{fabric.bandwidth / 1e9:.4g}"),
        "latency_us": float(f"{fabric.latency * 1e6:.4g}"),
    }
    content |= {"gpus_per_node": places, "gpus_per_host": places}
    content["intra"] = {**content["intra"], "name": "between processes", "size": places, **words}
    content["sources"] = [
        {"title": fabric.how, "kind": "measured", "values": ["intra.bandwidth_gbs", "intra.latency_us"]},
        {
            "title": "one machine measures no network: to be replaced",
            "kind": "assumed",
            "values": ["inter.bandwidth_gbs", "inter.latency_us"],
        },
    ]
    text = yaml.safe_dump(content, sort_keys=False, width=120, default_flow_style=None)
    write_whole(path, f"# Made by a probe of the machine that trainings run on\n{text}")
