"""Makes the tables of ``performance`` and ``memory``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from projector.card import PARTS
from projector.cli import expected, setting_remarks
from projector.cli.document import dp_scaling, most_hosts, rank_totals, stages, tokens_per_second
from projector.cli.inputs import Case
from projector.cli.tables import tabled
from projector.expectation import memory_grade
from projector.io.table import Cell, Column, Line, Table, figure, gib, percent
from projector.memory.modules import by_module
from projector.projection import Projection
from projector.settle import launch
from projector.workload.layout import Chunk

if TYPE_CHECKING:
    from projector.cli.comparison import Row
    from projector.cli.performance import Projections

_MILLI = 1e3
#: How alternatives of one job are ranked.
ORDERED = "What fits stands first, then what is too close to tell, then what does not fit, the fastest first."
_MANY = 4  # equal stages from which on one line stands for all
_MFU = "MFU: model FLOPs of Megatron-LM's formula (April 2025) over the dense BF16 peak."


def performance(case: Case, projections: Projections, help: Iterable[Line | Table] = ()) -> Iterator[Line | Table]:
    """Yields what ``performance`` shows, in order: the verdict, then what to expect, then how that comes about.
    ``help``: what would make it fit, which stands before all speeds of a run that cannot be."""
    first = projections.first
    yield from head(case, first)
    yield verdict(case, first)
    impossible = first.memory.order == 2
    yield from help
    if impossible:
        yield Line("")
        yield Line("With memory enough it would be as follows.")
    yield from expected.lines(case, first)
    yield _mode_table(projections)
    if projections.timed:
        yield Line(projections.timed)
    yield _job_line(case, first)
    if projections.compared:
        yield from _schedule_tables(case, projections)
    yield _breakdown_table(case, projections)
    yield _stage_table(projections)
    yield Line("")
    yield from remarks(case, first)


def memory(case: Case, projection: Projection, course: Iterable[Line] = ()) -> Iterator[Line | Table]:
    """Yields what ``memory`` shows, in order; ``course``: its lines on the memory through a step."""
    yield from head(case, projection)
    yield verdict(case, projection)
    grade, error = memory_grade(projection, case.assumed), percent(projection.memory.tolerance, 0)
    yield Line(f"Evidence: {grade}; the model of memory is good to {error}", "dim")
    yield from held(case, projection)
    yield from course
    yield Line("")
    yield from remarks(case, projection)


def held(case: Case, projection: Projection) -> Iterator[Table]:
    """Yields a table of what every pipeline rank holds, and one of what the modules of a layer keep."""
    yield _rank_table(case, projection)
    yield _module_table(projection, by_module(projection.resolved, case.cluster.gpu.arch))


def head(case: Case, projection: Projection) -> Iterator[Line]:
    workload, cluster = projection.resolved.workload, case.cluster
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
    encoder = f" (encoder {recipe.encoder_seq_length})" if recipe.encoder_seq_length else ""
    words = [f"sequence {recipe.seq_length}{encoder}", f"micro-batch {recipe.micro_batch_size}"]
    words.append(f"global batch {recipe.global_batch_size} ({workload.num_microbatches} micro-batches a rank)")
    words += [recipe.precision, *([f"schedule {projection.timeline.compiled.schedule.name}"] if recipe.pp > 1 else [])]
    words.append(f"recompute {recipe.recompute_granularity}")
    words += [] if workload.alone else [f"data-parallel sharding {recipe.data_parallel_sharding}"]
    yield Line(", ".join(words))


def _mode_table(projections: Projections) -> Table:
    notes = [_MFU, *(f"{mode}: {reason}." for mode, reason in projections.refused.items())]
    if len(projections.by_mode) == 2:
        simulated, measured = projections.by_mode.values()
        notes.append(f"simulate against benchmark: {100 * (simulated.tgs / measured.tgs - 1):+.1f} % tokens/s/GPU.")
    modes = {**projections.by_mode, **dict.fromkeys(projections.refused)}
    rows = ({"mode": mode, "projection": projection} for mode, projection in modes.items())
    return tabled("modes", rows, notes=" ".join(notes))


def _job_line(case: Case, projection: Projection) -> Line:
    fewest, factor = dp_scaling(case, projection)
    most, work = most_hosts(case, projection), projection.resolved.workload
    hosts, micro_batches = f"{most:,} hosts" if most > 1 else "1 host", work.num_microbatches
    batch_words = f"this batch keeps up to {hosts} busy ({micro_batches} micro-batches a rank now)"
    if micro_batches == 1:
        batch_words = f"no more micro-batches: at most {hosts} {'are' if most > 1 else 'is'} useful"
    scaling = f"DP scaling factor {float(f'{factor:.4g}'):,.9g} (dp {work.dp}, {fewest} on the fewest hosts)"
    return Line(f"Job: {tokens_per_second(projection):,.0f} tokens/s; {batch_words}; {scaling}")


def _schedule_tables(case: Case, projections: Projections) -> Iterator[Line | Table]:
    schedule = projections.first.timeline.compiled.schedule
    note = f"Everything else here is of {schedule.name}, {schedule.vpp} chunks a rank. {ORDERED}"
    cells = expected.columns(case)
    yield from by_framework("compared_schedules", case, projections.compared, "Schedules", note, expected=cells)


def by_framework(
    key: str, case: Case, rows: Sequence[Row], title: str, note: str, **known: object
) -> Iterator[Line | Table]:
    """Yields a table of the schedules that the framework of the job runs, one of the others, and one line for every
    reason to refuse, with the schedules that it keeps out."""
    framework = case.workload.framework
    others = (f"Not in {framework}: schedules that it does not run", "")
    for runs, (words, below) in ((True, (f"{title} that {framework} runs", note)), (False, others)):
        if shown := [row for row in rows if row.runs is runs]:
            yield tabled(key, shown, title=words, note=below, **known)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.projection is None:
            reasons.setdefault(row.reason, []).append(f"{row.schedule} (vpp {row.vpp})")
    if reasons:
        yield Line("")
    for reason, names in reasons.items():
        yield Line(f"Refused: {', '.join(names)}: {reason}", "dim")


def _breakdown_table(case: Case, projections: Projections) -> Table:
    """Returns the seconds of each part on the rank that works longest, and how much of the step's uncertainty is each
    part's; parts that are zero in every mode are left out."""
    bars = expected.bars(expected.expectation(case, projections.first))
    modes = projections.by_mode
    several = len(modes) > 1

    def seconds_of(part: str, made: Projection) -> float:
        return made.step_seconds if part == "step" else made.breakdown[part]

    def of_mode(mode: str, made: Projection) -> tuple[Cell, Cell]:
        return (
            figure(f"seconds ({mode})" if several else "seconds", lambda part: f"{seconds_of(part, made):.4f}"),
            figure("share", lambda part: percent(seconds_of(part, made) / made.step_seconds)),
        )

    parts = [part for part in projections.first.breakdown if any(made.breakdown[part] for made in modes.values())]
    cells = [cell for mode, made in modes.items() for cell in of_mode(mode, made)]
    names = {"named": lambda part: PARTS.get(part, part), "uncertain": lambda part: bars.get(part, "")}
    return tabled("breakdown", [*parts, "step"], modes=cells, **names)


