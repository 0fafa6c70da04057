"""Finds the efficiency parameters of a GPU: its own file, then its architecture's, its vendor's and every GPU's, by key.

The nearest file that has a key wins. An architecture that has no file takes that of its nearest relative
(:func:`relative`), and a device that states no clock takes its architecture's, moved by its power (:func:`powered`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from projector.hardware.efficiency_file import parse, shipped
from projector.hardware.types import Efficiency, Gpu
from projector.io.files import read_text
from projector.parameter import Parameter

WATTS = "power.watts_per_tflops"
_CLOCKS = ("clock.matrix", "clock.attention")


@cache
def load(gpu_name: str) -> Efficiency:
    """Returns the parameters of a catalogue GPU. Raises ``InputError`` for an unknown GPU or a broken file."""
    from projector.hardware.catalogue import gpu

    return of(gpu(gpu_name))


def of(device: Gpu) -> Efficiency:
    """Returns the parameters of any device: its vendor's, its architecture's, its name's, then those of its own
    efficiency file.

    Raises ``InputError`` for a file that is broken, or named by the device and not there.
    """
    arch, file = stands_in(device) or device.arch, device.efficiency_file
    known = _shipped(device.vendor, arch, device.base or device.name, _watts_per_tflops(device))
    if not file:
        return known
    stated = parse(read_text(Path(file), "a readable file of efficiency parameters"), file)
    return Efficiency(gpu=device.name, parameters={**known.parameters, **stated})


def stands_in(device: Gpu) -> str:
    """Returns the architecture that stands for one without a file; empty for a device whose own has one."""
    return "" if shipped(device.arch.lower()) else relative(device)


def relative(device: Gpu, *without: str) -> str:
    """Returns the architecture whose kernels a device of an unknown one is taken to run, other than ``without``, or "".

    Of its vendor's architectures with measured tables the nearest in what kernels are written around: matrix products
    and exponentials a clock and unit.
    """
    from projector.hardware.catalogue import gpu, gpu_names

    known = (other for other in map(gpu, gpu_names()) if other.vendor == device.vendor and other.arch not in without)
    near = ((_distance(device, o), o.arch) for o in known if any(p.kind == "fitted" for p in shipped(o.arch).values()))
    return min(near, default=(0.0, ""))[1]


def powered(parameters: Mapping[str, Parameter], watts_per_tflops: float) -> Mapping[str, Parameter]:
    """Returns ``parameters`` with the clocks of another device, of that board power over dense BF16 peak, W s/TFLOP.

    At its peak clock a chip of one generation spends about as much energy on an operation as another; below it power
    falls with the cube of the clock (:mod:`projector.hardware.clock`), so the share of the peak clock that a board
    sustains goes with the cube root of its watts a peak TFLOP/s, up to the whole. ``parameters`` state under
    :data:`WATTS` of which device their clocks are.
    """
    watts_of_clocks = parameters.get(WATTS)
    if watts_of_clocks is None or not watts_per_tflops or math.isclose(watts_of_clocks, watts_per_tflops, rel_tol=1e-3):
        return parameters
    factor = (watts_per_tflops / watts_of_clocks) ** (1 / 3)
    clocks = {key: _scaled_share(p, factor) for key, p in parameters.items() if key.startswith(_CLOCKS)}
    return {**parameters, **clocks}


def _scaled_share(share: Parameter, factor: float) -> Parameter:
    """Returns a share of the peak clock and its range, ``factor`` times and at most all of it."""
    low, high = (None if end is None else min(1.0, factor * end) for end in (share.low, share.high))
    source = f"{share.source}; times the cube root of the board power of a peak FLOP/s"
    return Parameter(min(1.0, factor * share), "derived", source, low, high, scored=share.scored)


def _watts_per_tflops(device: Gpu) -> float:
    """Returns the watts of a board for each dense 16-bit TFLOP/s of its peak; 0 for a device that has no such peak."""
    peak = device.peak.get("bf16") or device.peak.get("fp16")
    return device.tdp_watts / (peak * 1e-12) if peak else 0.0


def _distance(one: Gpu, other: Gpu) -> float:
    """Returns the factors between the rates of two units, as the sum of their logarithms."""
    products = [max(gpu.flops_per_clock.get(name, 0.0) for name in ("bf16", "fp16")) for gpu in (one, other)]
    pairs = (products, [one.exp_per_clock_per_cu, other.exp_per_clock_per_cu])
    return sum(abs(math.log(a / b)) for a, b in pairs if a > 0.0 and b > 0.0)


@cache
def _shipped(vendor: str, arch: str, name: str, watts_per_tflops: float) -> Efficiency:
    """Returns one object for one device, so that kernel models remember what they priced on it."""
    merged: dict[str, Parameter] = {}
    for stem in (*(() if vendor == "cpu" else ("gpu",)), vendor, arch):
        merged.update(shipped(stem.lower()))
    merged = {**powered(merged, watts_per_tflops), **shipped(name.lower())}
    return Efficiency(gpu=name, parameters=merged)
