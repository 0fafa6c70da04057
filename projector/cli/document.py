"""Makes the JSON documents of the command line: a public, versioned contract. SI units: seconds, bytes, FLOP/s."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from projector.cli import expected
from projector.cli.inputs import Case
from projector.cli.setting_remarks import left_open, unpriced_dropout
from projector.expectation import memory_grade
from projector.io.table import values
from projector.memory.modules import by_module
from projector.memory.verdict import verdict
from projector.projection import Projection
from projector.settle import launch
from projector.workload.layout import Chunk, chunks
from projector.workload.parameters import count
from projector.workload.structure import to_mapping

if TYPE_CHECKING:
    from projector.cli.comparison import Row
    from projector.cli.performance import Projections

SCHEMA_VERSION = 1


def performance(case: Case, made: Projections) -> dict[str, Any]:
    """Returns ``projections`` by mode (``breakdown`` sums to ``step_seconds``), one memory plan, and what was assumed."""
    projections: dict[str, Any] = {mode: _projection(case, item) for mode, item in made.by_mode.items()}
    projections |= {mode: {"status": "no-measurement", "reason": why} for mode, why in made.refused.items()}
    content = head("performance", case, made.first) | {"projections": projections, "memory": _plan(case, made.first)}
    if made.timed:
        content["timed"] = made.timed
    if made.compared:
        content["schedules"] = [_schedule(case, row) for row in made.compared]
    return content


def _schedule(case: Case, row: Row) -> dict[str, Any]:
    made = row.projection
    if made is None:
        return {**values(row, "schedule vpp"), "status": "invalid", "reason": row.reason}
    status = {"status": "ok" if made.memory.fits else "out-of-memory"}
    estimate = {"expected": expected.as_document(expected.expectation(case, made))}
    step, rest = values(made, "step_seconds tgs"), values(made, "bubble device_bytes=memory.device")
    return {**values(row, "schedule vpp in_framework=runs"), **status, **step, **estimate, **rest}


def memory(case: Case, projection: Projection) -> dict[str, Any]:
    """Returns the memory of every pipeline rank: ``components`` sum to ``allocated``, all in bytes;
    ``activations_by_module``: bytes of one micro-batch on each rank."""
    modules = [dict(of_rank) for of_rank in by_module(projection.resolved, case.cluster.gpu.arch)]
    return head("memory", case, projection) | {"memory": _plan(case, projection), "activations_by_module": modules}


def rank_totals(case: Case, projection: Projection, held: float) -> tuple[float, float]:
    """Returns (reserved, device) bytes of a rank whose allocator sees ``held`` bytes."""
    sizes = verdict(projection.resolved, held, case.cluster.gpu)
    return sizes.reserved, sizes.device


def stages(projection: Projection) -> tuple[tuple[Chunk, float, float], ...]:
    """Returns (the chunk of the model on it, forward seconds, backward seconds) of every virtual stage in pipeline
    order, placed on the ranks as the schedule folds them."""
    workload, schedule = projection.resolved.workload, projection.timeline.compiled.schedule
    layout = chunks(workload.model, workload.recipe)
    places = schedule.home
    placed = [replace(chunk, rank=rank, index=at) for chunk, (rank, at) in zip(layout, places, strict=True)]
    return tuple((chunk, *times) for chunk, times in zip(placed, projection.stage_seconds, strict=True))


def tokens_per_second(projection: Projection) -> float:
    """Returns the tokens/s of all GPUs together."""
    return projection.tgs * projection.resolved.workload.gpus


def most_hosts(case: Case, projection: Projection) -> int:
    """Returns the hosts up to which data parallelism has a micro-batch for each of its ranks."""
    recipe = projection.resolved.workload.recipe
    replicas = recipe.global_batch_size // recipe.micro_batch_size
    return max(1, replicas * recipe.replica_ranks // case.cluster.gpus_per_host)


def dp_scaling(case: Case, projection: Projection) -> tuple[int, float]:
    """Returns the data-parallel ranks on the fewest hosts that hold the parallel groups, and how many times as many the
    job has: the "DP scaling factor" of Primus (AMD-AGI/Primus primus/core/projection/performance_projection: context
    parallelism counts as part of expert parallelism where there are experts)."""
    work = projection.resolved.workload
    recipe, host = work.recipe, case.cluster.gpus_per_host
    groups = recipe.tp * recipe.tp2 * recipe.pp * max(recipe.cp, recipe.etp * recipe.ep if work.model.moe else 1)
    least = math.ceil(groups / host) * host
    ranks = max(1, least // recipe.replica_ranks)
    return ranks, work.dp / ranks


def head(command: str, case: Case, projection: Projection) -> dict[str, Any]:
    workload, cluster = projection.resolved.workload, case.cluster
    counted = count(workload.model)
    minimum, scaling = dp_scaling(case, projection)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "config": case.config,
        "model": {"name": workload.model.name, "parameters": counted.main, "active_parameters": counted.active},
        "framework": {"name": workload.framework, "date": workload.framework_date or None},
        "cluster": {"name": cluster.name, "gpu": cluster.gpu.name, "gpus": workload.gpus}
        | values(cluster, "gpus_per_host"),
        "recipe": to_mapping(workload.recipe),
        "parallelism": values(workload.recipe, "tp tp2 pp vpp cp ep etp") | values(workload, "dp edp"),
        "derived": {
            **values(workload, "num_microbatches tokens_per_step"),
            "schedule": projection.timeline.compiled.schedule.name,
            "minimum_dp": minimum,
            "dp_scaling_factor": scaling,
            "most_useful_hosts": most_hosts(case, projection),
        },
        "assumed": [*case.assumed, *projection.assumed, *launch.unsupported_by_framework(workload)],
        "left_to_framework": dict(left_open(case.workload, projection.resolved, cluster.gpu.arch)),
        "settings": [*case.changes, *projection.settings],
        "unmodelled": [*case.unmodelled, *unpriced_dropout(projection.resolved)],
        "without_effect": list(case.moot),
        "ignored": list(case.ignored),
        "notes": list(case.notes),
    }


def _projection(case: Case, projection: Projection) -> dict[str, Any]:
    timed = ((c, {"forward_seconds": f, "backward_seconds": b}) for c, f, b in stages(projection))
    return {
        "status": "ok" if projection.memory.fits else "out-of-memory",
        **values(projection, "step_seconds tgs"),
        "tokens_per_second": tokens_per_second(projection),
        **values(projection, "mfu bubble measured_share"),
        "expected": expected.as_document(expected.expectation(case, projection)),
        "breakdown": dict(projection.breakdown),
        "stages": [
            {"stage": i, **values(chunk, "rank chunk=index layers embedding mtp_layers=mtp head"), **times}
            for i, (chunk, times) in enumerate(timed)
        ],
    }


def _plan(case: Case, projection: Projection) -> dict[str, Any]:
    plan = projection.memory
    ranks = []
    for rank in plan.ranks:
        components = {name: float(size) for name, size in rank.components.items()}
        totals = zip(("reserved", "device"), rank_totals(case, projection, rank.held), strict=True)
        sizes = {"allocated": float(rank.allocated)} | {name: float(size) for name, size in totals}
        ranks.append({**values(rank, "rank parameters event"), "components": components, **sizes})
    return {
        "status": plan.status,
        "fits": bool(plan.fits),
        "tolerance": float(plan.tolerance),
        "evidence": memory_grade(projection, case.assumed),
        **{name: float(getattr(plan, name)) for name in ("allocated", "reserved", "device", "required", "usable")},
        "margin": float(plan.margin_bytes),
        "ranks": ranks,
    }
