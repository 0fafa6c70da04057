"""The code as it runs, as one hash: tells two versions apart where no revision does, and what an older one left behind."""

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
    """One hash of names and contents, whatever the order."""
    whole = hashlib.sha256()
    for name, path in sorted(files):
        whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


@cache
def code_hash() -> str:
    """Of both packages as they stand on disk, the catalogue included: the same in a checkout and in the wheel made of it."""
    return hash_of(_files(Path(__file__).resolve().parents[2]))


def changed() -> float:
    """When a file of the code last changed on disk, in seconds since the epoch."""
    found = [path.stat() for _, path in _files(Path(__file__).resolve().parents[2])]
    return max(max(each.st_mtime, each.st_ctime) for each in found)  # a file that is moved here keeps its mtime


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        for folder, inside, names in os.walk(root / package):
            inside[:] = [name for name in inside if name not in (*_EVIDENCE, "__pycache__")]
            place = Path(folder)
            yield from ((f"{place.relative_to(root).as_posix()}/{n}", place / n) for n in names if n.endswith(_KINDS))
