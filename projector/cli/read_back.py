"""Reads a text as our readers take a file that holds it, and compares what it projects to with what was meant."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from projector.errors import InputError, Unsupported

if TYPE_CHECKING:
    from projector.projection import Projection
    from projector.workload.workload import Workload

_EXACT = 1e-9  # relative difference of two projections of one run


def words_of(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Returns the flags ``names`` with their values as a command line says them, less those that ``options`` leave out."""
    words = []
    for name in names:
        if value := getattr(options, name):
            values = value if isinstance(value, list) else [str(value)]
            words += [f"--{name.replace('_', '-')}", *values]
    return words


def read_back(text: str, name: str, flags: Sequence[str], beside: Path | None = None) -> Workload:
    """Returns the workload of ``text`` in a file ``name`` among the files of the folder ``beside``, read with ``flags``.
    Raises :class:`Unsupported` with all that is wrong."""
    from tempfile import TemporaryDirectory

    from projector.cli.inputs import read_case
    from projector.cli.options import selection
    from projector.cli.parser import parse

    with TemporaryDirectory() as folder:
        for neighbour in beside.resolve().iterdir() if beside else ():
            if neighbour.name != name:
                (Path(folder) / neighbour.name).symlink_to(neighbour)
        file = Path(folder) / name
        file.write_text(text, encoding="utf-8")
        try:
            return read_case(parse(selection(), ["--config", str(file), *flags])).workload
        except (InputError, Unsupported) as error:
            shown = f"{beside}/" if beside else ""
            raise Unsupported(str(error).replace(f"{folder}/", shown).replace("\n", "; ")) from None


def differing(wanted: Projection, again: Projection, part: str = "recipe") -> list[str]:
    """Returns the fields of the recipe (or of the ``model``) on which two settled runs differ."""
    ours, theirs = (getattr(made.resolved.workload, part) for made in (wanted, again))
    return [f.name for f in fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name)]


def alike(wanted: Projection, again: Projection) -> bool:
    """Returns whether two projections have the same step and the same memory."""
    pairs = ((wanted.step_seconds, again.step_seconds), (wanted.memory.allocated, again.memory.allocated))
    return all(abs(a - b) <= _EXACT * a for a, b in pairs)
