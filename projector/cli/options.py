"""The flags that say what is projected and on what; the same for every command that takes a configuration."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from projector.errors import Problem

__all__ = ["Parser", "Subparsers", "add_command", "add_kernels", "add_selection", "quantity", "unknown"]

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Parser(argparse.ArgumentParser):
    """argparse with mistakes in one line: no usage block in front of what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_command(
    commands: Subparsers, name: str, about: str, command: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """A subparser whose namespace carries the function to call (``command``) and its own flags (``options``)."""
    parser = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.set_defaults(command=command, options=_Flags(parser))
    return parser


class _Flags:
    """The flags of a parser as they are when asked for: some are added after the parser is registered."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def __call__(self) -> tuple[str, ...]:
        return tuple(flag for action in self._parser._actions for flag in action.option_strings)


def unknown(rest: Sequence[str], flags: Callable[[], tuple[str, ...]]) -> list[Problem]:
    """One problem for every argument that no flag of the command took, with the nearest flags."""
    known = flags()
    wrong = [word for word in rest if word.startswith("-")] or list(rest)
    problems = []
    for word in wrong:
        if not word.startswith("-"):
            problems.append(Problem("command line", "", word, "no further argument"))
            continue
        close = difflib.get_close_matches(word.partition("=")[0], known, n=3, cutoff=0.5)
        expected = f"a flag; nearest: {', '.join(close)}" if close else f"one of {', '.join(known)}"
        problems.append(Problem("command line", "", word, expected))
    return problems


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds, for argparse."""
    words = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def read(text: str) -> int:
        number = int(text) if text.strip().lstrip("+").isdecimal() and len(text) < 20 else least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {words}")
        return number

    return read


def quantity(unit: str, low: float, high: float) -> Callable[[str], float]:
    """A number of ``unit`` within bounds that tell it from one of another unit, for argparse."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of {unit} from {low:g} to {high:g}")
        return number

    return read


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Flags that choose the configuration and the devices, and those that change the configuration."""
    _add_inputs(parser)
    _add_devices(parser)
    add_kernels(parser)
    _add_changes(parser)


def add_kernels(parser: Any) -> None:
    """Flags about kernels and clocks, for a parser (then in a group of their own) or one of its groups."""
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


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained")
    group.add_argument(
        "--config",
        "--exp",
        required=True,
        metavar="FILE",
        help="a Primus experiment, a case (model, recipe, gpus), or Megatron-LM arguments: a log with their dump, a "
        "mapping, a launch script; the content decides",
    )
    group.add_argument("--configs", metavar="DIR", help="the primus/configs folder of Primus: presets come from there")
    group.add_argument(
        "--model", metavar="NAME|FILE", help="this architecture instead: a zoo name or a Hugging Face config.json"
    )
    group.add_argument("--framework", metavar="NAME", help="executed by this framework (see: projector frameworks)")


def _add_devices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on what")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--cluster", metavar="NAME|FILE", help="a cluster of the catalogue, or a YAML file of one")
    which.add_argument(
        "--gpu-arch",
        metavar="NAME",
        help="the usual cluster of a GPU (mi355x, gfx950, h100); default: what the file names, then PRIMUS_GPU_ARCH",
    )
    group.add_argument("--hardware-config", metavar="FILE", help="network figures over those of the cluster (Primus)")
    count = group.add_mutually_exclusive_group()
    count.add_argument("--gpus", type=whole(1), metavar="N", help="GPUs of the run")
    count.add_argument(
        "--target-nodes",
        "--target-num-nodes",
        type=whole(1),
        metavar="N",
        help="hosts of the run; default: what the file says, else the fewest that hold the parallel groups",
    )


def _add_changes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("changed against the file")
    group.add_argument("--micro-batch-size", type=whole(1), metavar="N")
    group.add_argument("--global-batch-size", type=whole(1), metavar="N")
    group.add_argument("--target-ep-size", type=whole(1), metavar="N", help="expert-parallel size")
    group.add_argument(
        "--num-virtual-stages-per-pipeline-rank", type=whole(1), metavar="N", help="model chunks on a pipeline rank"
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
        metavar="NAME",
        help="auto (what the file says), zerobubble, zerobubble-heuristic, zbv-formatted, zbv-greedy-half, "
        "zbv-greedy-min, or a schedule by its own name; performance also takes all: every one that applies, compared",
    )


def add_json(parser: Any) -> None:
    """``--json``, for a parser or one of its groups."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")