def _stage_table(projections: Projections) -> Table:
    each = list(projections.by_mode.items())
    columns = [Column("stage"), Column("rank"), Column("chunk"), Column("holds", numeric=False)]
    for mode, _ in each:
        words = f" ({mode})" if len(each) > 1 else ""
        columns += [Column(f"forward ms{words}"), Column(f"backward ms{words}")]
    stages_by_mode = [stages(p) for _, p in each]
    kinds = each[0][1].resolved.workload.model.tower_kinds
    tower = f"{kinds[0].tower.name} of {len(kinds)} layers" if kinds and kinds[0].tower else ""
    rows = []
    for i, (chunk, _, _) in enumerate(stages_by_mode[0]):
        times = [f"{each * _MILLI:.2f}" for of_mode in stages_by_mode for each in of_mode[i][1:]]
        plain = len(chunk.layers) if chunk == replace(chunk, embedding=False, head=False, mtp=0) else 0
        rows.append((plain, times, (i, chunk)))
    groups = (list(group) for _, group in groupby(rows, key=lambda row: row[:2]))
    lines = (line for group in groups for line in _stage_rows(group, tower))
    return Table(title="Pipeline stages (one micro-batch)", columns=tuple(columns), rows=tuple(lines))


def _stage_rows(group: Sequence[tuple[int, list[str], tuple[int, Chunk]]], tower: str) -> Iterator[tuple[str, ...]]:
    """Yields a row for each stage, and one row for many stages that hold as many layers and take as long."""
    layers, times, (first, begin) = group[0]
    last, end = group[-1][2]
    if layers and len(group) >= _MANY:
        contents = f"layers {begin.layers[0]}–{end.layers[-1]}, {layers} each"
        chunks = f"{begin.index}–{end.index}" if end.index > begin.index else str(begin.index)
        yield (f"{first}–{last}", "each", chunks, contents, *times)
        return
    for _, _, (stage, chunk) in group:
        yield (str(stage), str(chunk.rank), str(chunk.index), _chunk_words(chunk, tower), *times)


