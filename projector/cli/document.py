"""The JSON documents of the command line: a public, versioned contract. SI units: seconds, bytes, FLOP/s."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from projector.cli import expected
from projector.cli.inputs import Case
from projector.cli.leftover import dropped, left_open
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
    from projector.cli.performance import Projections

SCHEMA_VERSION = 1


def performance(case: Case, made: Projections) -> dict[str, Any]:
    """``projections`` by mode (``breakdown`` sums to ``step_seconds``), one memory plan, what was assumed."""
    projections: dict[str, Any] = {mode: _projection(case, item) for mode, item in made.by_mode.items()}
    projections |= {mode: {"status": "no-measurement", "reason": why} for mode, why in made.refused.items()}
    content = head("performance", case, made.first) | {"projections": projections, "memory": _plan(case, made.first)}
    if made.timed:
        content["timed"] = made.timed
    if made.compared:
        content["schedules"] = [
            {"schedule": item.schedule, "vpp": item.vpp, "status": "invalid", "reason": item.reason}
            if item.projection is None
            else values(item, "schedule vpp in_framework=runs")
            | {"status": "ok" if item.projection.memory.fits else "out-of-memory"}
            | values(item.projection, "step_seconds tgs")
            | {"expected": expected.as_document(expected.expectation(case, item.projection))}
            | values(item.projection, "bubble device_bytes=memory.device")
            for item in made.compared
        ]
    return content


def memory(case: Case, made: Projection) -> dict[str, Any]:
    """Returns every pipeline rank: ``components`` sum to ``allocated``, all in bytes; ``activations_by_module``: of one
    micro-batch on each rank."""
    modules = [dict(of_rank) for of_rank in by_module(made.resolved, case.cluster.gpu.arch)]
    return head("memory", case, made) | {"memory": _plan(case, made), "activations_by_module": modules}


def rank_totals(case: Case, made: Projection, held: float) -> tuple[float, float]:
    """(reserved, device) bytes of a rank whose allocator sees ``held`` bytes."""
    found = verdict(made.resolved, held, case.cluster.gpu)
    return found.reserved, found.device


def stages(made: Projection) -> tuple[tuple[Chunk, float, float], ...]:
    """(what stands on it, forward seconds, backward seconds) of every virtual stage in pipeline order, placed on the
    ranks as the schedule folds them."""
    workload, schedule = made.resolved.workload, made.timeline.compiled.schedule
    layout = chunks(workload.model, workload.recipe)
    places = schedule.home
    return tuple(
        (replace(chunk, rank=places[i][0], index=places[i][1]), *made.stage_seconds[i])
        for i, chunk in enumerate(layout)
    )


def tokens_per_second(made: Projection) -> float:
    """Returns the tokens/s of all GPUs together."""
    return made.tgs * made.resolved.workload.gpus


def most_hosts(case: Case, made: Projection) -> int:
    """Hosts up to which data parallelism has a micro-batch for each of its ranks: beyond, another one has nothing to do."""
    recipe = made.resolved.workload.recipe
    replicas = recipe.global_batch_size // recipe.micro_batch_size
    return max(1, replicas * recipe.replica_ranks // case.cluster.gpus_per_host)


def dp_scaling(case: Case, made: Projection) -> tuple[int, float]:
    """(data-parallel ranks on the fewest hosts that hold the parallel groups, how many times as many the job has): the
    "DP scaling factor" of Primus (AMD-AGI/Primus primus/core/projection/performance_projection: context parallelism
    counts as part of expert parallelism where there are experts)."""
    work = made.resolved.workload
    recipe, host = work.recipe, case.cluster.gpus_per_host
    groups = recipe.tp * recipe.tp2 * recipe.pp * max(recipe.cp, recipe.etp * recipe.ep if work.model.moe else 1)
    least = math.ceil(groups / host) * host
    ranks = max(1, least // recipe.replica_ranks)
    return ranks, work.dp / ranks


def head(command: str, case: Case, made: Projection) -> dict[str, Any]:
    workload, cluster = made.resolved.workload, case.cluster
    counted = count(workload.model)
    minimum, scaling = dp_scaling(case, made)
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
            "schedule": made.timeline.compiled.schedule.name,
            "minimum_dp": minimum,
            "dp_scaling_factor": scaling,
            "most_useful_hosts": most_hosts(case, made),
        },
        "assumed": [*case.assumed, *made.assumed, *launch.foreign(workload)],
        "left_to_framework": dict(left_open(case.workload, made.resolved, cluster.gpu.arch)),
        "settings": [*case.changes, *made.settings],
        "unmodelled": [*case.unmodelled, *dropped(made.resolved)],
        "without_effect": list(case.moot),
        "ignored": list(case.ignored),
        "notes": list(case.notes),
    }


def _projection(case: Case, made: Projection) -> dict[str, Any]:
    return {
        "status": "ok" if made.memory.fits else "out-of-memory",
        **values(made, "step_seconds tgs"),
        "tokens_per_second": tokens_per_second(made),
        **values(made, "mfu bubble measured_share"),
        "expected": expected.as_document(expected.expectation(case, made)),
        "breakdown": dict(made.breakdown),
        "stages": [
            {"stage": i}
            | values(chunk, "rank chunk=index layers embedding mtp_layers=mtp head")
            | {"forward_seconds": forward, "backward_seconds": backward}
            for i, (chunk, forward, backward) in enumerate(stages(made))
        ],
    }


def _plan(case: Case, made: Projection) -> dict[str, Any]:
    plan = made.memory
    ranks = []
    for rank in plan.ranks:
        reserved, device = rank_totals(case, made, rank.held)
        ranks.append(
            values(rank, "rank parameters event")
            | {
                "components": {name: float(size) for name, size in rank.components.items()},
                "allocated": float(rank.allocated),
                "reserved": float(reserved),
                "device": float(device),
            }
        )
    return {
        "status": plan.status,
        "fits": bool(plan.fits),
        "tolerance": float(plan.tolerance),
        "evidence": memory_grade(made, case.assumed),
        **{name: float(getattr(plan, name)) for name in ("allocated", "reserved", "device", "required", "usable")},
        "margin": float(plan.margin_bytes),
        "ranks": ranks,
    }
