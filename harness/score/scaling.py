"""Measures how well throughput holds on more GPUs: series of measured runs, efficiency measured against projected. Pure
functions.

A series is one job at several sizes: runs of one collection of sources, GPU and framework whose stated configurations
are equal but for the number of GPUs and the batch that follows from it; in papers on weak scaling the model grows along.
Its efficiency at N GPUs is the model's FLOP/s of one GPU there over that at the smallest N (for one model:
tokens/s/GPU), so that a calibration factor cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from projector.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd

#: The project's goal: projected efficiency within this share of the measured one.
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
    """One size of a series: ``runs`` measured there (their median counts), efficiency relative to the smallest size."""

    gpus: int
    runs: int
    model: str
    measured: float
    projected: float

    @property
    def error(self) -> float:
        """Returns the projected over the measured efficiency, less 1."""
        return self.projected / self.measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The sizes of one job beyond the smallest, which is ``smallest`` GPUs; ``settings``: what all sizes share."""

    origin: str
    gpu: str
    framework: str
    smallest: int
    settings: str
    points: tuple[Point, ...]


def scaling(rows: pd.DataFrame) -> list[Series]:
    """Returns every series among ``rows`` (one predictor, one fit) with at least two sizes, by origin, GPU and settings."""
    usable = rows.dropna(subset=["measured_tgs", "projected_tgs", "flops_per_token"])
    usable = usable[(usable[["measured_tgs", "projected_tgs", "flops_per_token"]] > 0.0).all(axis=1)]
    named = usable.assign(
        origin=[origin(source) for source in usable["source"]],
        measured=usable["measured_tgs"] * usable["flops_per_token"],
        projected=usable["projected_tgs"] * usable["flops_per_token"],
    )
    series = [_series(key, members) for key, members in _grouped(named, _SCALED) if members["gpus"].nunique() > 1]
    series += [_series(key, members) for key, members in _grouped(named, _GROWING) if _grows(members)]
    return sorted(series, key=lambda s: (s.origin, s.gpu, s.smallest, s.settings))


def within(found: Sequence[Series], goal: float = GOAL) -> tuple[int, int]:
    """Returns the number of points within ``goal`` of the measured efficiency, and of all points."""
    errors = [abs(point.error) for series in found for point in series.points]
    return sum(error <= goal for error in errors), len(errors)


def _grouped(rows: pd.DataFrame, free: frozenset[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    shared: list[Any] = [
        tuple(sorted((k, v) for k, v in differs.items() if k not in free)) for differs in rows["differs"]
    ]
    return frame.parts(rows.assign(shared=shared), ["origin", "gpu", "framework", "shared"])


def origin(source: str) -> str:
    """Returns the collection that a source belongs to: submissions of one round of MLPerf, rows of one document (without
    its revision and the place in it)."""
    return source.split(" ")[0] if source.startswith("mlcommons/") else source.split(" @")[0]


def _grows(members: pd.DataFrame) -> bool:
    """Tells whether the rows are the weak scaling of a paper: one size for each model, more GPUs for a larger one."""
    sizes = members[["gpus", "flops_per_token"]].drop_duplicates()
    models = members["model"].nunique()
    if models < 2 or len(sizes) != models or not members["source"].str.contains("arXiv").all():
        return False
    return bool(sizes.sort_values(["gpus", "flops_per_token"])["flops_per_token"].is_monotonic_increasing)


def _series(key: tuple[Any, ...], members: pd.DataFrame) -> Series:
    by = members.groupby("gpus")
    rate = by[["measured", "projected"]].median()
    rate, runs, model = rate / rate.iloc[0], by.size(), by["model"].first()
    points = tuple(
        Point(gpus=int(n), runs=int(runs[n]), model=str(model[n]), measured=float(m), projected=float(p))
        for n, m, p in rate.iloc[1:].itertuples()
    )
    where, gpu, framework, shared = key
    settings = ", ".join(f"{k} {v}" for k, v in shared if k in _SHOWN)
    smallest = int(rate.index[0])
    return Series(origin=where, gpu=gpu, framework=framework, smallest=smallest, settings=settings, points=points)


_SHOWN = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "precision", "seq_length")
