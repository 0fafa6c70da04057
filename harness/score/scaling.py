"""How well throughput holds on more GPUs: series of measured runs, efficiency measured against projected. Pure functions.

A series is one job at several sizes: runs of one collection of sources, GPU and framework whose stated configurations are
equal but for the number of GPUs and the batch that follows from it; in papers on weak scaling the model grows along. Its
efficiency at N GPUs is the model's FLOP/s of one GPU there over that at the smallest N (for one model: tokens/s/GPU), so
that a calibration factor cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.contracts.results import Row, RunFacts

__all__ = ["GOAL", "Point", "Series", "origin", "scaling", "within"]

#: Projected efficiency within this share of the measured one (the project's goal).
GOAL = 0.08
_SCALED = frozenset(
    {"gpus", "global_batch_size", "data_parallel_shard_size", "num_distributed_optimizer_instances", "version"}
)
_GROWING = _SCALED | {
    *("model", "num_layers", "tp", "pp", "vpp", "micro_batch_size", "pipeline_schedule", "recompute_num_layers"),
    "microbatch_group_size_per_vp_stage",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size of a series: ``runs`` measured there (their median counts), efficiency over the smallest size."""

    gpus: int
    runs: int
    model: str
    measured: float
    projected: float

    @property
    def error(self) -> float:
        """Projected over measured efficiency, less 1."""
        return self.projected / self.measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The sizes of one job beyond the smallest, which is ``smallest`` GPUs; ``settings``: what all of them share."""

    origin: str
    gpu: str
    framework: str
    smallest: int
    settings: str
    points: tuple[Point, ...]


def scaling(rows: Iterable[Row], facts: Mapping[str, RunFacts]) -> list[Series]:
    """Every series among ``rows`` (one predictor, one fit) with at least two sizes, by origin, GPU and settings."""
    usable = [r for r in rows if r.measured_tgs and r.projected_tgs and facts[r.run_id].flops_per_token]
    same, growing = _grouped(usable, facts, _SCALED), _grouped(usable, facts, _GROWING)
    found = [_series(key, members, facts) for key, members in same.items() if len({r.gpus for r in members}) > 1]
    found += [_series(key, members, facts) for key, members in growing.items() if _grows(members, facts)]
    return sorted(found, key=lambda s: (s.origin, s.gpu, s.smallest, s.settings))


def within(found: Sequence[Series], goal: float = GOAL) -> tuple[int, int]:
    """(points within ``goal`` of the measured efficiency, all points)."""
    errors = [abs(point.error) for series in found for point in series.points]
    return sum(error <= goal for error in errors), len(errors)


Key = tuple[str, str, str, tuple[tuple[str, str], ...]]


def _grouped(rows: Iterable[Row], facts: Mapping[str, RunFacts], free: frozenset[str]) -> dict[Key, list[Row]]:
    made: dict[Key, list[Row]] = {}
    for row in rows:
        known = facts[row.run_id]
        shared = tuple(sorted((k, v) for k, v in known.differs.items() if k not in free))
        made.setdefault((origin(known.source), row.gpu, row.framework, shared), []).append(row)
    return made


def origin(source: str) -> str:
    """The collection that a source belongs to: submissions of one round of MLPerf, rows of one document (without its
    revision and the place in it)."""
    return source.split(" ")[0] if source.startswith("mlcommons/") else source.split(" @")[0]


def _grows(members: Sequence[Row], facts: Mapping[str, RunFacts]) -> bool:
    """Weak scaling of a paper: one size for each model, more GPUs for a larger one."""
    sizes = {(r.gpus, facts[r.run_id].flops_per_token or 0.0) for r in members}
    models = {r.model for r in members}
    if len(models) < 2 or len(sizes) != len(models) or any("arXiv" not in facts[r.run_id].source for r in members):
        return False
    return [flops for _, flops in sorted(sizes)] == sorted(flops for _, flops in sizes)


def _series(key: Key, members: Sequence[Row], facts: Mapping[str, RunFacts]) -> Series:
    by: dict[int, list[Row]] = {}
    for row in members:
        by.setdefault(row.gpus, []).append(row)
    sizes = sorted(by)
    measured = {n: median(_rate(r, r.measured_tgs, facts) for r in by[n]) for n in sizes}
    projected = {n: median(_rate(r, r.projected_tgs, facts) for r in by[n]) for n in sizes}
    first = sizes[0]
    points = tuple(
        Point(
            gpus=n,
            runs=len(by[n]),
            model=by[n][0].model,
            measured=measured[n] / measured[first],
            projected=projected[n] / projected[first],
        )
        for n in sizes[1:]
    )
    where, gpu, framework, shared = key
    settings = ", ".join(f"{k} {v}" for k, v in shared if k in _SHOWN)
    return Series(origin=where, gpu=gpu, framework=framework, smallest=first, settings=settings, points=points)


_SHOWN = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "precision", "seq_length")


def _rate(row: Row, tgs: float | None, facts: Mapping[str, RunFacts]) -> float:
    return (tgs or math.nan) * (facts[row.run_id].flops_per_token or math.nan)
