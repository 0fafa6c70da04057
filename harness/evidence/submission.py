"""Packs measured results of a folder (runs, logs, kernel tables, machine files) into one anonymous file.

The file is a zip of text with a list of what is in it; reading it runs nothing. What names a person or a place is
replaced before anything is packed: absolute paths outside the system's folders keep their last part; hosts, users, mail
addresses and network addresses become words. Runs are read from the packed text, so a receiver reads what was
read here.
"""

from __future__ import annotations

import io
import json
import re
import socket
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from projector import __version__, frameworks
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.catalogue import find_gpu
from projector.io.files import write_whole, writing
from projector.workload import zoo

_LIST = "submission.json"
_SCHEMA = 1
_TEXT = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv", ".log", ".txt", ".out", ".md")
_MOST_BYTES, _MOST_FILES = 256 * 2**20, 10_000
_DATE = (1980, 1, 1, 0, 0, 0)  # equal folders make equal files

_HOST_KEYS = r"host_?name|node_?name|node_?list|slurmd_nodename|slurm_job_nodelist|master_addr(?:ess)?|machine_name"
_HOST = re.compile(rf"(?i)\b(?:{_HOST_KEYS})[\"']?\s*[:=]\s*[\"']?([A-Za-z][\w.-]{{2,}})")
_WANDB_HOST = re.compile(r"\"host\"\s*:\s*\"([A-Za-z][\w.-]{2,})\"")
_HOME = re.compile(r"/(?:home|Users)/([A-Za-z][\w.-]{2,})")
_NOT_NAMES = frozenset({"localhost", "x86", "grace", "none", "null", "true", "false"})
_SYSTEM = "usr|opt|lib|lib64|etc|proc|dev|sys|bin|sbin"
_PATTERNS = (
    ("mail address", re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), "<mail>"),
    ("path", re.compile(rf"(?<![\w:/.<>-])/(?!(?:{_SYSTEM})/)(?:[\w.+@~-]+/)+([\w.+@~-]*)"), r"<path>/\1"),
    ("path", re.compile(r"\b[A-Za-z]:\\(?:[\w. +~-]+\\)+([\w.+~-]*)"), r"<path>/\1"),
    (
        "network address",
        re.compile(
            r"\b(?:10(?:\.\d{1,3}){3}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2}|192\.168(?:\.\d{1,3}){2})\b(?!\.\d)"
            r"|\b\d{1,3}(?:\.\d{1,3}){3}(?=:\d{2,5}\b)"
        ),
        "<address>",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What was packed. ``runs``: files with measured runs, and how many each holds; ``files``: all other packed files;
    ``stripped``: how many replacements of each kind were made; ``left``: files that stay behind, with the reason."""

    runs: dict[str, int]
    files: tuple[str, ...]
    stripped: dict[str, int]
    left: tuple[str, ...]


def pack(folder: Path, out: Path) -> Packed:
    """Writes what was measured in ``folder`` to ``out``. Raises :class:`InputError` where there is no such folder, or
    nothing in it is text of a result."""
    if not folder.is_dir():
        raise InputError([Problem(str(folder), "", "no folder", "a folder of results")])
    texts, left = _texts(folder, out)
    if not texts:
        expected = f"a file that ends in {', '.join(_TEXT)}"
        raise InputError([Problem(str(folder), "", "; ".join(left) or "an empty folder", expected)])
    clean, stripped = _anonymised(texts)
    with tempfile.TemporaryDirectory() as scratch:
        runs = dict(_runs(clean, Path(scratch)))
    files = tuple(name for name in clean if name not in runs)
    content = {"submission": _SCHEMA, "version": __version__, "runs": runs, "files": files, "stripped": stripped}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in {_LIST: json.dumps(content, indent=1), **clean}.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), text, zipfile.ZIP_DEFLATED)
    with writing(out):
        write_whole(out, buffer.getvalue())
    return Packed(runs=runs, files=files, stripped=stripped, left=tuple(left))


def is_submission(path: Path) -> bool:
    return path.name.endswith(".zip") and zipfile.is_zipfile(path)


def unpack(path: Path, into: Path) -> tuple[list[Path], list[Path]]:
    """Writes a submission's files below ``into``; returns those of runs and the others. Raises :class:`InputError` for a
    zip that is no submission: without a list, with names that lead elsewhere, or too large."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            if len(sizes) > _MOST_FILES or sum(sizes.values()) > _MOST_BYTES:
                raise ValueError(f"{len(sizes)} files of {sum(sizes.values()) / 2**20:.0f} MiB")
            content = json.loads(archive.read(_LIST))
            if content["submission"] != _SCHEMA:
                raise ValueError(f"schema {content['submission']}")
            written: tuple[list[Path], list[Path]] = ([], [])
            for kind, names in zip(written, (list(content["runs"]), list(content["files"])), strict=True):
                for name in names:
                    kind.append(target := into / _safe_path(name))
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(archive.read(name).decode("utf-8"), encoding="utf-8")
            return written
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, RuntimeError) as error:
        expected = "what `harness submit` writes"
        raise InputError([Problem(str(path), "", f"{type(error).__name__}: {error}", expected)]) from None


