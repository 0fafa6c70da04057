"""Adds the flags that say what is projected and on what, for every command that takes a configuration."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from projector.cli.parser import HelpAll, Parser, quantity, whole
from projector.cli.recipe_flags import add_field_flags
from projector.errors import Problem, collecting_into, raise_all

if TYPE_CHECKING:
    from projector.kernels.settings import Settings

_BACKEND, _CLOCK = "PRIMUS_GEMM_BACKEND", "PRIMUS_GPU_CLOCK_MHZ"


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose the configuration and the devices, and those that change the configuration."""
    parser.usage = (
        "%(prog)s [--config FILE | --model NAME|FILE]\n    [--gpu NAME|FILE] [--gpus N] [flags] [KEY=VALUE ...]"
    )
    parser.add_argument("--help-all", action=HelpAll, help="also the flags of all recipe fields")
    _add_inputs(parser)
    _add_devices(parser)
    add_field_flags(parser)
    _add_changes(parser)
    add_kernels(parser)
    parser.set_defaults(changes=(), read={})


def selection() -> Parser:
    """Returns a parser whose only flags choose a configuration and its devices."""
    parser = Parser(add_help=False, allow_abbrev=False)
    add_selection(parser)
    parser.set_defaults(options=parser.flags)
    return parser


def add_strict(group: Any) -> None:
    """Adds ``--strict``, which :func:`projector.cli.setting_remarks.refuse_assumed` answers, to a group of a parser."""
    group.add_argument("--strict", action="store_true", help="refuse what is assumed")


def add_kernels(parser: Any) -> None:
    """Adds the flags about kernels and clocks to a parser (then in a group of their own) or to one of its groups."""
    group = parser.add_argument_group("kernels and clocks") if isinstance(parser, argparse.ArgumentParser) else parser
    group.add_argument(
        "--gemm-backend",
        metavar="NAME",
        help="who prices dense matrix products: builtin, origami (needs rocm-origami), or one that an installed package "
        "offers (entry points projector.gemm_backends); default: PRIMUS_GEMM_BACKEND, then builtin",
    )
    group.add_argument(
        "--gpu-clock-mhz",
        type=quantity("MHz", 100, 10000),
        metavar="MHZ",
        help="clock of busy compute units, at most boost; memory keeps its own; default: PRIMUS_GPU_CLOCK_MHZ, then what "
        "the device sustains",
    )
    group.add_argument(
        "--power-cap-watts",
        type=quantity("W", 10, 100000),
        metavar="W",
        help="power limit of one GPU: the sustained clock falls with the cube root of its share of the TDP",
    )


def read_settings(options: argparse.Namespace) -> Settings:
    """Returns the kernel settings that the flags of :func:`add_kernels` state, else the environment variables that
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


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained")
    group.add_argument(
        "--config",
        "--exp",
        metavar="FILE",
        help="a Primus experiment, a case (model, recipe, gpus), or Megatron-LM arguments: a log with their dump, a "
        "mapping, a launch script, a manifest that runs one (Kubernetes, SkyPilot, AzureML); the content decides. Without "
        "it --model and flags say everything. KEY=VALUE arguments change the file before it is read, as Primus has them",
    )
    group.add_argument(
        "--configs",
        metavar="DIR",
        help="the primus/configs folder of Primus, for its presets (default: that of the checkout in which the file lies)",
    )
    group.add_argument(
        "--args",
        nargs="+",
        action="extend",
        default=[],
        metavar="WORD",
        help="arguments with which a launch script is started ($1, $2, …); in one pair of quotes where they begin with -",
    )
    group.add_argument(
        "--env",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="environment in which a launch script is started",
    )
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="this architecture: a zoo name (see: projector models), a Hugging Face config.json or its folder, a YAML "
        "file of model fields",
    )
    group.add_argument("--framework", metavar="NAME", help="executed by this framework (see: projector frameworks)")
    group.add_argument(
        "--framework-date",
        metavar="YYYY-MM",
        help="the month of the stack (default: of the image in a launch script, else the newest)",
    )


def _add_devices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on what")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="a cluster of the catalogue, a machine that a cloud rents (p5.48xlarge, ND_H100_v5), or a YAML file of one",
    )
    which.add_argument(
        "--gpu",
        "--gpu-arch",
        dest="gpu",
        action=_AsWritten,
        metavar="NAME|FILE",
        help="the usual cluster of a GPU (mi355x, gfx950, h100), or a YAML file of one; default: what the file names, then "
        "PRIMUS_GPU_ARCH",
    )
    group.add_argument("--hardware-config", metavar="FILE", help="network figures over those of the cluster (Primus)")
    count = group.add_mutually_exclusive_group()
    count.add_argument("--gpus", type=whole(1, 1_000_000), metavar="N", help="GPUs of the run")
    count.add_argument(
        "--target-nodes",
        "--target-num-nodes",
        type=whole(1),
        metavar="N",
        help="hosts of the run; default: what the file says, else the fewest that hold the parallel groups",
    )


def _add_changes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("switches of several fields")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any recipe field, model.num_layers=12, or a what-if such as gpu.hbm_bytes_per_s=4e12 and "
        "cluster.inter.bandwidth_gbs=100; may be given again",
    )
    group.add_argument(
        "--enable-zero-bubble",
        action="store_true",
        help="backward split in two, its second half in the bubble: zbv with two chunks a rank, else zero-bubble",
    )
    group.add_argument("--enable-deepep", action="store_true", help="tokens reach their experts by DeepEP")
    group.add_argument(
        "--sync-free-stage",
        type=whole(0, 3),
        metavar="0..3",
        help="how much of an MoE layer runs without waiting for the host; from 1 on with DeepEP",
    )
    group.add_argument(
        "--pipeline-schedule-algorithm",
        "--pipeline-schedule",
        metavar="NAME",
        help="auto (what the file says), zerobubble, zerobubble-heuristic, zbv-formatted, zbv-greedy-half, "
        "zbv-greedy-min, or a schedule by its own name; performance also takes all: every one that applies, compared",
    )


class _AsWritten(argparse.Action):
    """Keeps the value, and beside it the flag as it was spelled, so that a mistake is blamed on what was typed."""

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_flag", option)
