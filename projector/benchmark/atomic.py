"""A text in its place as a whole: written beside it, then renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from projector.errors import InputError, Problem

__all__ = ["write_whole"]


def write_whole(path: Path, text: str, where: str = "", expected: str = "a place to write to") -> None:
    """Writes ``path`` and the folders above it. Raises :class:`InputError` (``where``: the flag that named the place)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = error.strerror or "not writable"
        raise InputError([Problem(where or str(path), "", str(path) if where else reason, expected)]) from None
