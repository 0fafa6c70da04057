"""Reads and writes the files that users bring: reading never hangs and is bounded; writing is whole or not at all.

Every reader raises :class:`InputError` with the file, the place in it, what was found and what was expected.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from projector.errors import NO_FILE, InputError, Problem
from projector.io.documents import parse_yaml

MOST_BYTES = 64 << 20
"""The largest configuration that is read; logs and tables are streamed by their own readers."""

_FIGURES = (".png", ".svg", ".pdf")
_MODE = 0o644  # a temporary file is its owner's alone, a result is for all to read
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def read_text(path: str | Path, expected: str = "a readable text file") -> str:
    """Returns the text of a regular file: UTF-8 with other bytes replaced, or the UTF-16 that its byte order mark
    announces.

    ``expected``: what the file should have been.
    """
    data = read_bytes(path, expected)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: str | Path, expected: str = "a readable file") -> bytes:
    """Returns the bytes of a regular file of at most :data:`MOST_BYTES`; never waits for a pipe or a device."""
    where = str(path)
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            found = kind_of_file(os.fstat(handle).st_mode)
            if found:
                raise InputError([Problem(where, "", found, f"{expected}: a regular file")])
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        known: dict[type[Exception], str] = {FileNotFoundError: NO_FILE, IsADirectoryError: "a folder"}
        known[PermissionError] = "no permission to read"
        reason = known.get(type(error)) or getattr(error, "strerror", None) or str(error)
        raise InputError([Problem(where, "", reason, expected)]) from None
    if len(data) > MOST_BYTES:
        raise InputError([Problem(where, "", "a larger file", f"{expected} of at most {MOST_BYTES >> 20} MiB")])
    return data


def resolved(path: Path) -> Path:
    """Returns ``path`` without links and dots, or as it stands where the system refuses to look (a null byte, a loop
    of links)."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path


def kind_of_file(mode: int) -> str:
    """Returns what a file of ``st_mode`` is, in words; an empty text for a regular one."""
    if stat.S_ISREG(mode):
        return ""
    return next((word for test, word in _KINDS if test(mode)), "a device")


def read_yaml(path: str | Path, expected: str = "a readable YAML file") -> Any:
    """Returns the document of a YAML or JSON file."""
    return parse_yaml(read_text(path, expected), str(path))


def listed_in(path: Path, key: str) -> tuple[str, ...]:
    """Returns the texts listed at ``key`` of a YAML file; a list in brackets is read without parsing the whole file."""
    text = read_text(path)
    brackets = re.search(rf"^{key}:\s*(\[[^\]]*\])", text, re.MULTILINE)
    texts = parse_yaml(brackets[1], str(path)) if brackets else read_yaml(path).get(key, ())
    return tuple(map(str, texts))


def write_whole(path: str | Path, content: bytes | str) -> None:
    """Writes a file whole or not at all: what stood there stays until the new one is complete, nothing is left behind.

    The folders above are made. A link is followed; a device or a pipe is written to as it stands. Raises :class:`OSError`
    that names ``path``.
    """
    file = Path(os.path.realpath(path))
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        mode = file.stat().st_mode if file.exists() else stat.S_IFREG | _MODE
        if stat.S_ISREG(mode):
            _replace(file, data, stat.S_IMODE(mode))
        else:
            with file.open("wb") as stream:
                stream.write(data)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # not the temporary name, which says nothing to who reads it
        raise


def folder(path: str | Path, flag: str) -> Path:
    """Returns the folder at ``path``, made where there is none. Raises :class:`InputError` that blames ``flag``."""
    with writing(path, flag, "a folder"):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def write_figure(path: str | Path, figure: Any) -> None:
    """Writes a Matplotlib figure as PNG, SVG or PDF, by the ending of ``path``; whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix[1:].lower(), dpi=150)
    write_whole(path, buffer.getvalue())


def figure_problems(path: Path) -> list[Problem]:
    """Returns why no picture can be written to ``path``: an ending that is of no format, a folder that is missing."""
    problems = []
    if path.suffix.lower() not in _FIGURES:
        problems.append(Problem(str(path), "", path.suffix or "no ending", f"one of {', '.join(_FIGURES)}"))
    if not path.parent.is_dir():
        problems.append(Problem(str(path), "", str(path.parent), "an existing folder"))
    return problems


def save_figure(path: Path, figure: Any) -> Path:
    """Writes a figure as :func:`write_figure`. Raises :class:`InputError` where the file cannot be written."""
    with writing(path):
        write_figure(path, figure)
    return path


@contextmanager
def writing(path: str | Path, flag: str = "", expected: str = "a file that can be written") -> Iterator[None]:
    """Raises :class:`InputError` for the :class:`OSError` of a file that cannot be written; it blames ``flag``, where one
    named the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        found, expected = (str(path), f"{expected} ({reason})") if flag else (reason, expected)
        raise InputError([Problem(flag or str(path), "", found, expected)]) from None


def _replace(file: Path, data: bytes, mode: int) -> None:
    import tempfile

    handle, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:40]}.")
    try:
        with open(handle, "wb") as stream:
            stream.write(data)
        os.chmod(new, mode)
        os.replace(new, file)
    except BaseException:
        os.unlink(new)
        raise


# Data beside the code: near the working directory first, then in the checkout, then in the installed package.
_ROOT = Path(__file__).resolve().parents[2]


def nearest_folder(name: str, packaged: Path, start: Path | None = None) -> Path | None:
    """Returns the folder ``name`` (``measured/kernels``) at or above ``start`` (default: the working directory), else
    in the checkout, else ``packaged``, where an installed package has it; None where there is none of them."""
    here = (start or Path.cwd()).resolve()
    places = [*(folder / name for folder in (here, *here.parents, _ROOT)), packaged]
    return next((place for place in places if place.is_dir()), None)
