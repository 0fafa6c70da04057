"""Values on disk that the same code made of the same content before: reading a file or fitting a table once, not daily.

They lie in ``projector`` of the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``), or in ``$PROJECTOR_CACHE``;
``PROJECTOR_CACHE=off`` keeps nothing. A value is named by its content and by the hash of all code, so it is never stale.
It is written whole or not at all, and carries its own hash: a torn or damaged one is made again. Only files of the user's
own are read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from projector.io.code import code_hash
from projector.io.files import write_whole

__all__ = ["keep", "recall"]

_VERSIONS = 4  # of the code, whose values are left for whoever goes back to them
_SEAL = 32  # bytes of the hash before each value


def recall(kind: str, content: str) -> Any:
    """What :func:`keep` was given for this content, by this code; None where there is nothing."""
    folder = _folder()
    if folder is None:
        return None
    try:
        file = _file(folder, kind, content)
        if hasattr(os, "getuid") and file.stat().st_uid != os.getuid():
            return None
        data = file.read_bytes()
        if hashlib.sha256(data[_SEAL:]).digest() != data[:_SEAL]:
            return None
        return pickle.loads(data[_SEAL:])
    except Exception:  # whatever is wrong with it, it can be made again
        return None


def keep(kind: str, content: str, value: object) -> None:
    """Remembers ``value`` for the next process. A disk that is full or not writable costs nothing but the time saved."""
    folder = _folder()
    if folder is None:
        return
    with suppress(OSError, pickle.PicklingError):
        data = pickle.dumps(value, protocol=5)
        fresh = not folder.is_dir()
        write_whole(_file(folder, kind, content), hashlib.sha256(data).digest() + data)
        if fresh:
            _forget(folder)


def _file(folder: Path, kind: str, content: str) -> Path:
    return folder / f"{kind}-{hashlib.sha256(content.encode('utf-8', errors='replace')).hexdigest()}"


@cache
def _folder() -> Path | None:
    stated = os.environ.get("PROJECTOR_CACHE", "")
    if stated.lower() in ("off", "0", "no"):
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "projector"
    python = f"{sys.implementation.cache_tag}"
    return (Path(stated) if stated else base) / f"{code_hash()[:24]}-{python}"


def _forget(folder: Path) -> None:
    """Values of all but the last few versions of the code."""
    with suppress(OSError):
        others = sorted((p for p in folder.parent.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
        for old in others[:-_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)
