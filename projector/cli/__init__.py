"""The command line of the projector: one file a command; argparse, because it starts fast."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from projector import __version__
from projector.cli import benchmark, catalogues, memory, performance, probe, record, schedules, trace
from projector.cli.options import Parser, unknown
from projector.errors import InputError, NoMeasurement, Unsupported

__all__ = ["run"]

COMMANDS = (performance, memory, schedules, trace, record, probe, benchmark, catalogues)


def run(argv: Sequence[str]) -> int:
    """Runs one command. Exit code 0, or 2 when the input is wrong: every mistake on its own line of stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" for a dash, not a traceback
    try:
        parsed, rest = _parser().parse_known_args(list(argv))
        if rest:
            raise InputError(unknown(rest, parsed.options))
        parsed.command(parsed)
        sys.stdout.flush()
    except InputError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 2
    except Unsupported as error:
        print(f"unsupported: {error}", file=sys.stderr)
        return 2
    except NoMeasurement as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, a pager) closed first: that is no failure of ours, and Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="projector",
        description="Says how fast and how big a distributed LLM training run will be, before it is launched. "
        "No GPU is needed.",
        epilog="Exit code 0; 2 when the input is wrong, with every mistake on its own line.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"projector {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.register(commands)
    return parser
