"""Training-log dialects: each is one file with ``detect`` and ``read``; this registry asks them in order."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.ingest import megatron_log
from harness.ingest.report import Converted
from harness.ingest.tables import read_text
from projector.errors import InputError, Problem

__all__ = ["DIALECTS", "dialect_of", "read_log"]

#: A dialect has ``NAME``, ``detect(text) -> bool`` and ``read(text, where, recipe) -> Converted``.
DIALECTS = (megatron_log,)


def dialect_of(text: str) -> str | None:
    """The name of the first dialect that recognises the text."""
    return next((dialect.NAME for dialect in DIALECTS if dialect.detect(text)), None)


def read_log(path: Path, recipe: str | Path | None = None) -> Converted:
    """The run of one training log (``-``: stdin; ``.gz`` accepted).

    Raises :class:`InputError` for a log that no dialect recognises, or without the arguments and ``recipe`` it needs.
    """
    text = sys.stdin.read() if str(path) == "-" else read_text(path)
    for dialect in DIALECTS:
        if dialect.detect(text):
            return dialect.read(text, str(path), recipe)
    known = ", ".join(dialect.NAME for dialect in DIALECTS)
    first = next((line for line in text.splitlines() if line.strip()), "an empty file")
    raise InputError([Problem(str(path), "", first[:60], f"iteration lines of a known log dialect ({known})")])
