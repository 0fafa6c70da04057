"""Writes a text to its place as a whole: beside it first, then renamed."""

from __future__ import annotations

from pathlib import Path

from projector.errors import InputError, Problem
from projector.io import files


def write_whole(path: Path, text: str, where: str = "", expected: str = "a place to write to") -> None:
    """Writes ``path`` and the folders above it. Raises :class:`InputError` at ``where``, the flag that named it."""
    try:
        files.write_whole(path, text)
    except OSError as error:
        reason = error.strerror or "not writable"
        raise InputError([Problem(where or str(path), "", str(path) if where else reason, expected)]) from None
