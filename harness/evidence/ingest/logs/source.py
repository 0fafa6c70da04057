"""Lines of a log, one after the other: plain, gzip, bzip2 or xz, or standard input; never the whole file in memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import math
import os
import re
import select
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from harness.evidence.ingest.logs.clock import stamp
from projector.errors import NO_FILE, InputError, Problem

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: A rank, as launchers of PyTorch print it. It stays before lines of printed JSON, which several ranks may print at once.
RANK = r"\[(?:default|rank|\w{1,40}\|)?[0-9]{1,7}\]: ?"
#: What launchers put before each line of a job: kubectl, ts, Python's logging, glog, quotation, docker compose, Slurm, MPI,
#: SageMaker, Ray, torchrun, torchx, accelerate, DeepSpeed over pdsh, syslog. OLMo's own stamp is its clock, and stays.
_LAUNCHED = re.compile(
    r"(?:\[?20[0-9]{2}[-/][0-9]{2}[-/][0-9]{2}[T ][0-9:]{8}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?\]? "
    r"(?!\S{1,80}\s{1,9}olmo\.)(?:(?:[-|] )?\[?INFO\]?\s{1,9}(?:[-|] )?|std(?:out|err) [FP] )?"
    r"|\[?[0-9]{2}:[0-9]{2}:[0-9]{2}\]? |I[0-9]{4} [0-9:.]{8,15}\s{1,9}[0-9]{1,9} [\w.-]{1,80}:[0-9]{1,6}\] "
    r"|(?:\[INFO\]|INFO -|>|\|(?= [^|0-9][^|]*$)) |INFO:[\w.]{1,80}:"
    r"|\[(?:pod/[\w./-]{1,200}|[a-z][\w.-]{0,100}-[0-9]{1,6})\] "
    r"|[a-z][\w.-]{0,100}-[0-9]{1,6}(?:\s{1,40}\||:|/[a-z][\w-]{0,60}) "
    r"|\s{0,6}[0-9]{1,7}: "
    r"|\[[0-9]{1,7},(?:mpirank:)?[0-9]{1,7}(?:,[\w-]{1,40})?\]<std(?:out|err)>: ?"
    r"|\(\w{1,100} pid=[0-9]{1,9}(?:, ip=[0-9.]{7,15})?\) "
    rf"|{RANK}(?! ?(?:{RANK})?\s{{0,80}}[\"}}\]]|.{{0,300}} \{{\s{{0,9}}$)"
    r"|(?:[a-z][a-z-]{0,40}[0-9]{1,6}(?:\.[\w-]{1,60}){1,6}|(?:node|host|worker|nid)[0-9]{1,6}): "
    r"|(?:[0-9]{1,3}\.){3}[0-9]{1,3}: "
    r"|[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} (?:[\w.-]{1,100} [\w./-]{1,100}\[[0-9]{1,9}\]: )?"
    r"){1,3}(?=.)"
)
_MOST_STAMPS = 200_000
_PACKED: Mapping[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "zstandard data",
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), "a pickle"),
    b"\x7fELF": "a program",
}
_HEAD = 65_536  # bytes looked at to tell text from binary
_BINARY_SHARE = 0.02  # of holes of NUL bytes and of what is no text
_HOLES = re.compile("\0+")
_PATIENCE = 2000  # milliseconds that a pipe has to offer its first byte
_REGULAR = "a regular file, or - for standard input"
_READ = "a training log, or a table of runs"
_LONGEST = 2**20  # characters of one line that are read; a longer line is read in pieces
#: In the names that TensorBoard's writers give; seconds since 1970 as its exports call them.
_EVENTS, _WALL = "tfevents", "Wall time"
_SAMPLES = " vs samples"  # of Megatron-LM's training.py: scalars again whose step counts samples
#: A figure at which a file ends, in the middle of a line: more of it may have stood there.
_OPEN = re.compile(r"\d[\d.,]{0,40}(?:[eE][+-]?\d{0,3})?$")
_BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)


def plain(line: str) -> str:
    """Returns the line without terminal colours and other escape sequences."""
    return _ANSI.sub("", line) if "\x1b" in line else line


def _without_launcher(line: str) -> str:
    line = plain(line.replace("\0", "") if "\0" in line else line)
    prefix = _LAUNCHED.match(line)
    return line[prefix.end() :] if prefix else line


_MOST_HOLE = 128 << 20  # characters: what is longer is no log, but zeros that were packed to be unpacked


class Source:
    """A log that can be read more than once. ``name``: what messages call it; ``-`` is standard input.

    ``truncated`` is set when compressed data ended early; what came before counts. ``hollow``: the log begins with more
    zeros than a rotation under a trainer leaves, and nobody looked for what follows.
    """

    def __init__(self, name: str, copy: IO[bytes] | None = None) -> None:
        """``copy``: a temporary file with what can be read only once, which lives as long as the source."""
        self.name = name
        self.truncated = self.hollow = False
        self._copy = copy
        self._last = 0, ""
        self._stamps: dict[int, float] = {}

    def head(self) -> str:
        """Returns the first 64 KiB as text."""
        with self._open_text() as text:
            return self._read_lines(text, _HEAD)

    def lines(self, late: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
        """Yields (number from 1, line), without escape sequences and launchers' prefixes. The carriage returns of progress
        bars end lines, too. ``late``: texts of lines whose :meth:`stamp` is asked for after others were read."""
        number = 0
        with self._open_text() as text:
            readline = text.readline
            try:
                while line := readline(_LONGEST):
                    number += 1
                    if line[-1] != "\n" and len(line) < _LONGEST:
                        line = _OPEN.sub("", line)
                    self._last = number, line
                    if late and any(map(line.__contains__, late)) and len(self._stamps) < _MOST_STAMPS:
                        self._stamps[number] = stamp(line)
                    yield number, _without_launcher(line)
            except _BROKEN:
                self.truncated = True

    def stamp(self, number: int) -> float:
        """Returns the time of day (:func:`harness.evidence.ingest.logs.clock.stamp`) before line ``number`` if that line was
        read last, or is a late one; else NaN."""
        return stamp(self._last[1]) if self._last[0] == number else self._stamps.get(number, math.nan)

    def text(self) -> IO[str]:
        """Returns the log as one decoded text stream, for documents that are not made of lines."""
        return self._open_text()

    def _read_lines(self, text: IO[str], size: int) -> str:
        """Reads up to ``size`` characters, line by line: one read that meets broken data would return nothing.

        A rotation under a trainer that goes on writing leaves a hole of NUL bytes at the start, which is left out.
        """
        parts: list[str] = []
        hole, self.hollow = 0, False
        try:
            while size > 0 and not self.hollow and (part := text.readline(size)):
                part = part if parts else part.lstrip("\0")
                if not part:
                    hole += size
                    self.hollow = hole > _MOST_HOLE
                    continue
                parts.append(part)
                size -= len(part)
        except _BROKEN:
            self.truncated = True
        return "".join(parts)

    def _open_text(self) -> IO[str]:
        raw = self.open_raw()
        first = raw.read(8)
        raw.seek(0)
        opener = next((opener for magic, opener in _PACKED.items() if first.startswith(magic)), None)
        data: IO[bytes] = opener(raw, "rb") if opener else raw
        wide = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return io.TextIOWrapper(data, "utf-16" if wide else "utf-8-sig", errors="replace", newline=None)

    def open_raw(self) -> IO[bytes]:
        return open(self.name if self._copy is None else self._copy.name, "rb")


def open_source(path: str | Path) -> Source:
    """Opens the log at ``path`` (``-``: standard input; TensorBoard's event files: their scalars). Raises
    :class:`InputError` for what cannot be read as text."""
    name = str(path)
    try:
        source = Source(name, _standard_input() if name == "-" else _scalars(Path(name)) or _piped(name))
        _refuse_binary(source)
    except FileNotFoundError:
        raise InputError([Problem(name, "", NO_FILE, _READ)]) from None
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError([Problem(name, "", reason, "a readable file")]) from None
    return source


def _scalars(path: Path) -> IO[bytes] | None:
    """Reads the event file of TensorBoard, or a folder with some: one record a step, with scalars by their tags and seconds
    since 1970. Returns None for any other path. Raises :class:`InputError` where no package reads event files, or none holds
    a scalar."""
    if not path.exists() or not (_EVENTS in path.name or (path.is_dir() and any(path.glob(f"*{_EVENTS}*")))):
        return None
    try:
        from tbparse import SummaryReader
    except ModuleNotFoundError:
        expected = "a package that reads it: pip install 'projector-harness[tensorboard]'"
        raise InputError([Problem(str(path), "", "an event file of TensorBoard", expected)]) from None
    scalars = SummaryReader(str(path), extra_columns={"wall_time"}).scalars
    if scalars.empty:
        raise InputError([Problem(str(path), "", "no scalars", "an event file with scalars of its steps")])
    steps: dict[int, dict[str, object]] = {}
    for step, tag, value, seconds in scalars[["step", "tag", "value", "wall_time"]].itertuples(index=False):
        if not tag.endswith(_SAMPLES):
            steps.setdefault(int(step), {_WALL: seconds, "step": int(step)})[tag] = value
    return _copied(io.BytesIO("\n".join(json.dumps(record) for _, record in sorted(steps.items())).encode()))


def _standard_input() -> IO[bytes]:
    """Copies standard input, so that the log can be read again."""
    stream = getattr(sys.stdin, "buffer", None)
    return _copied(stream if stream is not None else io.BytesIO(sys.stdin.read().encode("utf-8", "replace")))


def _copied(stream: IO[bytes]) -> IO[bytes]:
    """Copies a whole stream into a temporary file."""
    copy: Any = tempfile.NamedTemporaryFile()  # noqa: SIM115 - lives as long as the source
    shutil.copyfileobj(stream, copy)
    copy.flush()
    return copy  # type: ignore[no-any-return]


def _piped(name: str) -> IO[bytes] | None:
    """Reads a pipe that is given as a path (``<(zcat train.log.gz)``) once; returns None for a regular file.

    A pipe that nobody writes to would block for ever in ``open``: it is refused after :data:`_PATIENCE`, as are folders and
    devices.
    """
    mode = os.stat(name).st_mode
    if stat.S_ISREG(mode):
        return None
    if not stat.S_ISFIFO(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise InputError([Problem(name, "", kind, _REGULAR)])
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb") as pipe:
        ready = select.poll()
        ready.register(handle, select.POLLIN)
        if not any(event & select.POLLIN for _, event in ready.poll(_PATIENCE)):
            raise InputError([Problem(name, "", "a pipe that nobody writes to", _REGULAR)])
        os.set_blocking(handle, True)
        return _copied(pipe)


def _refuse_binary(source: Source) -> None:
    with source.open_raw() as raw:
        first = raw.read(8)
    for magic, what in _FOREIGN.items():
        if first.startswith(magic):
            raise InputError([Problem(source.name, "", what, "text, or text in gzip, bzip2 or xz")])
    head = source.head()
    if source.truncated and not head:
        raise InputError([Problem(source.name, "", "compressed data that ends before any text", _READ)])
    if not head.strip("\0 \t\r\n\ufeff"):
        raise InputError([Problem(source.name, "", "zeros" if source.hollow else "an empty file", _READ)])
    odd = len(_HOLES.findall(head)) + head.count("\ufffd")  # writers of several nodes leave holes, too
    if odd > _BINARY_SHARE * len(head):
        raise InputError([Problem(source.name, "", "binary data", "text, or text in gzip, bzip2 or xz")])
