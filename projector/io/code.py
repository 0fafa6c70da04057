"""Hashes the code as it runs: tells two versions apart where no revision does, and what an older one left behind."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

_PACKAGES = ("projector", "harness")
_KINDS = (".py", ".yaml", ".html", ".css", ".js")
_EVIDENCE = ("measured", "suites")  # what a wheel carries beside the code


def hash_of(files: Iterable[tuple[str, Path]]) -> str:
    """Returns one hash of names and contents, whatever their order."""
    digest = hashlib.sha256()
    for name, path in sorted(files):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def version_of(distribution: str) -> str:
    """Returns the version of an installed distribution, or that it is none."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


@cache
def code_hash() -> str:
    """Returns the hash of both packages on disk, catalogue included: the same in a checkout and in the wheel made of it."""
    return hash_of(_files(Path(__file__).resolve().parents[2]))


def changed() -> float:
    """Returns when a file of the code last changed on disk, in seconds since the epoch."""
    states = [path.stat() for _, path in _files(Path(__file__).resolve().parents[2])]
    return max(max(each.st_mtime, each.st_ctime) for each in states)  # a file that is moved here keeps its mtime


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        for folder, inside, names in os.walk(root / package):
            inside[:] = [name for name in inside if name not in (*_EVIDENCE, "__pycache__")]
            place = Path(folder)
            yield from ((f"{place.relative_to(root).as_posix()}/{n}", place / n) for n in names if n.endswith(_KINDS))
