"""Shared by several commands: flags, reading runs from any file, and showing reports."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.contracts.runs import MeasuredRun
from harness.evidence import shelf
from projector.cli import as_json
from projector.cli import parser as cli
from projector.cli.parser import Parser
from projector.errors import InputError, Problem

if TYPE_CHECKING:
    from harness.evidence.ingest.context import Context
    from harness.report.screen import Screen
    from harness.report.table import Report

__all__ = ["Flags", "Parser", "add_command", "add_loudness", "folder_problems", "fraction", "positive"]
__all__ += ["say", "say_screen"]

#: Rows of a table on a terminal; the rest is in the files and in the JSON document.
MOST_ROWS = 40


class Flags:
    """The flags of a parser, by the kind of value that they take."""

    def __init__(self, parser: Any) -> None:
        self.add = parser.add_argument

    def path(self, *names: str, metavar: str, help: str, **more: Any) -> None:
        self.add(*names, type=Path, metavar=metavar, help=help, **more)

    def many(self, name: str, metavar: str, help: str, **more: Any) -> None:
        """Adds a flag whose words make one list, however often it is given."""
        self.add(name, metavar=metavar, help=help, **{"nargs": "+", "action": "extend", "default": [], **more})

    def switch(self, name: str, help: str) -> None:
        self.add(name, action="store_true", help=help)

    def toggle(self, name: str, help: str, **more: Any) -> None:
        """Adds a flag that can be negated with ``--no-``."""
        self.add(name, action=argparse.BooleanOptionalAction, help=help, **{"default": True, **more})

    def jobs(self, help: str, **more: Any) -> None:
        self.add("--jobs", type=positive, metavar="N", help=help, **more)


def add_command(parser: Parser, command: Callable[[argparse.Namespace], int], *, examples: Sequence[str]) -> Flags:
    """Makes the namespace of ``parser`` carry the function to call; every command has ``--json``."""
    cli.add_command(parser, command, examples=examples)
    cli.add_json(parser)
    return Flags(parser)


def say(
    args: argparse.Namespace,
    report: Report,
    *,
    written: str = "",
    out: Path | None = None,
    most: int | None = MOST_ROWS,
    further: Mapping[str, object] | None = None,
) -> None:
    """Shows ``report`` on stdout: its tables (the first ``most`` rows of each), or with ``--json`` one document with all
    rows, ``further`` values and where files were ``written``; with ``out`` also writes it there, as Markdown."""
    from harness.report import markdown, terminal
    from projector.io.files import write_whole

    if out is not None:
        write_whole(out, markdown.render(report))
        written = ", ".join(filter(None, (written, str(out))))
    if args.json:
        as_json.write({**terminal.document(report, str(args.argv[0])), **(further or {}), "written": written or None})
        return
    terminal.show(report, most=most)
    if written:
        print(f"\nwritten to {written}")


def add_measured(flags: Flags, runs: str = "files of measured runs") -> None:
    """Adds the flags that say where measured runs lie, for :func:`measured_runs`."""
    flags.many("--runs", "FILE", runs, type=Path, default=None)
    add_measured_folder(flags, "folder of measured runs, where --runs is not given")


def add_measured_folder(flags: Flags, what: str = "folder of measured runs") -> None:
    """Adds the flag of the folder alone, for commands that read every run of it."""
    default, text = shelf.folder("measured/runs"), f"{what} (default: measured/runs)"
    flags.path("--measured", metavar="FOLDER", help=text, default=default)


def measured_runs(args: argparse.Namespace) -> list[MeasuredRun]:
    """Returns the runs of ``--runs``, else of ``--measured``. Raises :class:`InputError` where there are none."""
    from harness.evidence.runs_of import runs_of_all

    paths = args.runs or sorted(args.measured.glob("*.yaml"))
    if not paths:
        raise InputError([Problem(str(args.measured), "", "no *.yaml", "a folder of measured runs, or --runs FILE")])
    return runs_of_all(paths)


def add_said(flags: Flags, *names: str) -> None:
    """Adds flags that state facts which a log lacks, for :func:`said_of`; ``names``: further ones of ``--recipe``."""
    text = "YAML of recipe, model and gpu, or any configuration file, for logs without arguments"
    flags.path(*names, "--recipe", metavar="FILE", help=text, dest="recipe")
    flags.add("--gpu", metavar="NAME", help="the GPU of the logs, where they do not name it")
    flags.add("--gpus", type=positive, metavar="N", help="the number of GPUs, where the logs do not say it")
    flags.add("--framework", metavar="NAME", help="the framework of the logs, where their lines may be of several")


def said_of(args: argparse.Namespace) -> Context:
    """Returns the context that the flags of :func:`add_said` state. Raises :class:`InputError` with every mistake."""
    from harness.evidence.ingest.context import read_context

    return read_context(args.recipe, args.gpu, args.gpus, args.framework)


def tables(paths: Sequence[Path]) -> list[Path]:
    """Returns these files, and for each folder the tables in it."""
    return [file for path in paths for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]


def add_loudness(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say how much of an evaluation is shown."""
    flags = Flags(parser.add_mutually_exclusive_group())
    flags.switch("--verbose", "show every table instead of one screen (files hold them either way)")
    flags.switch("--quiet", "show the gate only, a line a check")


def say_screen(args: argparse.Namespace, shown: Screen, *, further: Mapping[str, object] | None = None) -> None:
    """Shows one screen; with ``--quiet`` the gate, with ``--verbose`` or ``--json`` everything (see :func:`say`)."""
    from harness.report import screen
    from projector.io import terminal

    if args.json or args.verbose:
        say(args, shown.report, written=str(shown.folder or ""), further=further)
    else:
        terminal.show(screen.gate(shown) if args.quiet else screen.blocks(shown))


def folder_problems(out: Path | None) -> list[Problem]:
    """Returns a problem where ``--out`` should be a folder and is a file."""
    if out is None or not out.exists() or out.is_dir():
        return []
    return [Problem("command line", "--out", str(out), "a folder, or a path that does not exist")]


def positive(text: str) -> int:
    """Reads a whole number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least 1")
    return int(text)


def fraction(text: str) -> float:
    """Reads a number from 0 to 10, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a fraction, such as 0.05 for five points")
    return value
