"""From flags, else Primus' variables, to kernel settings."""

from __future__ import annotations

import argparse
import os

from projector.cli.parser import quantity
from projector.errors import InputError, Problem
from projector.kernels.backends import BUILTIN
from projector.kernels.settings import Settings

_BACKEND, _CLOCK = "PRIMUS_GEMM_BACKEND", "PRIMUS_GPU_CLOCK_MHZ"


def read_settings(options: argparse.Namespace) -> Settings:
    """The settings of the flags of :func:`projector.cli.options.add_kernels`.

    Where a flag says nothing, the variable that Primus reads for it does. Raises :class:`InputError` with every mistake.
    """
    problems: list[Problem] = []
    clock = options.gpu_clock_mhz
    stated = os.environ.get(_CLOCK, "")
    if clock is None and stated:
        try:
            clock = quantity("MHz", 100, 10000)(stated)
        except argparse.ArgumentTypeError:
            problems.append(Problem(_CLOCK, "", stated, "a number of MHz from 100 to 10000"))
    flag, variable = options.gemm_backend, os.environ.get(_BACKEND, "")
    name = (flag or variable or BUILTIN).strip().lower()
    settings = Settings(gemm_backend=name, gpu_clock_mhz=clock, power_cap_watts=options.power_cap_watts)
    try:
        settings.check("--gemm-backend" if flag or not variable else _BACKEND)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return settings
