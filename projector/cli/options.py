"""The flags that say what is projected and on what; the same for every command that takes a configuration."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

from projector import __version__
from projector.cli.completion import Completion, arguments
from projector.cli.field_flags import add_field_flags, add_set
from projector.errors import InputError, Problem

_CHANGE = re.compile(r"[A-Za-z_][\w.]*=")
_FLAG = re.compile(r"--\w+(?:=|$)")
#: Mistakes as argparse words them, in English sentences only (other ones in Python 3.11 and 3.14), in the one shape of all
#: mistakes; a sentence that no pattern knows is shown as argparse says it.
_SHAPES = (
    (re.compile(r"argument (\S+): (found .*)", re.DOTALL), r"{0}: {1}"),
    (re.compile(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)"), "{0}: found {1}, expected one of {2}"),
    (re.compile(r"argument (\S+): invalid \S+ value: (.*)"), "{0}: found {1}, expected another kind of value"),
    (
        re.compile(r"argument (\S+): not allowed with argument (\S+)"),
        "{0}: found {1} beside it, expected one of the two",
    ),
    (re.compile(r"argument (\S+): (expected .*)"), "{0}: found nothing, {1}"),
    (re.compile(r"argument (\S+): ignored explicit argument (.*)"), "{0}: found {1}, expected no value"),
    (re.compile(r"the following arguments are required: (.*)"), "command line: found nothing, expected {0}"),
    (re.compile(r"one of the arguments (.*) is required"), "command line: found nothing, expected one of {0}"),
)
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _mistake(message: str) -> str:
    """What argparse says, as one line of ours."""
    for pattern, shape in _SHAPES:
        match = pattern.fullmatch(message)
        if match:
            flag, *rest = match.groups()
            return shape.format(flag.split("/")[0], *rest).replace("\n", " ")
    return f"command line: {message}"


class Parser(argparse.ArgumentParser):
    """argparse with mistakes in one line: no usage block in front of what is wrong.

    ``examples``: command lines behind the program's name that work from the project's folder; help starts with them.
    """

    examples: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{_mistake(message)}; see {self.prog} --help\n")

    def format_help(self) -> str:
        """Examples first: a user looks for what to type."""
        shown = "".join(f"  python -m {self.prog} {line}".rstrip() + "\n" for line in self.examples)
        return (f"examples:\n{shown}\n" if shown else "") + super().format_help()


def program(
    prog: str, description: str, exits: str, *, examples: Sequence[str], commands: Sequence[ModuleType]
) -> argparse.ArgumentParser:
    """The parser of a whole program. ``exits``: further exit codes; ``commands``: a module a command."""
    epilog = f"Exit code 0; {exits}2 when the input is wrong, with every mistake on its own line."
    parser = Parser(prog=prog, description=description, epilog=epilog, allow_abbrev=False)
    parser.examples = examples
    parser.add_argument("--completion", action=Completion, help=Completion.HELP)
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in commands:
        command.register(subparsers)
    return parser


def add_command(
    commands: Subparsers,
    name: str,
    about: str,
    command: Callable[[argparse.Namespace], object],
    *,
    examples: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """A subparser whose namespace carries the function to call (``command``) and its own flags (``options``)."""
    parser = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
    if isinstance(parser, Parser):
        parser.examples = tuple(examples)
    parser.set_defaults(command=command, options=_Flags(parser))
    return parser


class _AsWritten(argparse.Action):
    """Keeps the value, and the spelling of the flag beside it: a mistake is blamed on what was typed."""

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_flag", option)


class _HelpAll(argparse.Action):
    """``--help-all``: the help with the flags that ``--help`` leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        for action in arguments(parser):
            action.help = getattr(action, "whole_help", action.help)
        parser.print_help()
        parser.exit()


class _Flags:
    """The flags of a parser as they are when asked for: some are added after the parser is registered."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def __call__(self) -> tuple[str, ...]:
        return tuple(flag for action in arguments(self._parser) for flag in action.option_strings)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The flags of ``argv``. Raises :class:`InputError` with every word that no flag takes."""
    words = [word if not _FLAG.match(word) else _dashed(word) for word in argv]
    parsed, rest = parser.parse_known_args(words)
    rest = _take_changes(parsed, rest)
    if rest and hasattr(parsed, "stated"):
        from projector.cli import megatron_switches

        rest = megatron_switches.take(parsed, rest)
    if rest:
        raise InputError(_unknown(rest, parsed.options))
    return parsed


def _dashed(word: str) -> str:
    """``--lora_rank=8``, as torch's trainers write flags, with dashes in its name."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _unknown(rest: Sequence[str], flags: Callable[[], tuple[str, ...]]) -> list[Problem]:
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


def _take_changes(parsed: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """``rest`` less its ``KEY=VALUE`` words, which go to ``parsed.changes`` where the command takes any."""
    if not hasattr(parsed, "changes"):
        return list(rest)
    parsed.changes = tuple(word for word in rest if _CHANGE.match(word))
    return [word for word in rest if not _CHANGE.match(word)]


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
    parser.usage = "%(prog)s [--config FILE | --model NAME|FILE] [--gpu NAME|FILE] [--gpus N] [flags] [KEY=VALUE ...]"
    parser.add_argument("--help-all", action=_HelpAll, help="also the flags of all recipe fields")
    _add_inputs(parser)
    _add_devices(parser)
    add_field_flags(parser)
    _add_changes(parser)
    add_kernels(parser)
    parser.set_defaults(changes=(), read={})


def selection() -> Parser:
    """A parser of nothing but a configuration and its devices."""
    parser = Parser(add_help=False, allow_abbrev=False)
    add_selection(parser)
    parser.set_defaults(options=_Flags(parser))
    return parser


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
    count.add_argument("--gpus", type=whole(1), metavar="N", help="GPUs of the run")
    count.add_argument(
        "--target-nodes",
        "--target-num-nodes",
        type=whole(1),
        metavar="N",
        help="hosts of the run; default: what the file says, else the fewest that hold the parallel groups",
    )


def _add_changes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("switches of several fields")
    add_set(group)
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


def add_json(parser: Any) -> None:
    """``--json``, for a parser or one of its groups."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")
