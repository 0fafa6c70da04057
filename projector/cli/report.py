"""The tables of ``performance`` and ``memory``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from projector.card import PARTS
from projector.cli import expected
from projector.cli.document import dp_scaling, most_hosts, rank_totals, stages, tokens_per_second
from projector.cli.inputs import Case
from projector.cli.leftover import counted, deciding, dropped, left_open, moot, some
from projector.expectation import memory_grade
from projector.io.table import Cell, Column, Line, Table, figure, gib, listed, number1, percent, seconds, text
from projector.memory.modules import by_module
from projector.projection import Projection
from projector.settle import launch
from projector.workload.layout import Chunk
from projector.workload.model import Model
from projector.workload.recipe import Recipe

if TYPE_CHECKING:
    from projector.cli.comparison import Row
    from projector.cli.performance import Projections

_MILLI = 1e3
#: How alternatives of one job are ranked.
ORDERED = "What fits stands first, then what is too close to tell, then what does not fit, the fastest first."
_MANY = 4  # alike stages from which on one line tells of all
_MFU = "MFU: model FLOPs of Megatron-LM's formula (April 2025) over the dense BF16 peak."


def performance(case: Case, made: Projections, help: Iterable[Line | Table] = ()) -> Iterator[Line | Table]:
    """Yields what ``performance`` shows, in order: the verdict, then what to expect, then how that comes about.
    ``help``: what would make it fit, which stands before all speeds of a run that cannot be."""
    first = made.first
    yield from head(case, first)
    yield verdict(case, first)
    impossible = first.memory.order == 2
    yield from help
    if impossible:
        yield Line("")
        yield Line("With memory enough it would be as follows.")
    yield from expected.lines(case, first)
    yield _summary(made)
    if made.timed:
        yield Line(made.timed)
    yield _job(case, first)
    if made.compared:
        yield from _schedules(case, made)
    yield _breakdown(case, made)
    yield _stages(made)
    yield Line("")
    yield from remarks(case, first)


def memory(case: Case, made: Projection, course: Iterable[Line] = ()) -> Iterator[Line | Table]:
    """Yields what ``memory`` shows, in order; ``course``: its lines on the memory through a step."""
    yield from head(case, made)
    yield verdict(case, made)
    grade, error = memory_grade(made, case.assumed), percent(made.memory.tolerance, 0)
    yield Line(f"Evidence: {grade}; the model of memory is good to {error}", "dim")
    yield from held(case, made)
    yield from course
    yield Line("")
    yield from remarks(case, made)


def held(case: Case, made: Projection) -> Iterator[Table]:
    """What every pipeline rank holds, and what the modules of a layer keep."""
    yield _ranks(case, made)
    yield _modules(made, by_module(made.resolved, case.cluster.gpu.arch))


def head(case: Case, made: Projection) -> Iterator[Line]:
    workload, cluster = made.resolved.workload, case.cluster
    recipe = workload.recipe
    yield Line(
        f"{workload.model.name} on {workload.gpus} × {cluster.gpu.title} (cluster {cluster.name}), {workload.framework}",
        "bold",
    )
    second = {"tp2": recipe.tp2} if recipe.tp2 > 1 else {}
    sizes = {"tp": recipe.tp, **second, "pp": recipe.pp, "vpp": recipe.vpp, "cp": recipe.cp, "dp": workload.dp}
    if workload.model.moe:
        sizes |= {"ep": recipe.ep, "etp": recipe.etp, "expert dp": workload.edp}
    domain = f" · in a fast domain {recipe.fast_domain}" if recipe.fast_domain else ""
    yield Line(" · ".join(f"{name} {size}" for name, size in sizes.items()) + domain)
    yield Line(
        f"sequence {recipe.seq_length}{_entering(recipe)}, micro-batch {recipe.micro_batch_size}, "
        f"global batch {recipe.global_batch_size} "
        f"({workload.num_microbatches} micro-batches a rank), {recipe.precision}, "
        + (f"schedule {made.timeline.compiled.schedule.name}, " if recipe.pp > 1 else "")
        + f"recompute {recipe.recompute_granularity}"
        + ("" if workload.alone else f", data-parallel sharding {recipe.data_parallel_sharding}")
    )


def _entering(recipe: Recipe) -> str:
    return f" (encoder {recipe.encoder_seq_length})" if recipe.encoder_seq_length else ""


def _summary(made: Projections) -> Table:
    notes = [_MFU, *(f"{mode}: {reason}." for mode, reason in made.refused.items())]
    if len(made.by_mode) == 2:
        simulated, measured = made.by_mode.values()
        notes.append(f"simulate against benchmark: {100 * (simulated.tgs / measured.tgs - 1):+.1f} % tokens/s/GPU.")
    columns = (
        text("mode", "mode"),
        figure("step s", "made.step_seconds", seconds),
        figure("tokens/s/GPU", "made.tgs", number1),
        figure("MFU", "made.mfu", percent),
        figure("bubble", "made.bubble", percent, minor=1),
        figure("measured kernels", "made.measured_share", percent, minor=1),
    )
    modes = {**made.by_mode, **dict.fromkeys(made.refused)}
    return listed("Projection", ({"mode": m, "made": p} for m, p in modes.items()), columns, " ".join(notes))


def _job(case: Case, made: Projection) -> Line:
    fewest, factor = dp_scaling(case, made)
    most, work = most_hosts(case, made), made.resolved.workload
    hosts, left = f"{most:,} hosts" if most > 1 else "1 host", work.num_microbatches
    room = (
        f"this batch keeps up to {hosts} busy ({left} micro-batches a rank now)"
        if left > 1
        else f"no more micro-batches: at most {hosts} {'are' if most > 1 else 'is'} useful"
    )
    return Line(
        f"Job: {tokens_per_second(made):,.0f} tokens/s; {room}; "
        f"DP scaling factor {float(f'{factor:.4g}'):,.9g} (dp {work.dp}, {fewest} on the fewest hosts)"
    )


def _schedules(case: Case, made: Projections) -> Iterator[Line | Table]:
    columns = (
        text("schedule", "schedule"),
        figure("vpp", "vpp"),
        figure("step s", "projection.step_seconds", seconds),
        *expected.columns(case),
        figure("tokens/s/GPU", "projection.tgs", number1, minor=2),
        figure("bubble", "projection.bubble", percent, minor=1),
        figure("device GiB", "projection.memory.device", gib),
        text("verdict", "projection.memory.words"),
    )
    found = made.first.timeline.compiled.schedule
    note = f"Everything else here is of {found.name}, {found.vpp} chunks a rank. {ORDERED}"
    yield from by_framework("Schedules", case, made.compared, columns, note)


def by_framework(
    title: str, case: Case, rows: Sequence[Row], columns: Sequence[Cell], note: str
) -> Iterator[Line | Table]:
    """A table of the schedules that the framework of the job runs, one of the others, and one line for every reason to
    refuse, with the schedules that it keeps out."""
    framework = case.workload.framework
    others = (f"Not in {framework}: schedules that it does not run", "")
    for runs, (words, below) in ((True, (f"{title} that {framework} runs", note)), (False, others)):
        if own := [row for row in rows if row.runs is runs]:
            yield listed(words, own, columns, below)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.projection is None:
            reasons.setdefault(row.reason, []).append(f"{row.schedule} (vpp {row.vpp})")
    if reasons:
        yield Line("")
    for reason, names in reasons.items():
        yield Line(f"Refused: {', '.join(names)}: {reason}", "dim")


def _breakdown(case: Case, made: Projections) -> Table:
    """Seconds on the rank that works longest, and how much of the uncertainty of the step is each part's; parts that
    are zero in every mode are left out."""
    bars = expected.bars(expected.expectation(case, made.first))
    each = list(made.by_mode.items())
    columns = [Column("part", numeric=False)]
    for mode, _ in each:
        words = f" ({mode})" if len(each) > 1 else ""
        columns += [Column(f"seconds{words}"), Column("share")]
    columns.append(Column("uncertain by", numeric=False))
    rows = []
    for key in made.first.breakdown:
        if not any(p.breakdown[key] for _, p in each):
            continue
        row = [PARTS.get(key, key)]
        for _, p in each:
            row += [f"{p.breakdown[key]:.4f}", percent(p.breakdown[key] / p.step_seconds)]
        rows.append((*row, bars.get(key, "")))
    total = ["step"]
    for _, p in each:
        total += [f"{p.step_seconds:.4f}", percent(1.0)]
    title = "Where the step goes (exposed seconds on the busiest rank)"
    return Table(title=title, columns=tuple(columns), rows=(*rows, (*total, bars["step"])), total=True)


def _stages(made: Projections) -> Table:
    each = list(made.by_mode.items())
    columns = [Column("stage"), Column("rank"), Column("chunk"), Column("holds", numeric=False)]
    for mode, _ in each:
        words = f" ({mode})" if len(each) > 1 else ""
        columns += [Column(f"forward ms{words}"), Column(f"backward ms{words}")]
    found = [stages(p) for _, p in each]
    tower = _tower(each[0][1].resolved.workload.model)
    rows = []
    for i, (chunk, _, _) in enumerate(found[0]):
        times = [f"{each * _MILLI:.2f}" for of_mode in found for each in of_mode[i][1:]]
        plain = len(chunk.layers) if chunk == replace(chunk, embedding=False, head=False, mtp=0) else 0
        rows.append((plain, times, (i, chunk)))
    groups = (list(alike) for _, alike in groupby(rows, key=lambda row: row[:2]))
    lines = (line for alike in groups for line in _folded(alike, tower))
    return Table(title="Pipeline stages (one micro-batch)", columns=tuple(columns), rows=tuple(lines))


def _folded(alike: Sequence[tuple[int, list[str], tuple[int, Chunk]]], tower: str) -> Iterator[tuple[str, ...]]:
    """A line a stage; one for many that hold as many layers and take as long."""
    layers, times, (first, begin) = alike[0]
    last, end = alike[-1][2]
    if layers and len(alike) >= _MANY:
        held = f"layers {begin.layers[0]}–{end.layers[-1]}, {layers} each"
        chunks = f"{begin.index}–{end.index}" if end.index > begin.index else str(begin.index)
        yield (f"{first}–{last}", "each", chunks, held, *times)
        return
    for _, _, (stage, chunk) in alike:
        yield (str(stage), str(chunk.rank), str(chunk.index), _holds(chunk, tower), *times)


def _tower(model: Model) -> str:
    """``encoder of 24 layers``: the stack before the model's own."""
    kinds = model.tower_kinds
    return f"{kinds[0].tower.name} of {len(kinds)} layers" if kinds and kinds[0].tower else ""


