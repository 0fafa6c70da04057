"""Shows by how much a configuration does not fit, and what would help (``performance``, ``memory``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from projector.cli import expected
from projector.cli.extra import Extra
from projector.cli.inputs import Case
from projector.cli.tables import tabled
from projector.io.table import Line, Table, gib, values
from projector.projection import Projection, project
from projector.search.remedies import Remedies, Remedy, remedies


def extra(case: Case, projection: Projection) -> Extra:
    """Returns the cheapest changes under which the case fits; nothing where it fits as it is."""
    if projection.memory.fits:
        return Extra()
    result = remedies(case.workload, case.cluster, lambda w: project(w, case.cluster, settings=case.settings))
    document = {
        "out_of_memory_bytes": float(-projection.memory.margin_bytes),
        "changes": [_values(case, remedy) for remedy in result.found],
        "nearest": None if result.nearest is None else _values(case, result.nearest),
        "tried": result.tried,
    }  # recipe fields and GPUs of each change, with its step and memory
    return Extra(tuple(_lines(case, result)), {"remedies": document})


def _lines(case: Case, result: Remedies) -> Iterator[Line | Table]:
    if result.found:
        yield tabled("remedies", result.found, expected=[*expected.columns(case), expected.speed(case)])
        return
    yield Line(f"None of {result.tried} changes makes it fit. projector ask --gpus min finds the fewest GPUs.", "bad")
    if result.nearest is not None:
        memory = result.nearest.projection.memory
        short = gib(-memory.margin_bytes)
        yield Line(f"Nearest: {result.nearest.change.label}: {gib(memory.required)} GiB needed, {short} GiB too much.")


def _values(case: Case, remedy: Remedy) -> dict[str, Any]:
    projection = remedy.projection
    return {
        **values(remedy, "change=change.label kind=change.kind"),
        "fields": {name: list(v) if isinstance(v, tuple) else v for name, v in remedy.change.fields},
        "gpus": remedy.gpus,
        "step_seconds": projection.step_seconds,
        "expected": expected.as_document(expected.expectation(case, projection)),
        **values(projection, "tgs fits=memory.fits memory_status=memory.status"),
        "required": float(projection.memory.required),
        "margin": float(projection.memory.margin_bytes),
    }
