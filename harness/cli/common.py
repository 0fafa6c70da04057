"""Shared by several commands: flags, reading runs from any file, and showing reports."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contracts.runs import MeasuredRun
from harness.evidence import shelf
from projector.cli import as_json, flags
from projector.cli.parser import Parser
from projector.errors import InputError, Problem

if TYPE_CHECKING:
    from harness.evidence.ingest.context import Context
    from harness.report.screen import Screen
    from harness.report.table import Report

#: Rows of a table on a terminal; the rest is in the files and in the JSON document.
MOST_ROWS = 40


def add_command(
    parser: Parser, command: Callable[[argparse.Namespace], int], known: flags.Rows = flags.NOTHING
) -> None:
    """Adds the flags of the command of ``parser``, ``--json`` first (see :func:`projector.cli.flags.add_command`)."""
    parser.add_argument("--json", action="store_true", help=flags.JSON)
    flags.add_command(parser, command, {"--measured": {"default": shelf.folder("measured/runs")}, **known})


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


def measured_runs(args: argparse.Namespace) -> list[MeasuredRun]:
    """Returns the runs of ``--runs``, else of ``--measured``. Raises :class:`InputError` where there are none."""
    from harness.evidence.runs_of import runs_of_all

    return runs_of_all(args.runs or tables_in(args.measured, ", or --runs FILE"))


def tables_in(folder: Path, instead: str = "") -> list[Path]:
    """Returns the tables of runs of a folder. Raises :class:`InputError` where there are none; ``instead``: what else is
    expected."""
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise InputError([Problem(str(folder), "", "no *.yaml", f"a folder of measured runs{instead}")])
    return paths


def said_of(args: argparse.Namespace) -> Context:
    """Returns the context that the flags ``+said`` state. Raises :class:`InputError` with every mistake."""
    from harness.evidence.ingest.context import read_context

    return read_context(args.recipe, args.gpu, args.gpus, args.framework)


def tables(paths: Sequence[Path]) -> list[Path]:
    """Returns these files, and for each folder the tables in it."""
    return [file for path in paths for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]


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
