"""The two command lines as their parsers know them: every command, and a table of its arguments."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping

from docsite.blocks import table
from projector.cli.parser import arguments

__all__ = ["command_tables", "commands", "plain"]


def commands() -> Mapping[str, argparse.ArgumentParser]:
    """Parsers by command line, such as ``python -m harness run``."""
    import harness.cli
    import projector.cli

    found: dict[str, argparse.ArgumentParser] = {}
    for program, parser in (("projector", projector.cli._parser()), ("harness", harness.cli._parser())):
        found[f"python -m {program}"] = parser
        for action in arguments(parser):
            if isinstance(action, argparse._SubParsersAction):
                found |= {f"python -m {program} {name}": sub for name, sub in action.choices.items()}
    return found


def command_tables() -> str:
    """Every command with its arguments, a heading each."""
    parts = []
    for line, parser in commands().items():
        if len(line.split()) < 4:
            continue
        rows = [list(row) for row in _arguments(parser)]
        about = (parser.description or "").strip()
        about = about[:1].upper() + about[1:]
        body = table(["argument", "meaning"], rows) if rows else "It takes no arguments."
        parts.append(f"### `{line}`\n\n{about.rstrip('.')}.\n\n{body}")
    return "\n\n".join(parts)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in arguments(parser):
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        if action.help == argparse.SUPPRESS:  # the flags of further recipe fields: the page of the recipe has them
            continue
        names = ", ".join(action.option_strings) or _metavar(action)
        value = "" if action.nargs == 0 or not action.option_strings else " " + _metavar(action)
        yield f"`{names}{value}`".replace("|", " or "), plain((action.help or "").replace("%%", "%")) or "–"


def _metavar(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return ""
    if action.metavar:
        return str(action.metavar)
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def plain(text: str) -> str:
    """Text on one line that a cell of a table can hold."""
    return re.sub(r"\s+", " ", text).replace("|", r"\|").replace("<", "&lt;")
