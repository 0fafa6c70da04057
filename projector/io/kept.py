"""Values on disk that the same code made of the same content before: reading a file or fitting a table once, not daily.

They lie in ``projector`` of the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``), or in ``$PROJECTOR_CACHE``;
``PROJECTOR_CACHE=off`` keeps nothing. A value is named by its content, by the hash of all code and by the versions of what
computes beside it, so it is never stale; where code changed on disk after this process began, what runs is not what lies
there, and nothing is kept. It is written whole or not at all, and carries its own hash: a torn or damaged one is made
again. Only files of the user's own are read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import sys
import time
from contextlib import suppress
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from projector.io.code import changed, code_hash
from projector.io.files import write_whole

_VERSIONS = 4  # of the code, whose values are left for whoever goes back to them
_MOST_BYTES = 256 << 20  # of one of them
_SEAL = 32  # bytes of the hash before each value
_BEGAN = time.time() - time.process_time() - 1.0  # of this process, or earlier
_LOOK = 1.0  # seconds between two looks at the files of the code
_LIBRARIES = ("numpy", "scipy", "matplotlib", "pillow")  # whose figures and pictures values may hold


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
    if folder is None or not _as_it_was(int(time.monotonic() / _LOOK)):
        return
    with suppress(OSError, pickle.PicklingError):
        data = pickle.dumps(value, protocol=5)
        fresh = not folder.is_dir()
        seal = hashlib.sha256(data).digest()
        write_whole(_file(folder, kind, content), seal + data)
        if fresh:
            _forget(folder)
        elif not seal[0]:  # one in 256
            _thin(folder)


def switch_off() -> None:
    """For this process and those that it starts."""
    os.environ["PROJECTOR_CACHE"] = "off"
    _folder.cache_clear()


@lru_cache(maxsize=1)
def _as_it_was(_moment: int) -> bool:
    """Whether what is on disk is what this process began with; for one moment the answer is given again."""
    with suppress(OSError):
        return changed() < _BEGAN
    return False


def _file(folder: Path, kind: str, content: str) -> Path:
    return folder / f"{kind}-{hashlib.sha256(content.encode('utf-8', errors='replace')).hexdigest()}"


@cache
def _folder() -> Path | None:
    stated = os.environ.get("PROJECTOR_CACHE", "")
    if stated.lower() in ("off", "0", "no"):
        return None
    try:
        base = Path(stated or Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "projector")
    except RuntimeError:  # a user without a home
        return None
    if not _as_it_was(-1):
        return None
    beside = hashlib.sha256(" ".join(map(_version, _LIBRARIES)).encode()).hexdigest()
    return base / f"{code_hash()[:24]}-{sys.implementation.cache_tag}-{beside[:8]}"


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "none"


def _forget(folder: Path) -> None:
    """Values of all but the last few versions of the code."""
    with suppress(OSError):
        others = sorted((p for p in folder.parent.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
        for old in others[:-_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)


def _thin(folder: Path) -> None:
    """The older half of the values of one version, where they are too large together."""
    with suppress(OSError):
        files = sorted((p.stat().st_mtime, p.stat().st_size, p) for p in folder.iterdir())
        if sum(size for _, size, _ in files) > _MOST_BYTES:
            for _, _, old in files[: len(files) // 2]:
                old.unlink(missing_ok=True)
