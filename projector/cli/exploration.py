"""Makes the tables of ``performance --explore`` and ``--sub-target-nodes``: what each switch would gain, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from projector import pipeline
from projector.card import PARTS
from projector.cli.extra import Extra
from projector.cli.inputs import Case
from projector.io.table import Line, Table, figure, gib, number1, percent, signed, table_of, text, values
from projector.projection import Projection, project
from projector.search.explore import Tried, gains, singly, walk
from projector.search.symptoms import Symptom, symptoms
from projector.settle import launch
from projector.workload.workload import Workload

_COLUMNS = (
    text("category", "change.kind", minor=3),
    text("change", "change.label"),
    text("kept", lambda t: _kept_mark(t)),
    figure("tokens/s/GPU", "projection.tgs", number1),
    figure("gain", lambda t: signed(t.gain) if t.projection else None),
    figure("90 % interval", lambda t: f"{100 * t.low:+.1f} to {signed(t.high)}" if t.projection else None, minor=1),
    text("moved", lambda t: f"{t.moved[0].removesuffix('_s')} {t.moved[1]:+.3f} s" if t.projection else t.reason),
    figure("device GiB", "projection.memory.device", gib, minor=2),
    text("memory", "projection.memory.words", minor=2),
)


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
    yield _symptom_table(asked)
    title = "Exploration: each change alone on the best configuration before it"
    note = (
        "* kept for the categories after it; memory: not kept, since it may not fit; gain: as measured runs let expect it; "
        "moved: seconds of this step, or why there is none"
    )
    yield table_of(title, tried, _COLUMNS, note)
    framework, pipelined = baseline.resolved.workload.framework, baseline.resolved.workload.recipe.pp > 1
    runs = launch.schedules_of(framework)
    if others := [name for name in pipeline.names() if pipelined and name not in runs]:
        yield Line(f"Not in {framework}: {', '.join(others)} (projector schedules compares them)", "dim")
    kept = [t.projection for t in tried if t.kept and t.projection]
    if kept:
        times, low, high = (1.0 + x for x in gains(case.known.ratio(kept[-1], baseline), kept[-1], baseline))
        yield Line("")
        yield Line(
            f"Together: {kept[-1].tgs:.1f} tokens/s/GPU; expected {times:.2f} times the baseline ({low:.2f} to {high:.2f})",
            "bold",
        )


_ANSWER_COLUMNS = (
    text("part", lambda row: PARTS.get(row[0].part, row[0].part)),
    figure("share", lambda row: percent(row[0].share), minor=2),
    text(
        "switch", lambda row: row[1].change.label if row[1] else "nothing tried here shortens it by a tenth and gains"
    ),
    figure("shorter by", lambda row: percent(row[2]) if row[1] else None),
    figure("gain", lambda row: signed(row[1].gain) if row[1] else None),
    figure(
        "90 % interval", lambda row: f"{100 * row[1].low:+.1f} to {signed(row[1].high)}" if row[1] else None, minor=1
    ),
)


def _symptom_table(symptoms: Sequence[Symptom]) -> Table:
    rows = [(symptom, *answer) for symptom in symptoms for answer in (symptom.answers or ((None, 0.0),))]
    note = "shorter by: of the part, for the same tokens; gain: of the whole run, as measured runs let expect it"
    return table_of(
        "What takes the time, and which switch it asks for, each alone on the run as it is", rows, _ANSWER_COLUMNS, note
    )


def _kept_mark(tried: Tried) -> str:
    if tried.projection is None:
        return ""
    return "*" if tried.kept else "memory" if tried.projection.memory.order else ""


def _document(case: Case, baseline: Projection, tried: Sequence[Tried], asked: Sequence[Symptom]) -> dict[str, Any]:
    """Returns ``symptoms`` and the walk as JSON values; ``together``: expected gain of all that is kept, with its
    interval, or null where nothing is kept."""
    kept = [t.projection for t in tried if t.kept and t.projection]
    together = gains(case.known.ratio(kept[-1], baseline), kept[-1], baseline) if kept else ()
    return {
        "baseline_tgs": baseline.tgs,
        "symptoms": [
            {
                "part": symptom.part,
                "share": symptom.share,
                "answers": [
                    {"change": t.change.label, "shorter_by": less, "gain": t.gain, "interval": [t.low, t.high]}
                    for t, less in symptom.answers
                ],
            }
            for symptom in asked
        ],
        "together": dict(zip(("gain", "low", "high"), together, strict=True)) if kept else None,
        "steps": [
            values(t, "category=change.kind change=change.label")
            | {"fields": dict(t.change.fields)}
            | values(t, "kept tgs=projection.tgs")
            | {
                "gain": t.gain if t.projection else None,
                "interval": [t.low, t.high] if t.projection else None,
                "moved": {"part": t.moved[0], "seconds": t.moved[1]} if t.projection else None,
            }
            | values(t.projection, "fits=memory.fits device_bytes=memory.device memory_status=memory.status")
            | {"reason": t.reason}
            for t in tried
        ],
    }
