"""``--completion bash|zsh``: a script that completes commands, flags and the names of the catalogue."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SHELLS = ("bash", "zsh")
_FILES = ("FILE", "PATH", "RUN", "RESULTS", "SUITE", "SPEC", "TABLE.csv")
_FOLDERS = ("DIR", "FOLDER")


class Completion(argparse.Action):
    """Prints the script for a shell and ends the program. Made by shtab, which nothing else here imports."""

    HELP = 'print a script for a shell, bash or zsh: eval "$(%(prog)s --completion bash)"'

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, choices=SHELLS, metavar="SHELL", **settings)

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, __: str | None = None) -> None:
        import shtab

        names = _names()
        for action in _actions(parser):
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
    """The flags and arguments of a parser itself, in order.

    argparse has no public list of them. Its private one is the same from Python 3.11 to 3.14, and shtab reads it as well;
    it is read here and nowhere else.
    """
    return parser._actions


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every flag and argument of a parser and of its commands."""
    for action in arguments(parser):
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
        else:
            yield action


def _names() -> Mapping[str, tuple[str, ...]]:
    """What flags of these destinations name."""
    from projector import frameworks
    from projector.hardware import catalogue
    from projector.workload import zoo
    from projector.workload.fields import fields

    gpus, models = catalogue.gpu_names(), tuple(name for name in zoo.names() if not zoo.is_template(name))
    words = {f"field {field.key}": field.choices for field in fields() if field.choices and not field.many}
    return {
        "model": models,
        "gpu": gpus,
        "cluster": catalogue.cluster_names(),
        "framework": tuple(frameworks.names()),
        **words,
    }
