"""Values that the same code made of the same content before are read from disk instead of being made again.

They lie in ``projector`` of the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``), or in
``$PROJECTOR_CACHE``; ``PROJECTOR_CACHE=off`` keeps nothing. A value is named by its content, by the hash of all code and
by the versions of the libraries that compute it, so it is never stale; where code changed on disk after this process
began, the running code is not that on disk, and nothing is kept. A value is written whole or not at all, and carries its
own hash: a torn or damaged one is made again.

A value is text of a declared type (:mod:`projector.io.packed`): it can be wrong, but it cannot run anything. Only a
folder that nobody but the user can enter (mode 0700) and only the user's own regular files in it are used; links are
refused. A system without users (Windows) keeps nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from projector.dataclass import dataclass
from projector.io.code import changed, code_hash, version_of
from projector.io.packed import pack, unpack

T = TypeVar("T")
_VERSIONS = 4  # versions of the code whose values stay, for a user who goes back to one
_MOST_BYTES = 256 << 20  # of the values of one version
_SEAL = 32  # bytes of the hash before each value
_BEGAN = time.time() - time.process_time() - 1.0  # start of this process, or earlier
_LOOK = 10.0  # seconds between two checks of the files of the code: one takes as long as a projection
_LIBRARIES = ("numpy", "scipy", "matplotlib", "pillow")  # whose figures and pictures values may hold
_VERSION = re.compile(r"[0-9a-f]{24}-[a-z]+-[0-9]+-[0-9a-f]{8}")  # the name of a folder of one version
_PRIVATE = 0o700
_OTHERS = 0o077


@dataclass(frozen=True)
class CachedValues(Generic[T]):
    """Values of one kind: ``name`` begins the names of their files, ``holds`` is their type."""

    name: str
    holds: type[T]

    def recall(self, content: str) -> T | None:
        """Returns the value that :meth:`keep` got for this content by this code; None where there is none of its type."""
        folder = _folder()
        if folder is None:
            return None
        try:
            with _opened(folder) as at:
                data = _read(at, self._file(content))
            if hashlib.sha256(data[_SEAL:]).digest() != data[:_SEAL]:
                return None
            return unpack(data[_SEAL:], self.holds)
        except (OSError, ValueError):  # a value that cannot be read is made again
            return None

    def keep(self, content: str, value: T) -> None:
        """Remembers ``value`` for the next process. Where it is not of the shelf's type, or the disk cannot be written,
        nothing is remembered, and nothing but time is lost."""
        folder = _folder()
        if folder is None or not _code_unchanged(int(time.monotonic() / _LOOK)):
            return
        with suppress(OSError, TypeError):
            data = pack(value, self.holds)
            seal = hashlib.sha256(data).digest()
            fresh = not folder.is_dir()
            folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
            with _opened(folder) as at:
                _write(at, self._file(content), seal + data)
            if fresh:
                # Removes the values of all but the last few versions of the code, and no folder beside them that
                # somebody else made.
                with suppress(OSError):
                    versions = [p for p in folder.parent.iterdir() if _VERSION.fullmatch(p.name) and p.is_dir()]
                    others = sorted(versions, key=lambda p: p.stat().st_mtime)
                    for old in others[:-_VERSIONS]:
                        shutil.rmtree(old, ignore_errors=True)
            elif not seal[0]:  # one in 256
                _thin(folder)

    def _file(self, content: str) -> str:
        return f"{self.name}-{hashlib.sha256(content.encode('utf-8', errors='replace')).hexdigest()}"


def switch_off() -> None:
    """Switches the values off for this process and those that it starts."""
    os.environ["PROJECTOR_CACHE"] = "off"
    _folder.cache_clear()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Yields a handle of ``folder``, so that nobody can put another one in its place meanwhile. Raises :class:`OSError`
    where it is a link, somebody else's, or open to others."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if (status := os.fstat(handle)).st_uid != os.getuid() or status.st_mode & _OTHERS:
            raise PermissionError("a folder that others can enter")
        yield handle
    finally:
        os.close(handle)


def _read(folder: int, name: str) -> bytes:
    """Returns the content of a regular file of the user's own; raises :class:`OSError` for anything else."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_size > _MOST_BYTES:
            raise PermissionError("no file of the user's own")
        return file.read()


def _write(folder: int, name: str, data: bytes) -> None:
    """Writes whole or not at all: a new file, in the place of what stood there (a link itself, not its target)."""
    new = f".{name[:20]}.{secrets.token_hex(8)}"
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        with open(handle, "wb") as stream:
            stream.write(data)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(new, dir_fd=folder)
        raise


@lru_cache(maxsize=1)
def _code_unchanged(_moment: int) -> bool:
    """Tells whether the code on disk is that with which this process began; the answer is kept for one moment."""
    with suppress(OSError):
        return changed() < _BEGAN
    return False


@cache
def _folder() -> Path | None:
    stated = os.environ.get("PROJECTOR_CACHE", "")
    if stated.lower() in ("off", "0", "no") or not hasattr(os, "getuid"):
        return None
    try:
        base = Path(stated or Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "projector")
    except RuntimeError:  # a user without a home
        return None
    if not _code_unchanged(-1):
        return None
    beside = hashlib.sha256(" ".join(map(version_of, _LIBRARIES)).encode()).hexdigest()
    return base / f"{code_hash()[:24]}-{sys.implementation.cache_tag}-{beside[:8]}"


def _thin(folder: Path) -> None:
    """Removes the older half of the values of one version, where they are too large together."""
    with suppress(OSError):
        files = sorted((p.stat().st_mtime, p.stat().st_size, p) for p in folder.iterdir())
        if sum(size for _, size, _ in files) > _MOST_BYTES:
            for _, _, old in files[: len(files) // 2]:
                old.unlink(missing_ok=True)
