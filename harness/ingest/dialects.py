"""Training-log dialects: each is one file; this registry asks them in order whether a text is theirs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from harness.ingest import megatron_log
from harness.ingest.report import Converted
from harness.ingest.tables import read_text
from projector.errors import InputError, Problem

__all__ = ["DIALECTS", "Dialect", "dialect_of", "read_log"]


class Dialect(Protocol):
    """What a dialect's file offers: its name, whether a text is its own, and the run of such a text."""

    NAME: str

    def detect(self, text: str) -> bool: ...

    def read(self, text: str, where: str, recipe: str | Path | None = None) -> Converted: ...


DIALECTS: tuple[Dialect, ...] = (megatron_log,)


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
