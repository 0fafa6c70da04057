"""Reads a trace of torch.profiler (Kineto, Chrome's JSON, plain or gzip) once, event by event, into columns. The format:
pytorch/kineto 114171df libkineto/src/output_json.cpp. Times are microseconds."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.evidence.ingest.logs.jsonstream import elements
from harness.evidence.ingest.logs.source import open_source
from harness.trace.events import CollectiveCall, Inputs, Kernels, Launches, Mark, Ops, Trace
from harness.trace.shapes import SHAPED
from projector.errors import InputError, Problem

_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_MARKS = frozenset({"user_annotation"})
_OPS = frozenset({"cpu_op", "operator"})
_WAITS = re.compile(r"Synchronize|^(?:cuda|hip)Memcpy$|^(?:cuda|hip)StreamWaitValue|^(?:cuda|hip)Free$")
_GPU = re.compile(r'"deviceProperties"\s*:\s*\[\s*\{[^{}]{0,400}?"name"\s*:\s*"([^"]{1,80})"')
_WORLD = re.compile(r'"world_size"\s*:\s*([0-9]{1,7})')
_RANK = re.compile(r'"rank"\s*:\s*([0-9]{1,7})')
_MICRO = 1e-6
_MOST_NAMES = 100_000
_EXPECTED = "a trace of torch.profiler (Chrome's JSON with traceEvents), plain or gzip"


def read(path: Path) -> Trace:
    """Reads a trace. Raises :class:`InputError` where the file cannot be read or holds no event with a time."""
    source = open_source(str(path))
    head = source.head()
    if '"traceEvents"' not in head and not head.lstrip().startswith("["):
        raise InputError([Problem(str(path), "", head.strip()[:40] or "nothing", _EXPECTED)])
    columns, ended = _Columns(), False
    with source.text() as text:
        try:
            for element in elements(text, "traceEvents"):
                if isinstance(element, Mapping):
                    columns.take(element)
            ended = True
        except (EOFError, OSError):
            ended = False
    if not columns.any:
        raise InputError([Problem(str(path), "traceEvents", "no event with a time", _EXPECTED)])
    stated = [pattern.search(head) for pattern in (_GPU, _RANK, _WORLD)]
    gpu, rank, world = (match[1] if match else "" for match in stated)
    return columns.trace(
        str(path),
        gpu=gpu,
        rank=int(rank) if rank else None,
        world=int(world) if world else None,
        cut=not ended or not _ends_as_json(path),
    )


def _ends_as_json(path: Path) -> bool:
    """Tells whether a plain file ends as JSON does; a packed one has a checksum of its own."""
    with path.open("rb") as stream:
        if stream.read(2) == b"\x1f\x8b":
            return True
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 64))
        return stream.read().rstrip().endswith((b"}", b"]"))


class _Columns:
    """The events of one file while it is read; numbers in arrays, so that millions of events fit."""

    def __init__(self) -> None:
        self._kernel: list[array[Any]] = [array("d"), array("d"), array("q"), array("q"), array("q")]
        self._call: list[array[Any]] = [array("d"), array("d"), array("q"), array("q"), array("b")]
        self._op: list[array[Any]] = [array("d"), array("d"), array("q"), array("q")]
        self._names: dict[str, int] = {}
        self._op_names: dict[str, int] = {}
        self._messages: dict[int, CollectiveCall] = {}
        self._inputs: dict[int, Inputs] = {}
        self._marks: list[Mark] = []
        self._threads: dict[str, int] = {}

    @property
    def any(self) -> bool:
        return bool(self._kernel[0] or self._op[0])

    def take(self, event: Mapping[str, Any]) -> None:
        start, length, name = event.get("ts"), event.get("dur"), event.get("name")
        if event.get("ph") != "X" or not isinstance(name, str) or not _number(start) or not _number(length):
            return
        category = str(event.get("cat", "")).lower()
        stated = event.get("args")
        args: Mapping[str, Any] = stated if isinstance(stated, Mapping) else {}
        begin, end = float(start) * _MICRO, (float(start) + float(length)) * _MICRO  # type: ignore[arg-type]
        if category in _DEVICE:
            if message := _message(args):
                self._messages[len(self._kernel[0])] = message
            stream = args.get("stream", event.get("tid"))
            correlation = _integer(args.get("correlation"))
            self._add(self._kernel, begin, end, _integer(stream), _place(self._names, name), correlation)
            return
        thread = self._threads.setdefault(str(event.get("tid")), len(self._threads))
        if category in _CALLS:
            waits = int(_WAITS.search(name) is not None)
            self._add(self._call, begin, end, thread, _integer(args.get("correlation")), waits)
        elif category in _OPS:
            if SHAPED.search(name) and (inputs := _inputs(args)):
                self._inputs[len(self._op[0])] = inputs
            self._add(self._op, begin, end, thread, _place(self._op_names, name))
        elif category in _MARKS:
            self._marks.append(Mark(name, begin, end, thread))

    @staticmethod
    def _add(columns: list[array[Any]], *values: float) -> None:
        for column, value in zip(columns, values, strict=True):
            column.append(value)

    def trace(self, path: str, **stated: Any) -> Trace:
        columns = (self._kernel, self._call, self._op)
        origin = min([min(part[0]) for part in columns if part[0]] + [mark.start for mark in self._marks])
        order, start, end, stream, name, correlation = _ordered(self._kernel, origin)
        place = {int(old): new for new, old in enumerate(order)}
        messages = {place[at]: message for at, message in self._messages.items()}
        kernels = Kernels(start, end, stream, name, correlation, tuple(self._names), messages)
        _, start, end, thread, correlation, waits = _ordered(self._call, origin)
        launches = Launches(start, end, thread, correlation, waits.astype(bool))
        order, start, end, thread, name = _ordered(self._op, origin)
        place = {int(old): new for new, old in enumerate(order)}
        inputs = {place[at]: recorded for at, recorded in self._inputs.items()}
        ops = Ops(start, end, thread, name, tuple(self._op_names), inputs)
        moved = (Mark(m.name, m.start - origin, m.end - origin, m.thread) for m in self._marks)
        marks = tuple(sorted(moved, key=lambda mark: (mark.start, -mark.end)))
        return Trace(path=path, kernels=kernels, launches=launches, ops=ops, marks=marks, **stated)


def _ordered(columns: list[array[Any]], origin: float) -> list[Any]:
    """Returns the order by start, then each column in it, times from ``origin``."""
    arrays = [np.array(column, dtype=np.float64 if column.typecode == "d" else np.int64) for column in columns]
    order = np.argsort(arrays[0], kind="stable")
    start, end, *rest = (each[order] for each in arrays)
    return [order, start - origin, end - origin, *rest]


def _message(args: Mapping[str, Any]) -> CollectiveCall | None:
    op = args.get("Collective name")
    if not isinstance(op, str) or not op:
        return None
    sizes = [_integer(args.get(key)) for key in ("In msg nelems", "Out msg nelems")]
    sequence = args.get("Seq")
    group = args.get("Process Group Description") or args.get("Process Group Name")
    return CollectiveCall(
        op=op,
        group=str(group or ""),
        ranks=max(1, _integer(args.get("Group size"))),
        elements=max(0, *sizes),
        dtype=str(args.get("dtype", "")),
        sequence=_integer(sequence) if _number(sequence) else None,
    )


def _inputs(args: Mapping[str, Any]) -> Inputs | None:
    sizes = _lists(args.get("Input Dims") or args.get("Input dims"))
    types = args.get("Input type")
    words = tuple(str(word) for word in types) if isinstance(types, list) else ()
    return Inputs(sizes, _lists(args.get("Input Strides")), words) if sizes else None


def _lists(value: object) -> tuple[tuple[int, ...], ...]:
    """Returns the integers of each input; an input that is no tensor is empty."""
    if not isinstance(value, list):
        return ()
    return tuple(tuple(n for n in item if isinstance(n, int)) if isinstance(item, list) else () for item in value)


def _place(names: dict[str, int], name: str) -> int:
    if name not in names and len(names) >= _MOST_NAMES:
        name = "(names beyond the first hundred thousand)"
    return names.setdefault(name, len(names))


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18


def _integer(value: object) -> int:
    """Returns an integer from JSON or from a string, -1 for anything else."""
    if isinstance(value, bool):
        return -1
    if isinstance(value, (int, float)) and abs(value) < 2**63:
        return int(value)
    text = value if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else -1