def place(files: Mapping[Path, Path], out: Path) -> None:
    """Copies ``files`` (name in the submission: path) into the folder ``out`` under their names."""
    for name, path in files.items():
        with writing(out / name):
            write_whole(out / name, path.read_bytes())


def _safe_path(name: object) -> PurePosixPath:
    """Returns ``name`` as a path; raises :class:`ValueError` where it leads out of a folder."""
    path = PurePosixPath(str(name))
    if path.is_absolute() or ".." in path.parts or "\\" in str(name) or not path.parts:
        raise ValueError(f"a file named {name!r}")
    return path


def _texts(folder: Path, out: Path) -> tuple[dict[str, str], list[str]]:
    """Reads the text files below ``folder`` by relative name; also returns the files that stay behind, with the reason."""
    from harness.evidence.ingest.tables import read_text

    texts: dict[str, str] = {}
    left: list[str] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.resolve() == out.resolve() or path.is_dir() or any(part.startswith(".") for part in Path(name).parts):
            continue
        plain = name.removesuffix(".gz")
        if path.is_symlink() or not plain.endswith(_TEXT):
            left.append(f"{name} ({'a link' if path.is_symlink() else 'no text of a result'})")
            continue
        try:
            texts[plain] = read_text(path)
        except InputError as error:
            left.append(f"{name} ({error.problems[0].found})")
    return texts, left


def _anonymised(texts: dict[str, str]) -> tuple[dict[str, str], dict[str, int]]:
    """Removes what names a person or a place from texts and their names; counts the replacements by kind."""
    hosts = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    users: set[str] = set()
    for text in texts.values():
        hosts |= {*_HOST.findall(text), *_WANDB_HOST.findall(text)}
        users |= set(_HOME.findall(text))
    words = [(kind, name, word) for kind, names, word in (("host", hosts, "<host>"), ("user", users, "<user>"))
             for name in sorted(names, key=len, reverse=True) if not _means_something(name)]  # fmt: skip
    replacements: Counter[str] = Counter()

    def clean(text: str) -> str:
        for kind, pattern, instead in _PATTERNS:
            text, number = pattern.subn(instead, text)
            replacements[kind] += number
        for kind, name, instead in words:
            text, number = re.subn(rf"(?<![\w-]){re.escape(name)}(?![\w-])", instead, text)
            replacements[kind] += number
        return text

    anonymous = {clean(name).replace("<", "").replace(">", ""): clean(text) for name, text in texts.items()}
    return anonymous, {kind: number for kind, number in replacements.items() if number}


def _means_something(name: str) -> bool:
    """Says whether ``name`` is also a word of results (a GPU, a model), whose replacement would change what they say."""
    return (
        len(name) < 3 or name.lower() in _NOT_NAMES or bool(find_gpu(name) or zoo.find(name) or frameworks.find(name))
    )


def _runs(texts: dict[str, str], folder: Path) -> Iterator[tuple[str, int]]:
    """Yields the packed files from which measured runs can be read, and how many runs each holds."""
    from harness.evidence.ingest.command import ingest

    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        try:
            ingested = ingest([path])
        except InputError:
            continue
        if ingested.usable or ingested.logs:  # a table of kernels has rows, and none of a run
            yield name, len(ingested.runs)