def _chunk_words(chunk: Chunk, tower: str) -> str:
    """Returns ``embedding, layers 0–3``: what stands on a stage."""
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


def _rank_table(case: Case, projection: Projection) -> Table:
    plan = projection.memory
    shown = [name for name in plan.components if any(rank.components[name] for rank in plan.ranks)]
    # Where space is short, the largest components stay longest.
    largest = sorted(shown, key=lambda name: -max(rank.components[name] for rank in plan.ranks))
    components = [
        figure("parameters", lambda rank: f"{rank.parameters / 1e9:.2f}e9", minor=1 + len(largest)),
        *(figure(name.replace("_", " "), f"components.{name}", gib, minor=1 + largest.index(name)) for name in shown),
    ]
    return tabled(
        "ranks",
        plan.ranks,
        components=components,
        reserved=lambda rank: rank_totals(case, projection, rank.held)[0],
        device=lambda rank: rank_totals(case, projection, rank.held)[1],
    )


_MODULES = ("attention", "recurrent", "mlp", "experts", "embedding", "head", "mtp", "between")


def _module_table(projection: Projection, by_rank: Sequence[Mapping[str, float]]) -> Table:
    """Returns the activations of one micro-batch by module, rank by rank."""
    shown = [name for name in _MODULES if any(name in modules for modules in by_rank)]
    totals = [sum(modules.values()) for modules in by_rank]
    at_peak = [rank.components["activations"] for rank in projection.memory.ranks]
    rows = [
        {
            **dict.fromkeys(shown),
            **modules,
            "rank": rank,
            "total": total,
            "peak": peak,
            "alive": peak / total if total else None,
        }
        for rank, (modules, total, peak) in enumerate(zip(by_rank, totals, at_peak, strict=False))
    ]
    return tabled("modules", rows, modules=[figure(name, name, gib) for name in shown])


def verdict(case: Case, projection: Projection) -> Line:
    """Returns whether the run fits, and by how much."""
    plan = projection.memory
    how = "taken at the start" if projection.resolved.execution.allocator.planned else "expected"
    return Line(
        f"{plan.verdict}; at least {gib(plan.required)} GiB needed, {gib(plan.device)} GiB {how}, "
        f"of {gib(plan.usable)} GiB usable on {case.cluster.gpu.name}",
        ("good", "", "bad")[plan.order],
    )


def remarks(case: Case, projection: Projection) -> Iterator[Line]:
    settled, dropout = projection.resolved.workload, setting_remarks.unpriced_dropout(projection.resolved)
    left = setting_remarks.left_open(case.workload, projection.resolved, case.cluster.gpu.arch)
    for name, items in (
        ("Assumed", (*case.assumed, *projection.assumed, *launch.unsupported_by_framework(settled))),
        ("Assumed where nothing is said", setting_remarks.open_remark(left, case.workload, projection, case.settings)),
        ("Without effect", (*setting_remarks.moot_remark(case.workload.recipe, settled.recipe), *case.moot)),
        ("Set", (*case.changes, *projection.settings)),
        ("Cluster", case.notes),
        ("Not modelled", setting_remarks.unmodelled_remark((*case.unmodelled, *dropout))),
        ("Not used", setting_remarks.ignored_remark(case.ignored)),
    ):
        for item in items:
            yield Line(f"{name}: {item}", "dim")