def _holds(chunk: Chunk, tower: str) -> str:
    """``embedding, layers 0–3``: what stands on a stage."""
    parts = [tower] if tower and chunk.embedding else []
    parts += ["embedding"] if chunk.embedding else []
    if chunk.layers:
        parts.append(f"layer{'s' if len(chunk.layers) > 1 else ''} {_ranges(chunk.layers)}")
    if chunk.mtp:
        parts.append("token prediction" if chunk.mtp == 1 else f"{chunk.mtp} × token prediction")
    if chunk.head:
        parts.append("loss")
    return ", ".join(parts) or "nothing"


def _ranges(numbers: tuple[int, ...]) -> str:
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    runs = [numbers[a:b] for a, b in pairwise(cuts)]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _ranks(case: Case, made: Projection) -> Table:
    plan = made.memory
    shown = [name for name in plan.components if any(rank.components[name] for rank in plan.ranks)]
    # Where space is short, the largest components stay longest.
    largest = sorted(shown, key=lambda name: -max(rank.components[name] for rank in plan.ranks))
    columns = (
        figure("rank", "rank"),
        figure("parameters", lambda rank: f"{rank.parameters / 1e9:.2f}e9", minor=1 + len(largest)),
        *(figure(name.replace("_", " "), f"components.{name}", gib, minor=1 + largest.index(name)) for name in shown),
        figure("allocated", "allocated", gib),
        figure("reserved", lambda rank: gib(rank_totals(case, made, rank.held)[0])),
        figure("device", lambda rank: gib(rank_totals(case, made, rank.held)[1])),
        text("peak", "event", minor=99),
    )
    note = (
        "allocated: live tensors; reserved: with the allocator's cache; device: with context and communication buffers."
    )
    return listed("Peak memory of every pipeline rank, GiB", plan.ranks, columns, note)


