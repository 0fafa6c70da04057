"""Efficiency parameters of a GPU: its own file, then its architecture's, its vendor's and every GPU's, key by key.

The nearest file that has a key wins.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from projector.hardware.efficiency_file import parse, shipped
from projector.hardware.types import Efficiency, Gpu
from projector.io.files import read_text
from projector.parameter import Parameter

__all__ = ["load", "of"]


@cache
def load(gpu_name: str) -> Efficiency:
    """Parameters of a catalogue GPU. Raises ``InputError`` for an unknown GPU or a broken file."""
    from projector.hardware.catalogue import gpu

    return of(gpu(gpu_name))


def of(device: Gpu) -> Efficiency:
    """Parameters of any device: its vendor's, its architecture's, its name's, then those of its own efficiency file.

    Raises ``InputError`` for a file that is broken, or named by the device and not there.
    """
    known = _shipped(device.vendor, device.arch, device.name)
    if not device.efficiency_file:
        return known
    own = parse(
        read_text(Path(device.efficiency_file), "a readable file of efficiency parameters"), device.efficiency_file
    )
    return Efficiency(gpu=device.name, parameters={**known.parameters, **own})


@cache
def _shipped(vendor: str, arch: str, name: str) -> Efficiency:
    """One object for one device, so that kernel models remember what they priced on it."""
    merged: dict[str, Parameter] = {}
    for stem in (*(() if vendor == "cpu" else ("gpu",)), vendor, arch, name):
        merged.update(shipped(stem.lower()))
    return Efficiency(gpu=name, parameters=merged)
