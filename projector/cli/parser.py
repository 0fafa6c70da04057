"""Builds both command lines: parsers that import a command when it is called, and the words of mistakes."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from projector import __version__
from projector.errors import InputError, Problem

SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "PATH", "RUN", "RESULTS", "SUITE", "SPEC", "TABLE.csv")
_FOLDERS = ("DIR", "FOLDER")
_CHANGE = re.compile(r"[A-Za-z_][\w.]*=")
#: A line that ends for the width of a source file, not with its sentence.
_BROKEN = re.compile(r"^(.{60,}[^.:\n])\n(?=\S)", re.MULTILINE)
_FLAG = re.compile(r"^--\w+(?==|$)")
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


#: What each command is about, by the heading under which help lists it; those under an empty one only with ``--help-all``.
Commands = Mapping[str, Mapping[str, str]]
_FURTHER = "further, for who works on the models"
_WIDTH = 80  # columns that help takes at the most


class Shown(argparse.RawDescriptionHelpFormatter):
    """Formats help in 80 columns: paragraphs are wrapped as they are written; of many names of a flag those are shown
    that have room, unless ``whole``."""

    whole = False

    def __init__(self, *words: Any, **settings: Any) -> None:
        import shutil

        settings["width"] = min(settings.get("width") or shutil.get_terminal_size().columns - 2, _WIDTH)
        super().__init__(*words, **settings)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        joined = _BROKEN.sub(r"\1 ", text)
        return "\n".join(
            textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent) for line in joined.splitlines()
        )

    def _format_action_invocation(self, action: argparse.Action) -> str:
        whole = super()._format_action_invocation(action)
        if self.whole or len(whole) <= _WIDTH - 4 or not action.option_strings:
            return whole
        value = "" if action.nargs == 0 else f" {self._format_args(action, action.dest.upper())}"
        names = list(action.option_strings)
        while len(names) > 1 and len(", ".join(names) + value) > _WIDTH - 4:
            names.pop()
        return ", ".join(names) + value


class Parser(argparse.ArgumentParser):
    """Parses as argparse does, and reports a mistake in one line, without a block of usage in front of what is wrong."""

    examples: Sequence[str] = ()
    commands: Commands = {}
    table: Path = Path(__file__).with_name("flags.yaml")  # of the flags of all commands of the program
    fill: Callable[[Parser], object] | None = None

    def filled(self) -> Parser:
        """Returns this parser with all flags of its command, which are added at the first call."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        return self

    def flags(self) -> tuple[str, ...]:
        """Returns all flags of this parser, in order."""
        return tuple(flag for action in arguments(self) for flag in action.option_strings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses as argparse does, with the flags of the command that is called."""
        return argparse.ArgumentParser.parse_known_args(self.filled(), args, namespace)

    def error(self, message: str) -> NoReturn:
        told = f"command line: {message}"
        for pattern, shape in _SHAPES:
            if match := pattern.fullmatch(message):
                flag, *rest = match.groups()
                told = shape.format(flag.split("/")[0], *rest).replace("\n", " ")
                break
        self.exit(2, f"{told}; see {self.prog} --help\n")

    def format_help(self, further: bool = False) -> str:
        """Returns help: examples first, since a user looks for what to type, then commands; ``further``: all of them."""
        text = argparse.ArgumentParser.format_help(self.filled())
        lines = [line for each in self.examples for line in wrapped(f"python -m {self.prog} {each}".split())]
        head = "examples:\n" + "".join(f"  {line}\n" for line in lines) + "\n" if lines else ""
        listed = "".join(self._listed(further))
        return head + (text.replace("\noptions:", f"\n{listed}options:", 1) if listed else text)

    def _listed(self, further: bool) -> Iterator[str]:
        for group, commands in self.commands.items():
            if group or further:
                yield f"{group or _FURTHER}:\n"
                for name, about in commands.items():
                    yield (
                        textwrap.fill(about, _WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=" " * 14) + "\n"
                    )
                yield "\n"


def wrapped(words: Sequence[str], margin: str = "    ") -> list[str]:
    """Returns the lines of a command in a shell, no wider than the terminal, flags and their values together."""
    from projector.io.terminal import width_of

    width = min(78, (width_of(sys.stdout) or 80) - 2)
    lines, pairs = [""], list[str]()
    for word in map(shlex.quote, words):
        fits = bool(pairs) and len(margin + pairs[-1] + word) + 3 <= width
        if fits and pairs[-1].startswith("-") and " " not in pairs[-1] and not word.startswith("-"):
            pairs[-1] += f" {word}"
        else:
            pairs.append(word)
    for pair in pairs:
        if len(lines[-1]) + len(pair) + 3 > width:
            lines[-1] += " \\"
            lines.append(margin + pair)
        else:
            lines[-1] += f" {pair}" if lines[-1] else pair
    return lines


def program(package: str, adder: str = "projector.cli.flags") -> argparse.ArgumentParser:
    """Returns the parser of a program, which ``commands.toml`` beside its commands tells. A command is a file of
    ``package.cli``: its function ``command`` is called with the flags of the table ``flags.yaml`` and what is ``KNOWN`` of
    them in Python, or its function ``register`` says otherwise; ``adder``: the module whose ``add_command`` adds the flags
    of a command."""
    folder = Path(import_module(f"{package}.cli").__file__ or "").parent
    told = tomllib.loads((folder / "commands.toml").read_text(encoding="utf-8"))
    epilog = f"Exit code 0; {told['exits']}2 when the input is wrong, with every mistake on its own line."
    settings: dict[str, Any] = {"allow_abbrev": False, "formatter_class": Shown}
    parser = Parser(prog=package, description=told["description"], epilog=epilog, **settings)
    parser.examples, parser.commands, parser.usage = told["examples"], told["commands"], f"{package} COMMAND [flags]"
    parser.add_argument("--help-all", action=HelpAll, help="also the commands for who works on the models")
    parser.add_argument("--completion", action=Completion, help=Completion.HELP)
    parser.add_argument("--version", action="version", version=f"{package} {__version__}")
    subparsers = parser.add_subparsers(prog=package, required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for name, about in (each for group in parser.commands.values() for each in group.items()):
        place = f"{package}.cli.{told['files'].get(name, name.replace('-', '_'))}"
        command = subparsers.add_parser(name, help=about, description=about, **settings)
        command.table = folder / "flags.yaml"
        command.fill = partial(_fill, place=place, adder=adder)
    return parser


def _fill(parser: Parser, place: str, adder: str) -> None:
    """Adds the flags of the command whose file is the module ``place``."""
    file = import_module(place)
    if hasattr(file, "register"):
        file.register(parser)
    else:
        import_module(adder).add_command(parser, file.command, getattr(file, "KNOWN", {}))


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Returns the flags of ``argv``. Raises :class:`InputError` with every word that no flag takes."""
    # --lora_rank=8, as torch's trainers write flags
    words = [_FLAG.sub(lambda flag: flag[0].replace("_", "-"), word, count=1) for word in argv]
    parsed, rest = parser.parse_known_args(words)
    if hasattr(parsed, "changes"):
        parsed.changes = tuple(word for word in rest if _CHANGE.match(word))
        rest = [word for word in rest if not _CHANGE.match(word)]
    if rest and hasattr(parsed, "stated"):
        from projector.cli import megatron_switches

        rest = megatron_switches.take(parsed, rest)
    if rest:
        raise InputError(_unknown(rest, parsed.options))
    return parsed


def _unknown(rest: Sequence[str], flags: Callable[[], tuple[str, ...]]) -> list[Problem]:
    """Returns one problem for every argument that no flag of the command took, with the nearest flags."""
    import difflib

    known = flags()
    unknown = [word for word in rest if word.startswith("-")] or list(rest)
    problems = []
    for word in unknown:
        if not word.startswith("-"):
            problems.append(Problem("command line", "", word, "no further argument"))
            continue
        close = difflib.get_close_matches(word.partition("=")[0], known, n=3, cutoff=0.5)
        expected = f"a flag; nearest: {', '.join(close)}" if close else f"one of {', '.join(known)}"
        problems.append(Problem("command line", "", word, expected))
    return problems


class HelpAll(argparse.Action):
    """Prints the help with the commands and the flags that ``--help`` leaves out: ``--help-all``."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        for action in arguments(parser):
            action.help = getattr(action, "whole_help", action.help)
        Shown.whole = not parser.commands
        sys.stdout.write(parser.format_help(further=True))
        Shown.whole = False
        parser.exit()


class Completion(argparse.Action):
    """Prints the completion script for a shell, made by shtab, and ends the program: ``--completion bash|zsh|fish``."""

    HELP = 'print a script for bash, zsh or fish: eval "$(%(prog)s --completion bash)"'

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, choices=SHELLS, metavar="SHELL", **settings)

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, __: str | None = None) -> None:
        import shtab

        for each in arguments(parser):  # what help does not list, shtab would leave out
            each.help = "" if isinstance(each, argparse._SubParsersAction) else each.help
        names = _known_values()
        for action in _all_actions(parser):
            action.help = getattr(action, "whole_help", action.help)  # flags that help leaves out are completed, too
            known = names.get(action.dest)
            if known and action.choices is None:
                action.choices = known
            elif action.metavar in _FILES or "FILE" in str(action.metavar or ""):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        sys.stdout.write(shtab.complete(parser, shell))
        parser.exit()


def arguments(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    """Returns the flags and arguments of a parser itself, in order.

    argparse has no public list of them. Its private one is the same from Python 3.11 to 3.14, and shtab reads it as well;
    it is read here and nowhere else.
    """
    return (parser.filled() if isinstance(parser, Parser) else parser)._actions


def _all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields every flag and argument of a parser and of its commands."""
    for action in arguments(parser):
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _all_actions(each)
        else:
            yield action


def _known_values() -> Mapping[str, tuple[str, ...]]:
    """Returns the values that the flags of a destination can name."""
    from projector import frameworks
    from projector.hardware import catalogue
    from projector.workload import zoo
    from projector.workload.fields import fields

    return {
        "model": tuple(name for name in zoo.names() if not zoo.is_template(name)),
        "gpu": catalogue.gpu_names(),
        "cluster": catalogue.cluster_names(),
        "framework": tuple(frameworks.names()),
        **{f"field {field.key}": field.choices for field in fields() if field.choices and not field.many},
    }
