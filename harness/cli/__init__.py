"""The command line of the harness: one file a command; argparse, because it starts ten times faster than typer."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from harness.cli import calibrate, collectives, compare, figures, ingest, kernels, measure, report, run
from projector.errors import InputError, Problem

__all__ = ["main"]

_WRITABLE = "a path that can be read or written"

COMMANDS = (run, ingest, measure, calibrate, kernels, collectives, report, compare, figures)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Exit code 0: all is well, 1: a gate failed, 2: the input is wrong (every mistake on stderr)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        parsed = _parser().parse_args(arguments)
        parsed.argv = arguments
        code = int(parsed.command(parsed))
        sys.stdout.flush()
        return code
    except InputError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, a pager) closed first: that is no failure of ours, and Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(Problem(str(error.filename or "output"), "", error.strerror or str(error), _WRITABLE), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="harness", description="Scores projections of LLM training against measured runs.", allow_abbrev=False
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.register(commands)
    return parser
