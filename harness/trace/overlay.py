"""Writes a measured and a projected timeline in one file for ui.perfetto.dev, both from the beginning of the step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.trace.names import KINDS
from harness.trace.study import Study
from projector.benchmark.record import TableFile
from projector.errors import InputError, Problem
from projector.io.files import write_whole
from projector.operators.types import Gemm
from projector.pipeline.trace import events


def record(found: Study, folder: Path, gpu: str) -> tuple[int, int]:
    """Appends the shapes that are known whole to ``folder/gpu``, and returns the number of rows added and of shapes left
    out (the trace lacks the operands' place in memory, or the library). Raises :class:`InputError` for a table that
    cannot be added to."""
    tables = {kind: TableFile(folder / gpu, kind) for kind in ("gemm", "attention")}
    source = f"trace of a training step on {found.trace.gpu}: {Path(found.trace.path).name}"
    added = skipped = 0
    for row in found.shapes:
        table = tables["gemm" if isinstance(row.op, Gemm) else "attention"]
        family = KINDS["families"].get(row.provider, "")
        if not family or not row.laid or row.seconds <= 0:
            skipped += 1
        elif not table.holds(row.op, family):
            table.add(row.op, family, row.seconds, 0.0, f"live: median of {row.calls} in a traced step", source)
            added += 1
    for table in tables.values():
        table.save()
    return added, skipped


_MICRO = 1e6
_MEASURED = 1_000_000  # process number of the measured device, far from those of projected ranks


def write(found: Study, path: Path) -> None:
    """Writes both timelines. Raises :class:`InputError` where nothing was projected."""
    if found.planned is None:
        raise InputError([Problem("command line", "--overlay", "no projection", "--config or --model to compare with")])
    projection = found.planned.projection
    rows = [*events(projection.timeline, projection.spans), *_measured_events(found)]
    write_whole(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": rows}))


def _measured_events(study: Study) -> list[dict[str, Any]]:
    """Returns one track a stream, one event a kernel, named by its kind."""
    part = study.part
    kernels, kinds = part.kernels, part.kernels.kinds()
    streams = sorted(set(kernels.stream.tolist()))
    rows: list[dict[str, Any]] = [
        {"ph": "M", "pid": _MEASURED, "name": "process_name", "args": {"name": f"measured: {study.trace.path}"}}
    ]
    rows += [
        {"ph": "M", "pid": _MEASURED, "tid": at, "name": "thread_name", "args": {"name": f"stream {stream}"}}
        for at, stream in enumerate(streams)
    ]
    for at, (start, end, stream, name) in enumerate(
        zip(kernels.start.tolist(), kernels.end.tolist(), kernels.stream.tolist(), kernels.name.tolist(), strict=True)
    ):
        owner = study.owners[at]
        rows.append(
            {
                "ph": "X",
                "pid": _MEASURED,
                "tid": streams.index(stream),
                "ts": (start - part.start) * _MICRO,
                "dur": (end - start) * _MICRO,
                "cat": kinds[name].kind,
                "name": kinds[name].kind,
                "args": {"kernel": kernels.names[name], "phase": owner.phase, "annotation": owner.mark},
            }
        )
    return rows
