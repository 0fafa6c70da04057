"""Reads what nccl-tests and rccl-tests print: which ranks took part, and the seconds of each size.

A text may hold several tests, each behind its ``# nThread … nGpus …`` line, and whatever a launcher puts before a line
(``0: ``, ``[1,0]<stdout>:``, a time). Columns are those that the test's own header names: releases differ in ``root``
and ``error``, per-iteration figures come between. Source: NVIDIA/nccl-tests@a0b82b2 src/util.cu, src/common.cu and the
``GetBw`` of each test.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all
from projector.hardware import catalogue
from projector.io.files import read_text
from projector.io.rows import grouped
from projector.parameter import parameter

_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
}
_START = re.compile(r"# nThread\s+(\d+)\s+nGpus\s+(\d+)\b(?:.*\bgraph:\s*(\d+))?")
_TEST = re.compile(r"\b([a-z_]+?)_perf(?:_mpi)?\b")
_ENDED = re.compile(r"# Collective test concluded: ([a-z_]+?)_perf")
_RANK = re.compile(r"#\s+Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_HEAD = re.compile(r"#\s+size\s+(count\s+type\b.*)")
_ROW = re.compile(r"(?<![\w.,:/-])(\d+)\s+(\d+)\s+([a-z]\w*)\s+(.*)")
_FORCED = re.compile(r"\bNCCL_ALGO(?:=| set by environment to )\^?(\w+(?:,\w+)*)")
_ALGORITHMS = {"ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls_tree", "pat": "pat"}
_ROUNDED = parameter(
    0.02,
    kind="derived",
    source="two decimals of algbw and busbw; the factors of 2(n-1)/n, (n-1)/n and 1 lie farther apart",
)
_LEAST_RATE = parameter(
    1.0, unit="GB/s", kind="derived", source="below it two printed decimals are more than a percent"
)


@dataclass(frozen=True, slots=True)
class CollectiveTest:
    """One test: seconds by bytes, ascending, of a kind of collective on ``ranks`` ranks over ``hosts`` hosts.

    ``algorithm``: forced by ``NCCL_ALGO``, or empty; ``device``: the driver's title of the GPU; ``one_thread``: one
    host thread launches on several devices, so that small messages wait for it.
    """

    where: str
    kind: str
    ranks: int
    hosts: int
    device: str
    algorithm: str
    one_thread: bool
    seconds: tuple[tuple[float, float], ...]

    @property
    def longest(self) -> tuple[float, float]:
        """Returns (bytes, seconds) of the longest message."""
        return self.seconds[-1]


def busbw(kind: str, ranks: int) -> float:
    """Returns the ratio of bus bandwidth to algorithm bandwidth (nccl-tests doc/PERFORMANCE.md)."""
    if kind in ("broadcast", "send_recv"):
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1) / ranks


def read(paths: Iterable[Path], on: tuple[int, int] | None = None) -> tuple[CollectiveTest, ...]:
    """Returns every test of every file. ``on``: hosts and GPUs of each host, for tests that list no ranks. Raises
    InputError with every mistake in them."""
    problems: list[Problem] = []
    tests = [test for path in paths for test in _tests(path, on, problems)]
    raise_all(problems)
    return tuple(tests)


def usual_cluster(tests: Iterable[CollectiveTest]) -> str:
    """Returns the usual cluster of the device that all tests name. Raises InputError without one known device."""
    devices = sorted({swept.device or "no device named" for swept in tests})
    gpu = catalogue.find_gpu(devices[0]) if len(devices) == 1 else None
    if gpu is None:
        raise InputError([Problem("--cluster", "", ", ".join(devices), "a cluster NAME or FILE: its lines, its hosts")])
    return catalogue.default_cluster(gpu).name


def _tests(path: Path, on: tuple[int, int] | None, problems: list[Problem]) -> list[CollectiveTest]:
    lines = read_text(path).splitlines()
    starts = [number for number, line in enumerate(lines) if _START.search(line)]
    if not starts:
        problems.append(
            Problem(str(path), "", "no line '# nThread … nGpus …'", "what nccl-tests or rccl-tests printed")
        )
        return []
    tests, after_last = [], 0
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        where = f"{path}:{start + 1}"
        try:
            tests.append(_test(lines[after_last:start], lines[start:end], where, path.stem, on))
        except _Unclear as unclear:
            problems.append(Problem(where, *unclear.args))
        after_last = start
    return tests


class _Unclear(Exception):
    """A test that cannot be read: its arguments are the key, what was found and what was expected."""


def _test(
    before: Sequence[str], lines: Sequence[str], where: str, stem: str, on: tuple[int, int] | None
) -> CollectiveTest:
    start = _START.search(lines[0])
    assert start is not None
    ranks, hosts, device = _ranks(lines, on)
    rows = _rows(lines)
    if not rows:
        raise _Unclear("size", "no row with a time", "lines of size, count, type, redop, root, time, algbw and busbw")
    file = [name for name in _KINDS if name in stem]
    named = [name for line in before if not _ENDED.search(line) for name in _TEST.findall(line)]
    ended = [name for line in lines for name in _ENDED.findall(line)]
    forced = [name for line in (*before, *lines) for name in _FORCED.findall(line)]
    by_size = grouped((row.bytes, row.seconds) for row in rows)
    return CollectiveTest(
        where=where,
        kind=_kind((ended or named or file)[-1:], rows, ranks),
        ranks=ranks,
        hosts=hosts,
        device=device,
        algorithm=_ALGORITHMS.get(forced[-1].lower(), "") if forced else "",
        one_thread=int(start[2]) > 1 and not int(start[3] or 0),
        seconds=tuple((size, median(times)) for size, times in sorted(by_size.items())),
    )


def _ranks(lines: Sequence[str], on: tuple[int, int] | None) -> tuple[int, int, str]:
    """Returns ranks, hosts and the device's title, for the first communicator where a test ran several at once."""
    listed = [rank for line in lines if (rank := _RANK.search(line))]
    if not listed and on:
        return on[0] * on[1], on[0], ""
    if not listed:
        raise _Unclear("Rank", "no line '# Rank … on HOST device …'", "which ranks took part, or --on HOSTSxGPUS")
    numbers = sorted(int(rank[1]) for rank in listed)
    if numbers != list(range(len(numbers))):
        expected = "every rank once: where processes ran alone, the tests were built without MPI=1"
        raise _Unclear("Rank", f"ranks {', '.join(map(str, numbers))}", expected)
    devices = {rank[4].strip() for rank in listed}
    if len(devices) > 1:
        raise _Unclear("Rank", f"devices {', '.join(sorted(devices))}", "one type of GPU")
    groups = [int(rank[2] or 0) for rank in listed]
    hosts = Counter(rank[3] for rank, group in zip(listed, groups, strict=True) if group == min(groups))
    if len(set(hosts.values())) > 1:
        counts = ", ".join(f"{times} on {host}" for host, times in hosts.items())
        raise _Unclear("Rank", counts, "equally many ranks on every host")
    if hosts.total() == 1:
        raise _Unclear("Rank", "one rank", "two at least: collectives join ranks")
    return hosts.total(), len(hosts), devices.pop()


