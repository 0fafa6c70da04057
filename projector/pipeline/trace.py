"""A timeline as a Chrome trace, for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem
from projector.pipeline.timeline import Timeline
from projector.pipeline.types import KINDS

__all__ = ["events", "write"]

CATEGORIES = {"F": "forward", "B": "backward", "W": "weight-gradient"}


def events(timeline: Timeline) -> list[dict[str, Any]]:
    """Trace events: one complete event (``"ph": "X"``) per action, one process per rank, ``ts`` and ``dur`` in
    microseconds.

    Format: "Trace Event Format" of the Chromium project. Raises :class:`InputError` for a batch (take one with ``at``).
    """
    if timeline.end.ndim != 1:
        raise InputError([Problem("pipeline", "timeline", timeline.end.shape, "one evaluation: timeline.at(row)")])
    plan = timeline.compiled
    chunk_of = {stage: chunk for own in plan.schedule.placement for chunk, stage in enumerate(own)}
    out = [_process(rank) for rank in range(plan.schedule.pp)]
    columns = (plan.rank, plan.stage, plan.kind, plan.microbatch, timeline.start * 1e6, timeline.duration * 1e6)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for rank, stage, kind, microbatch, start, duration in rows:
        name = KINDS[kind]
        place = {"microbatch": microbatch, "chunk": chunk_of[stage], "virtual_stage": stage}
        out.append({"name": f"{name}{microbatch}", "cat": CATEGORIES[name], "ph": "X", "pid": rank, "tid": 0,
                    "ts": round(start, 3), "dur": round(duration, 3), "args": place})  # fmt: skip
    return out


def write(timeline: Timeline, path: Path | str) -> Path:
    """Writes the trace to ``path``, whole or not at all. Raises :class:`InputError` when the folder does not exist."""
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError([Problem(str(target), "", str(target.parent), "an existing folder")])
    schedule = timeline.compiled.schedule
    content = {
        "traceEvents": events(timeline),
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": schedule.name,
            "pp": schedule.pp,
            "vpp": schedule.vpp,
            "microbatches": schedule.microbatches,
        },
    }
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream, separators=(",", ":"))
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def _process(rank: int) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"pipeline rank {rank}"}}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