def _of_module(found: Sequence[Mapping[str, float]], name: str, rank: int) -> float | None:
    return found[rank].get(name)


_MODULES = ("attention", "recurrent", "mlp", "experts", "embedding", "head", "mtp", "between")


def _modules(made: Projection, found: Sequence[Mapping[str, float]]) -> Table:
    """Where the activations are, rank by rank."""
    shown = [name for name in _MODULES if any(name in of_rank for of_rank in found)]
    kept = [sum(of_rank.values()) for of_rank in found]
    columns = (
        figure("rank", int),
        *(figure(name, partial(_of_module, found, name), gib) for name in shown),
        figure("a micro-batch", lambda rank: kept[rank], gib),
        figure("at the peak", lambda rank: made.memory.ranks[rank].components["activations"], gib),
        figure("micro-batches alive", lambda rank: alive(rank), number1, minor=1),
    )

    def alive(rank: int) -> float | None:
        return made.memory.ranks[rank].components["activations"] / kept[rank] if kept[rank] else None

    note = (
        "head: norm, logits, loss; experts: with router, exchange and shared experts; between: what enters stages and "
        "recomputed layers"
    )
    return listed("Activations that one micro-batch keeps, by module, GiB", range(len(found)), columns, f"{note}.")


def verdict(case: Case, made: Projection) -> Line:
    """Returns whether it fits, and by how much."""
    plan = made.memory
    return Line(
        f"{plan.verdict}; at least {gib(plan.required)} GiB needed, {gib(plan.device)} GiB expected, "
        f"of {gib(plan.usable)} GiB usable on {case.cluster.gpu.name}",
        ("good", "", "bad")[plan.order],
    )


def remarks(case: Case, made: Projection) -> Iterator[Line]:
    left = left_open(case.workload, made.resolved, case.cluster.gpu.arch)
    for name, items in (
        ("Assumed", (*case.assumed, *made.assumed, *launch.foreign(made.resolved.workload))),
        ("Assumed where nothing is said", deciding(left, case.workload, made, case.settings)),
        ("Without effect", (*moot(case.workload.recipe, made.resolved.workload.recipe), *case.moot)),
        ("Set", (*case.changes, *made.settings)),
        ("Cluster", case.notes),
        ("Not modelled", some((*case.unmodelled, *dropped(made.resolved)))),
        ("Not used", counted(case.ignored)),
    ):
        for item in items:
            yield Line(f"{name}: {item}", "dim")
