"""Puts a clock or a power limit that the user states on a device: rates of its units change, its memory does not.

Clock: matrix, vector and exponential rates are so many operations a cycle, so they scale with it; device memory and
fixed launch latencies have clocks of their own and stay. Power: dynamic power of CMOS logic is ``a·C·V²·f``
(Chandrakasan, Sheng, Brodersen, *Low-power CMOS digital design*, IEEE JSSC 27(4), 1992); close to its limit a chip
raises the voltage in proportion to the clock, hence P ∝ f³ and f ∝ P^(1/3). What leaks, idles or feeds the memory is
left out, so a deep cap is judged kindly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from projector.errors import InputError, Problem
from projector.hardware.types import Efficiency, Gpu
from projector.parameter import Parameter

_MATRIX = "clock.matrix"


def settle(
    gpu: Gpu, efficiency: Efficiency, *, mhz: float | None = None, watts: float | None = None
) -> tuple[Gpu, Efficiency]:
    """Returns the device held at ``mhz`` while its matrix units are busy, and limited to ``watts``; None: no such limit.

    A clock, at most boost: every ``clock.*`` parameter becomes it over ``peak_clock_mhz``. Where the boost clock lies above
    the one that the peaks are stated at, the peaks rise with it, so the returned ``Gpu`` belongs to kernel models and not
    under an MFU. A power limit: every sustained clock falls with the cube root of the limit over the TDP; at or above the
    TDP it changes nothing. Both: each sustained clock is the lower of what either allows; a held clock is taken at its word
    where no power limit below the TDP stands against it. Raises :class:`InputError` unless both are positive numbers.
    """
    for value, key, expected in (
        (mhz, "gpu_clock_mhz", "a clock above 0 MHz"),
        (watts, "power_cap_watts", "a power above 0 W"),
    ):
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise InputError([Problem("settings", key, value, expected)])
    capped = watts is not None and watts < gpu.tdp_watts
    if mhz is None and not capped:
        return gpu, efficiency
    factor = (watts / gpu.tdp_watts) ** (1 / 3) if watts is not None and capped else math.inf
    held = math.inf if mhz is None else min(mhz, gpu.boost_clock_mhz) / gpu.peak_clock_mhz
    clocks = dict.fromkeys((_MATRIX, *(key for key in efficiency.parameters if key.startswith("clock."))))
    shares = {key: min(_share(efficiency, key) * factor, held) for key in clocks}
    words = [] if mhz is None else [f"clock held at {mhz:g} MHz"]
    words += [f"power capped at {watts:g} of {gpu.tdp_watts:g} W"] if capped else []
    gains = {} if mhz is None else dict.fromkeys(_gain_keys(efficiency), 0.0)
    return _with_shares(gpu, efficiency, shares, gains, ", ".join(words))


def sustained_mhz(gpu: Gpu, efficiency: Efficiency) -> float:
    """Returns the clock of busy matrix units, MHz."""
    return _share(efficiency, _MATRIX) * gpu.peak_clock_mhz


def _gain_keys(efficiency: Efficiency) -> tuple[str, ...]:
    """Returns the parameters by which a clock rises above the sustained one: idle units, short runs. A held clock does
    neither."""
    usual = ("attention.forward.power", "attention.backward.power", "gemm.burst", "grouped.burst")
    stated = (key for key in efficiency.parameters if key.startswith(tuple(f"{name}." for name in usual)))
    return tuple(dict.fromkeys((*usual, *stated)))


def _share(efficiency: Efficiency, key: str) -> float:
    return min(efficiency[key], 1.0)


def _with_shares(
    gpu: Gpu, efficiency: Efficiency, shares: Mapping[str, float], gains: Mapping[str, float], source: str
) -> tuple[Gpu, Efficiency]:
    """Returns the device with these shares of its peak clock; a share above one moves the peak clock instead.

    Rates without a count per clock (fp32 on vector units, ``vector_flops``) do not move: data sheets state them at the
    boost clock already.
    """
    over = max(1.0, *shares.values())
    values = {**{key: share / over for key, share in shares.items()}, **gains}
    changed = {key: Parameter(value=value, kind="derived", source=source) for key, value in values.items()}
    if over > 1.0:
        peak = {dtype: rate * (over if dtype in gpu.flops_per_clock else 1.0) for dtype, rate in gpu.peak.items()}
        gpu = replace(gpu, peak=peak, peak_clock_mhz=gpu.peak_clock_mhz * over)
    return gpu, replace(efficiency, parameters={**efficiency.parameters, **changed})
