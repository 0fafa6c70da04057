"""Makes the tables of ``performance --explore`` and ``--sub-target-nodes``: what each switch would gain, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from projector import pipeline
from projector.card import PARTS
from projector.cli.extra import Extra
from projector.cli.inputs import Case
from projector.cli.tables import tabled
from projector.io.table import Line, Table, signed, values
from projector.projection import Projection, project
from projector.search.explore import Tried, gains, singly, walk
from projector.search.symptoms import Symptom, symptoms
from projector.settle import launch
from projector.workload.workload import Workload


def _interval(tried: Tried) -> str:
    return f"{100 * tried.low:+.1f} to {signed(tried.high)}"


def _kept(tried: Tried) -> str:
    return "*" if tried.kept else "memory" if tried.projection and tried.projection.memory.order else ""


def _moved(tried: Tried) -> str:
    part, more = tried.moved
    return f"{part.removesuffix('_s')} {more:+.3f} s" if tried.projection else tried.reason


def extra(case: Case, mode: str) -> Extra:
    """Returns what each change of the case's run would gain. Raises as :func:`project` does for the run itself."""

    def projected(workload: Workload) -> Projection:
        return project(workload, case.cluster, mode, settings=case.settings)

    baseline, tried = walk(case.workload, case.cluster.gpu, projected, case.known)
    asked = tuple(symptoms(baseline, singly(case.workload, case.cluster.gpu, projected, case.known)))
    return Extra(tuple(_blocks(case, baseline, tried, asked)), {"exploration": _document(case, baseline, tried, asked)})


def scaled(case: Case, nodes: int, projected: Callable[[Case], Projection]) -> tuple[Projection, float]:
    """Returns the projection of the same job on ``nodes`` hosts with as many samples for each GPU, and the ratio of the
    whole job's tokens/s/GPU to it."""
    work = case.workload
    gpus = nodes * case.cluster.gpus_per_host
    recipe = replace(work.recipe, global_batch_size=max(1, work.recipe.global_batch_size * gpus // work.gpus))
    small, whole = projected(replace(case, workload=replace(work, gpus=gpus, recipe=recipe))), projected(case)
    return small, whole.tgs / small.tgs


def _blocks(
    case: Case, baseline: Projection, tried: Sequence[Tried], asked: Sequence[Symptom]
) -> Iterator[Line | Table]:
    """Yields what the largest parts ask for, every change tried with a mark on those kept, and the gain of those
    together."""
    rows = [(symptom, *answer) for symptom in asked for answer in (symptom.answers or ((None, 0.0),))]
    yield tabled(
        "symptoms",
        rows,
        named=lambda part: PARTS.get(part, part),
        switch=lambda row: row[1].change.label if row[1] else _NO_SWITCH,
        less=lambda row: row[2] if row[1] else None,
        interval=_interval,
    )
    yield tabled(
        "exploration",
        tried,
        kept=_kept,
        gain=lambda t: t.gain if t.projection else None,
        interval=lambda t: _interval(t) if t.projection else None,
        moved=_moved,
    )
    framework, pipelined = baseline.resolved.workload.framework, baseline.resolved.workload.recipe.pp > 1
    runs = launch.schedules_of(framework)
    if others := [name for name in pipeline.names() if pipelined and name not in runs]:
        yield Line(f"Not in {framework}: {', '.join(others)} (projector schedules compares them)", "dim")
    kept, together = _together(case, baseline, tried)
    if kept:
        times = "{:.2f} times the baseline ({:.2f} to {:.2f})".format(*(1.0 + gain for gain in together))
        yield Line("")
        yield Line(f"Together: {kept.tgs:.1f} tokens/s/GPU; expected {times}", "bold")


def _together(
    case: Case, baseline: Projection, tried: Sequence[Tried]
) -> tuple[Projection | None, tuple[float, float, float]]:
    """Returns the run with all that is kept, if anything is, and its expected gain with its interval."""
    kept = next((t.projection for t in reversed(tried) if t.kept and t.projection), None)
    return kept, gains(case.known.ratio(kept, baseline), kept, baseline) if kept else (0.0, 0.0, 0.0)


_NO_SWITCH = "nothing tried here shortens it by a tenth and gains"


def _document(case: Case, baseline: Projection, tried: Sequence[Tried], asked: Sequence[Symptom]) -> dict[str, Any]:
    """Returns ``symptoms`` and the walk as JSON values; ``together``: expected gain of all that is kept, with its
    interval, or null where nothing is kept."""
    kept, together = _together(case, baseline, tried)

    def gain(t: Tried) -> dict[str, Any]:
        return {"gain": t.gain, "interval": [t.low, t.high]} if t.projection else {"gain": None, "interval": None}

    def step(t: Tried) -> dict[str, Any]:
        change = values(t, "category=change.kind change=change.label") | {"fields": dict(t.change.fields)}
        figures = values(t, "kept tgs=projection.tgs") | gain(t)
        moved = {"part": t.moved[0], "seconds": t.moved[1]} if t.projection else None
        memory = values(t.projection, "fits=memory.fits device_bytes=memory.device memory_status=memory.status")
        return {**change, **figures, "moved": moved, **memory, "reason": t.reason}

    def answers(symptom: Symptom) -> list[dict[str, Any]]:
        return [{"change": t.change.label, "shorter_by": less, **gain(t)} for t, less in symptom.answers]

    return {
        "baseline_tgs": baseline.tgs,
        "symptoms": [values(symptom, "part share") | {"answers": answers(symptom)} for symptom in asked],
        "together": dict(zip(("gain", "low", "high"), together, strict=True)) if kept else None,
        "steps": [step(t) for t in tried],
    }
