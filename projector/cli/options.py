"""Adds the flags that say what is projected and on what, for every command that takes a configuration."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from projector.cli.flags import NOTHING, Rows, add, quantity
from projector.cli.parser import HelpAll, Parser
from projector.cli.recipe_flags import add_field_flags
from projector.errors import Problem, collecting_into, raise_all

if TYPE_CHECKING:
    from projector.kernels.settings import Settings

_BACKEND, _CLOCK = "PRIMUS_GEMM_BACKEND", "PRIMUS_GPU_CLOCK_MHZ"


def add_selection(parser: argparse.ArgumentParser, known: Rows = NOTHING) -> None:
    """Adds the flags that choose the configuration and the devices, and those that change the configuration. ``known``: as
    for :func:`projector.cli.flags.add`."""
    parser.usage = (
        "%(prog)s [--config FILE | --model NAME|FILE]\n    [--gpu NAME|FILE] [--gpus N] [flags] [KEY=VALUE ...]"
    )
    add(parser, "+selection", {"+fields": add_field_flags, "help all": HelpAll, "as written": _AsWritten, **known})
    parser.set_defaults(changes=(), read={})


def add_kernels(parser: Any) -> None:
    """Adds the flags about kernels and clocks to a parser, in a group of their own."""
    add(parser, "+kernels")


def selection() -> Parser:
    """Returns a parser whose only flags choose a configuration and its devices."""
    parser = Parser(add_help=False, allow_abbrev=False)
    add_selection(parser)
    parser.set_defaults(options=parser.flags)
    return parser


def read_settings(options: argparse.Namespace) -> Settings:
    """Returns the kernel settings that the flags of ``+kernels`` state, else the environment variables that
    Primus reads for them. Raises :class:`InputError` with every mistake."""
    from projector.kernels.backends import BUILTIN
    from projector.kernels.settings import Settings

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
    with collecting_into(problems):
        settings.check("--gemm-backend" if flag or not variable else _BACKEND)
    raise_all(problems)
    return settings


class _AsWritten(argparse.Action):
    """Keeps the value, and beside it the flag as it was spelled, so that a mistake is blamed on what was typed."""

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_flag", option)