@dataclass(frozen=True, slots=True)
class _Row:
    bytes: float
    seconds: float
    rate: float
    bus: float
    redop: str


def _rows(lines: Sequence[str]) -> list[_Row]:
    """Returns the rows of sizes that took time, out of place (in place where nothing else was timed)."""
    columns: list[str] = []
    rows: list[_Row] = []
    for line in lines:
        if head := _HEAD.search(line):
            columns = head[1].split()[2:]
        elif columns and (row := _ROW.search(line)):
            timed = _row(float(row[1]), row[4].split(), columns)
            rows += [timed] if timed else []
    return rows


def _row(size: float, cells: list[str], columns: list[str]) -> _Row | None:
    redop = ""
    if columns[0] == "redop":
        redop = cells.pop(0) if cells and cells[0].isalpha() else ""
        columns = columns[1:]
    for place in [number for number, name in enumerate(columns) if name == "time"]:
        numbers = [_number(cell) for cell in cells[place : place + 4]]
        if len(numbers) < 3 or not all(value > 0.0 for value in numbers[:1]):
            continue
        if columns[place + 3 : place + 4] == ["#wrong"] and numbers[3:] and numbers[3] > 0.0:
            raise _Unclear("#wrong", f"{cells[place + 3]} at {size:.0f} bytes", "0 or N/A: sums were wrong")
        if size > 0.0:
            return _Row(size, numbers[0] * 1e-6, numbers[1], numbers[2], redop)
    return None


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _kind(named: Sequence[str], rows: Sequence[_Row], ranks: int) -> str:
    """Returns the collective that the text or the file's name tells, in agreement with the ratio of busbw to algbw."""
    largest = max(rows, key=lambda row: row.bytes)
    ratio = largest.bus / largest.rate if largest.rate >= _LEAST_RATE else math.nan
    fitting = [kind for kind in _KINDS.values() if not abs(ratio / busbw(kind, ranks) - 1.0) > _ROUNDED]
    for name in named:
        kind = _KINDS.get(name)
        if kind is None:
            raise _Unclear("test", f"{name}_perf", f"one of {', '.join(f'{name}_perf' for name in _KINDS)}")
        if kind not in fitting:
            expected = f"{busbw(kind, ranks):.3g} of {kind} on {ranks} ranks"
            raise _Unclear("busbw", f"{ratio:.3g} of algbw at {largest.bytes:.0f} bytes", expected)
        return kind
    if largest.redop:
        fitting = [kind for kind in fitting if ("reduce" in kind) == (largest.redop != "none") or kind == "send_recv"]
    if len(fitting) != 1:
        raise _Unclear(
            "test",
            f"nothing that names it: {' or '.join(fitting) or 'no kind fits'}",
            "all_gather_perf, … in the text or name",
        )
    return fitting[0]
