"""The tables of ``performance --explore`` and ``--sub-target-nodes``: what each switch would gain, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from projector.cli.inputs import Case
from projector.io.table import NONE, Column, Line, Table
from projector.projection import Projection, project
from projector.search.explore import Tried, walk

__all__ = ["as_document", "explored", "scaled", "table"]

_COLUMNS = (
    Column("category", numeric=False, minor=3),
    Column("change", numeric=False),
    Column("kept", numeric=False),
    Column("tokens/s/GPU"),
    Column("gain"),
    Column("90 % interval", minor=1),
    Column("moved", numeric=False),
    Column("memory", numeric=False, minor=2),
)


def explored(case: Case, mode: str) -> tuple[Projection, tuple[Tried, ...]]:
    """The walk from the case's configuration. Raises as :func:`project` does for the configuration itself."""
    return walk(case.workload, lambda w: project(w, case.cluster, mode, settings=case.settings))


def scaled(case: Case, nodes: int, projected: Callable[[Case], Projection]) -> tuple[Projection, float]:
    """The same job on ``nodes`` hosts with as many samples for each GPU, and the target's efficiency over it."""
    work = case.workload
    gpus = nodes * case.cluster.gpus_per_host
    recipe = replace(work.recipe, global_batch_size=max(1, work.recipe.global_batch_size * gpus // work.gpus))
    small, whole = projected(replace(case, workload=replace(work, gpus=gpus, recipe=recipe))), projected(case)
    return small, whole.tgs / small.tgs


def table(baseline: Projection, tried: Sequence[Tried]) -> Iterator[Line | Table]:
    """Every change tried, those that stay marked, and what they come to together."""
    yield Table(
        title="Exploration: each change alone on the best configuration before it",
        columns=_COLUMNS,
        rows=tuple(_row(t) for t in tried),
        note="* kept for the categories after it; moved: seconds of this step, or why there is none",
    )
    kept = [t.projection for t in tried if t.kept and t.projection]
    if kept:
        yield Line("")
        yield Line(
            f"Together: {kept[-1].tgs:.1f} tokens/s/GPU, {kept[-1].tgs / baseline.tgs:.2f} times the baseline", "bold"
        )


def _row(t: Tried) -> tuple[str, ...]:
    made = t.projection
    if made is None:
        return (t.change.category, t.change.label, "", NONE, NONE, NONE, t.reason, "")
    part, seconds = t.moved
    return (
        t.change.category,
        t.change.label,
        "*" if t.kept else "",
        f"{made.tgs:.1f}",
        f"{100 * t.gain:+.1f} %",
        f"{100 * t.low:+.1f} to {100 * t.high:+.1f} %",
        f"{part.removesuffix('_s')} {seconds:+.3f} s",
        made.memory.words,
    )


def as_document(baseline: Projection, tried: Sequence[Tried]) -> dict[str, Any]:
    """The walk as JSON values."""
    return {
        "baseline_tgs": baseline.tgs,
        "steps": [
            {
                "category": t.change.category,
                "change": t.change.label,
                "fields": dict(t.change.fields),
                "kept": t.kept,
                "tgs": t.projection.tgs if t.projection else None,
                "gain": t.gain if t.projection else None,
                "interval": [t.low, t.high] if t.projection else None,
                "moved": {"part": t.moved[0], "seconds": t.moved[1]} if t.projection else None,
                "fits": t.projection.memory.fits if t.projection else None,
                "memory_status": t.projection.memory.status if t.projection else None,
                "reason": t.reason,
            }
            for t in tried
        ],
    }
