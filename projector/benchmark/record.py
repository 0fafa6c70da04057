"""Times the kernels of operators on the device at hand into tables; what a table already has is not run again."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from projector.benchmark import attention, gemm, grouped
from projector.benchmark.device import Device
from projector.benchmark.job import Job, Ready, Skip, unheard
from projector.benchmark.passes import PASSES, Pass
from projector.benchmark.processes import said
from projector.benchmark.shapes import kind_of
from projector.benchmark.stopwatch import Stopwatch
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, truncate
from projector.io import csv_file
from projector.io.files import write_whole, writing
from projector.io.rows import evenly
from projector.kernels.protocol import ComputeOp
from projector.kernels.tables import SHAPES, cells_of
from projector.operators.types import Stream

_TAIL = ("time_us", "condition", "source", "spread")
#: Columns of a table by kind (``measured/kernels/README.md``).
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("family", *SHAPES["gemm"][1], "tile", "split_k", *_TAIL),
    "attention": ("family", *SHAPES["attention"][1], *_TAIL),
    "grouped": ("family", *SHAPES["grouped"][1], *_TAIL),
    "stream": (*SHAPES["stream"][1], *_TAIL),
}
_NOT_SHAPE = frozenset({"tile", "split_k", *_TAIL})
_LIVE = "live"


class TableFile:
    """One table, ``folder/<kind>.csv``, and the file of its sources. Raises :class:`InputError` for any other file."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.path = folder / f"{kind}.csv"
        self._kind = kind
        self._sources_path = self.path.with_suffix(".sources.csv")
        self._rows = _read(self.path, COLUMNS[kind])
        self._sources = [cells["source"] for cells in _read(self._sources_path, ("number", "source"))]
        self._spelled = bool(self._rows) and not self._sources  # texts stand in the rows themselves
        self._live = {self._key(row) for row in self._rows if row["condition"].startswith(_LIVE)}
        self.changed = False

    def __len__(self) -> int:
        return len(self._rows)

    def holds(self, op: ComputeOp, family: str) -> bool:
        """Returns whether this kernel was timed live before, in this run or an earlier one."""
        return self._key(cells_of(op, family)) in self._live

    def add(self, op: ComputeOp, family: str, seconds: float, spread: float, condition: str, source: str) -> None:
        """Adds a row, which :meth:`save` writes."""
        if not self._spelled:
            if source not in self._sources:
                self._sources.append(source)
            source = str(self._sources.index(source) + 1)
        cells = cells_of(op, family)
        cells |= {"time_us": f"{seconds * 1e6:.6g}", "condition": condition, "source": source}
        cells["spread"] = f"{spread:.4f}"
        self._rows.append(cells)
        self._live.add(self._key(cells))
        self.changed = True

    def save(self) -> None:
        """Writes both files beside their place, then renames them into it. Raises :class:`InputError`."""
        if not self.changed:
            return
        columns = list(dict.fromkeys([*COLUMNS[self._kind], *(key for row in self._rows for key in row)]))
        if self._sources:
            numbered = [{"number": str(i), "source": text} for i, text in enumerate(self._sources, start=1)]
            _write(self._sources_path, ("number", "source"), numbered)
        _write(self.path, columns, self._rows)
        self.changed = False

    def _key(self, cells: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(cells.get(name) or "" for name in COLUMNS[self._kind] if name not in _NOT_SHAPE)


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    if not path.exists():
        return []
    present, rows = csv_file.read(path, "a table that can be read and added to")
    missing = [name for name in columns if name not in present and name not in ("spread", "tile", "split_k")]
    if missing:
        raise InputError([Problem(str(path), "", f"no column {', '.join(missing)}", f"columns {', '.join(columns)}")])
    return [{key: value or "" for key, value in row.items() if key is not None} for row in rows]


def _write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    with writing(path):
        write_whole(path, csv_file.text(columns, *(map(row.get, columns) for row in rows)))


#: Above this many bytes a rate no longer changes (the ramp of a stream ends some hundred times earlier).
_MOST = {"cuda": 2 * 2**30, "cpu": 2**28}
_STEP = math.sqrt(2.0)  # sizes are rounded to its powers: a rate hardly changes within one
_SMALL_ROWS = 16  # rows that a tensor has at least before its rows become shorter


def stream_jobs(op: Stream, device: Device) -> tuple[Job, ...]:
    """Returns a memory-bound operator as one job: the pass of the same kind with the most similar share of reads, as
    often as the operator launches, with as many elements as give its bytes. Raises :class:`Skip` for a kind without a
    pass or bytes."""
    kernel = chosen(op)
    if op.bytes <= 0:
        raise Skip("streams without bytes")
    times = max(1, round(op.launches / kernel.launches))
    per_element = kernel.read + kernel.write
    elements_of_pass = min(op.bytes, _MOST[device.type]) / times / per_element
    rounded, width = _STEP ** round(math.log(max(elements_of_pass, 1.0), _STEP)), kernel.width
    while width > 1 and rounded < _SMALL_ROWS * width:
        width //= 2
    rows = max(1, round(rounded / width))
    elements = rows * width * times
    ran = Stream("", op.kind, kernel.read * elements, kernel.write * elements, launches=kernel.launches * times)
    return (Job("stream", ran, kernel.name, ran.bytes / times, lambda: _build(kernel, device, rows, width, times)),)


def chosen(op: Stream) -> Pass:
    """Returns the pass whose share of reads is most like that of ``op``. Raises :class:`Skip` for an unknown kind."""
    candidates = [each for each in PASSES if each.kind == op.kind]
    if not candidates:
        raise Skip(f"streams of kind {op.kind}")
    share = op.read / op.bytes if op.bytes else 0.5
    return min(candidates, key=lambda each: abs(each.read / (each.read + each.write) - share))


def _build(kernel: Pass, device: Device, rows: int, width: int, times: int) -> Ready:
    call = kernel.setup(device, rows, width)

    def run() -> None:
        for _ in range(times):
            call()

    return Ready(call if times == 1 else run, kernel.name)


_SAVE_EVERY = 5.0  # seconds of work that a loss of power may cost
_ROOM = 0.8  # share of the free memory that one kernel may need
_JOBS: Mapping[str, Callable[[Any, Device], tuple[Job, ...]]] = {
    "gemm": gemm.jobs,
    "attention": attention.jobs,
    "grouped": grouped.jobs,
    "stream": stream_jobs,
}


@dataclass(frozen=True)
class Plan:
    """Kernels to be timed, by kind in ascending work; ``skipped``: reasons of operators that torch cannot run."""

    jobs: tuple[Job, ...]
    skipped: Counter[str]


@dataclass
class Recorded:
    """The result of a sweep by kind: rows ``added``, rows ``kept`` as they were; ``skipped``: reasons and how often."""

    paths: dict[str, Path]
    added: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    spreads: list[float] = field(default_factory=list)
    interrupted: bool = False


def plan(ops: Sequence[ComputeOp], device: Device, kinds: Sequence[str], limit: int | None = None) -> Plan:
    """Returns every kernel of ``kinds`` once, at most ``limit`` a kind, spread evenly from the smallest to the
    largest."""
    skipped: Counter[str] = Counter()
    by_kind: dict[str, dict[tuple[ComputeOp, str], Job]] = {kind: {} for kind in kinds}
    for op in ops:
        kind = kind_of(op)
        if kind not in by_kind:
            continue
        try:
            for job in _JOBS[kind](op, device):
                by_kind[kind].setdefault((job.op, job.family if kind != "stream" else ""), job)
        except Skip as error:
            skipped[f"{kind}: {error}"] += 1
    chosen: list[Job] = []
    for unique in by_kind.values():
        ordered = sorted(unique.values(), key=lambda job: (job.work, repr(job.op), job.family))
        chosen += [ordered[i] for i in evenly(len(ordered), len(ordered) if limit is None else limit)]
    return Plan(tuple(chosen), skipped)


def run(
    jobs: Sequence[Job], watch: Stopwatch, folder: Path, *, longest: float = 10.0, told: Callable[[Job], None] = unheard
) -> Recorded:
    """Times ``jobs`` into ``folder``; a table is saved every few seconds, at the end, and when interrupted.

    ``longest``: a kernel that would take more seconds, by the best rate of its class so far, is skipped. ``told`` is
    called with every job that is dealt with. Raises :class:`InputError` for a folder or table that cannot be written.
    """
    tables = {kind: TableFile(folder, kind) for kind in dict.fromkeys(job.kind for job in jobs)}
    recorded = Recorded({kind: table.path for kind, table in tables.items()})
    writable(folder)
    source, rates, saved = watch.device.software(), _Rates(), time.monotonic()

    def timed(job: Job, table: TableFile, family: str) -> None:
        """Times a kernel into its table, or notes why it is skipped."""
        try:
            if job.nbytes > _ROOM * watch.device.free_bytes():
                raise Skip("more memory than the device has free")
            if rates.seconds(job) > longest:
                raise Skip(f"longer than {longest:g} s")
            with warnings.catch_warnings():
                # torch says at length why a backend does not apply: the table says it in a line
                warnings.simplefilter("ignore")
                ready = job.build()
                timing = watch.time(ready.call)
        except Skip as error:
            recorded.skipped[f"{job.kind}: {error}"] += 1
            return
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            recorded.skipped[f"{job.kind}: {job.family}: {truncate(said(error), 100)}"] += 1
            return
        rates.learn(job, timing.median)
        note = f"; {ready.note}" if ready.note else ""
        condition = f"{watch.condition}, median of {timing.samples}{note}"
        table.add(job.op, family, timing.median, timing.spread, condition, source)
        recorded.added[job.kind] += 1
        recorded.spreads.append(timing.spread)

    def save() -> None:
        for table in tables.values():
            table.save()

    try:
        for job in jobs:
            table = tables[job.kind]
            family = "" if job.kind == "stream" else job.family
            if table.holds(job.op, family):
                recorded.kept[job.kind] += 1
            else:
                timed(job, table, family)
            told(job)
            if time.monotonic() - saved > _SAVE_EVERY:
                save()
                saved = time.monotonic()
    except KeyboardInterrupt:
        recorded.interrupted = True
    finally:
        save()
    return recorded


class _Rates:
    """The best rate of each class of kernels so far, from which the time of a larger one follows."""

    def __init__(self) -> None:
        self._best: dict[tuple[object, ...], float] = {}

    def seconds(self, job: Job) -> float:
        """Returns the expected seconds of a job; zero while nothing of its class was timed."""
        best = self._best.get(self._class(job))
        return job.work / best if best else 0.0

    def learn(self, job: Job, seconds: float) -> None:
        key = self._class(job)
        self._best[key] = max(self._best.get(key, 0.0), job.work / seconds)

    @staticmethod
    def _class(job: Job) -> tuple[object, ...]:
        return job.kind, job.family, getattr(job.op, "dtype", ""), getattr(job.op, "backward", False)


def writable(folder: Path) -> None:
    """Raises :class:`InputError` for a folder that cannot be written, before hours of work."""
    probe = folder / ".writable"
    with writing(folder, "--out", "a folder to write to"):
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
