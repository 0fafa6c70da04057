"""A measured and a projected timeline in one file for ui.perfetto.dev, both from the beginning of the step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.trace.study import Study
from projector.errors import InputError, Problem
from projector.io.files import write_whole
from projector.pipeline.trace import events

_MICRO = 1e6
_MEASURED = 1_000_000  # process number of the measured device, far from those of projected ranks


def write(found: Study, path: Path) -> None:
    """Raises :class:`InputError` where nothing was projected."""
    if found.planned is None:
        raise InputError([Problem("command line", "--overlay", "no projection", "--config or --model to compare with")])
    projection = found.planned.projection
    rows = [*events(projection.timeline, projection.spans), *_measured(found)]
    write_whole(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": rows}))


def _measured(found: Study) -> list[dict[str, Any]]:
    """One track a stream, one event a kernel, named by its kind."""
    part = found.part
    kernels, kinds = part.kernels, part.kernels.kinds()
    streams = sorted(set(kernels.stream.tolist()))
    rows: list[dict[str, Any]] = [
        {"ph": "M", "pid": _MEASURED, "name": "process_name", "args": {"name": f"measured: {found.trace.path}"}}
    ]
    rows += [
        {"ph": "M", "pid": _MEASURED, "tid": at, "name": "thread_name", "args": {"name": f"stream {stream}"}}
        for at, stream in enumerate(streams)
    ]
    for at, (start, end, stream, name) in enumerate(
        zip(kernels.start.tolist(), kernels.end.tolist(), kernels.stream.tolist(), kernels.name.tolist(), strict=True)
    ):
        owner = found.owners[at]
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
