"""Computes what a point comes to, by projection or by search: a row of plain values. Pure, and the same in every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any

from projector import Projection, project, project_many
from projector.errors import InputError, Unsupported
from projector.expectation import Knowledge, facts_of, kinds
from projector.hardware import catalogue
from projector.hardware.scaled import SCALES
from projector.hardware.types import Cluster
from projector.search.found import Limits, search
from projector.search.objective import Objective
from projector.search.space import space, with_fields
from projector.search.sweep.grid import key_of, several
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

Point = Mapping[str, Any]
Row = dict[str, Any]
_SHOWN = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "recompute_granularity")


def rows(points: Sequence[Point]) -> list[Row]:
    """Returns a row for each point: ``key``, its own values, ``status`` (``ok``, ``out-of-memory``, ``invalid``,
    ``unsupported``) with its ``reason``, ``step_seconds``, ``tgs``, ``memory`` in bytes; for a searched point the
    layout and the time by part as well."""
    all_rows: list[Row] = []
    for cluster, neighbours in groupby(points, _cluster):
        of_cluster = list(neighbours)
        all_rows += (
            _projected(of_cluster, cluster)
            if "search" not in of_cluster[0]
            else [_searched(each, cluster) for each in of_cluster]
        )
    return all_rows


def _cluster(point: Point) -> Cluster:
    factors = tuple((name[6:], value) for name, value in point.items() if name.startswith("scale."))
    return scaled(str(point["system"]), factors)


@lru_cache(maxsize=4096)
def scaled(name: str, factors: tuple[tuple[str, Any], ...]) -> Cluster:
    """Returns the cluster of the name or file ``name`` with factors of :data:`SCALES` (``flops+memory_bandwidth``:
    both); one object for one answer, so that caches keyed by the object hold. Raises :class:`InputError`."""
    cluster = catalogue.cluster(name)
    for word, factor in factors:
        for each in word.split("+") if factor != 1 else ():
            cluster = SCALES[each](cluster, float(factor))
    return cluster


def _head(point: Point) -> Row:
    key = point.get("key") or key_of(point)
    return {"key": key} | {
        name: "+".join(value) if isinstance(value, tuple) else value
        for name, value in point.items()
        if name not in ("key", "search")
    }


@lru_cache(maxsize=64)
def _base(model: str, framework: str, least: tuple[tuple[str, Any], ...]) -> Workload:
    return Workload(model=zoo.load(model), gpus=1, framework=framework, recipe=Recipe(**dict(least)))


def _load(point: Point) -> Workload:
    fields = {name[7:]: value for name, value in point.items() if name.startswith("recipe.")}
    sizes = tuple((name, fields[name]) for name in ("global_batch_size", "seq_length"))
    least = (("micro_batch_size", fields.get("micro_batch_size", 1)), *sizes)
    return with_fields(_base(str(point["model"]), str(point["framework"]), least), {**fields, "gpus": point["gpus"]})


def _projected(points: Sequence[Point], cluster: Cluster) -> list[Row]:
    many = project_many([_load(point) for point in points], cluster, best=None)
    return [
        _head(point)
        | {
            "status": many.status[i],
            "reason": many.reason[i],
            "step_seconds": _number(many.step_seconds[i]),
            "tgs": _number(many.tgs[i]),
            "memory": _number(many.memory[i]),
        }
        for i, point in enumerate(points)
    ]


def _searched(point: Point, cluster: Cluster) -> Row:
    held = point["search"]
    objective = Objective(name=held.get("objective", "tgs"), watts=cluster.gpu.tdp_watts)
    limits = Limits(seconds=held.get("seconds"), margin=held.get("memory_margin", 0.0), top=1)
    nothing: Row = {"step_seconds": None, "tgs": None, "memory": None}
    try:
        search_space = space(_load(point), cluster, only=_lists(held.get("fix")), vary=_lists(held.get("vary")))
        result = search(search_space, cluster, objective, limits, explained=False)
    except (InputError, Unsupported) as error:
        status = "invalid" if isinstance(error, InputError) else "unsupported"
        return _head(point) | {"status": status, "reason": str(error)} | nothing
    if not result.best:
        return _head(point) | {"status": "out-of-memory", "reason": "no configuration fits"} | nothing
    best = result.best[0]
    row = _head(point) | {"status": "ok", "reason": ""}
    row |= {"step_seconds": best.projection.step_seconds, "tgs": best.projection.tgs}
    row |= {"memory": best.projection.memory.allocated, "gap": result.gap, "valid": result.counts.enumerated}
    return row | _result_of(best.workload, best.projection)


def explained(point: Point) -> Row:
    """Returns for a projected point what a searched one has as well: its layout and its time by part."""
    load = _load(point)
    return _result_of(load, project(load, _cluster(point)))


def _result_of(load: Workload, projection: Projection) -> Row:
    row: Row = {f"best.{name}": getattr(load.recipe, name) for name in _SHOWN} | {"best.dp": load.dp}
    row |= {"verdict": projection.memory.status, "assumed": "+".join(sorted(kinds(projection.assumed)))}
    return row | {f"time.{name}": seconds for name, seconds in projection.breakdown.items()}


def expected(point: Point, row: Mapping[str, Any], known: Knowledge) -> Row:
    """Returns the expected step of a point that has its layout and its time by part, the ends of its interval, in
    seconds, and the throughput of that step."""
    fields = {name: row[f"best.{name}"] for name in _SHOWN if row[f"best.{name}"] == row[f"best.{name}"]}
    load = with_fields(_load(point), {name: int(v) if isinstance(v, float) else v for name, v in fields.items()})
    breakdown = {name[5:]: value for name, value in row.items() if name.startswith("time.") and value == value}
    facts = facts_of(load, _cluster(point), row["step_seconds"], breakdown, (), known.law)
    text = row.get("assumed")
    step = known.of(replace(facts, assumed=frozenset(text.split("+") if text and isinstance(text, str) else ())))
    ends = {f"expected.{name}": getattr(step, name) for name in ("low", "middle", "high")}
    return ends | {"expected.tgs": row["tgs"] * row["step_seconds"] / step.middle}


def _lists(given: Mapping[str, Any] | None) -> dict[str, tuple[Any, ...]]:
    return {name: several(value) for name, value in (given or {}).items()}


def _number(value: Any) -> float | None:
    return float(value) if value == value else None  # files know no NaN
