"""One side of a comparison as plain data, from a log, a benchmark file or a measured run. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np
import numpy.typing as npt

from projector.dataclass import dataclass

# A step that takes this many times the median is a spike, whatever caused it. A convention of this harness.
SPIKE = 1.5
_SIGMA_PER_MAD = 1.4826  # standard over median absolute deviation of a normal distribution

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Series:
    """The steps of a log, one entry a step. ``seconds``: of a step. ``reasons``: index of ``names``, 0 for kept.
    ``loss`` is NaN where the log prints none. ``curves``: other figures with one value a step, by name. ``first``: the
    reasons that are no property of the steady run (another configuration or batch, warm-up)."""

    iteration: npt.NDArray[np.int64]
    seconds: Floats
    reasons: npt.NDArray[np.uint8]
    names: tuple[str, ...]
    loss: Floats
    first: frozenset[str] = frozenset()
    curves: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def kept(self) -> Floats:
        """Returns the seconds of the steady steps."""
        kept: Floats = self.seconds[self.reasons == 0]
        return kept

    @property
    def settled(self) -> npt.NDArray[np.bool_]:
        """Returns a mask of the steps of the last configuration after its warm-up, exceptional ones among them."""
        early = [code for code, name in enumerate(self.names) if name in self.first]
        return ~np.isin(self.reasons, early)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side. ``origin``: the kind of file or table. ``step_seconds``: median of the steady steps, or the stated
    figure; ``rel_std``: its relative uncertainty where no steps are there.

    ``tokens_per_step`` and ``gpus`` are None where neither the source nor the user says them. ``memory``: peak GiB by
    kind. ``capacity_gib``: of the GPU. ``timers``: (name, mean seconds a step). ``projected``: parts of the projected
    step in seconds, empty with the reason in ``unprojected``. ``differs``: configuration as text by key. ``impossible``:
    why no machine can have the figures (:mod:`harness.evidence.physics`). ``architecture``: the model in words that
    distinguish it, whatever its name. ``tflops``: of one GPU, by the model's FLOP of a token (6 for each parameter, and
    attention), None where the configuration is not whole.
    """

    name: str
    origin: str
    gpu: str = ""
    gpus: int | None = None
    tokens_per_step: int | None = None
    step_seconds: float | None = None
    tgs: float | None = None
    rel_std: float | None = None
    series: Series | None = None
    memory: Mapping[str, float] = field(default_factory=dict)
    capacity_gib: float | None = None
    timers: tuple[tuple[str, float], ...] = ()
    projected: Mapping[str, float] = field(default_factory=dict)
    unprojected: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)
    status: str = "ok"
    notes: tuple[str, ...] = ()
    impossible: str = ""
    architecture: str = ""
    tflops: float | None = None

    @property
    def work(self) -> float | None:
        """Returns the tokens of one step on one GPU: where they are equal, step times of different runs can be compared."""
        return self.tokens_per_step / self.gpus if self.tokens_per_step and self.gpus else None


@dataclass(frozen=True, kw_only=True)
class Stability:
    """The stability of a run. ``spread``: standard deviation of the steady steps from their median absolute deviation,
    relative. ``outliers``: steps cut as such; ``spikes``: settled steps of :data:`SPIKE` medians or more, for any
    reason; ``excess``: time of all settled steps beyond the median, as a share of their whole time."""

    steps: int
    spread: float
    outliers: int
    spikes: int
    excess: float


def stability(series: Series) -> Stability:
    """Returns how steady a run is after its warm-up."""
    steady = series.kept
    middle = float(np.median(steady))
    settled = series.seconds[series.settled]
    outlier = series.names.index("outlier") if "outlier" in series.names else -1
    return Stability(
        steps=len(settled),
        spread=_SIGMA_PER_MAD * float(np.median(np.abs(steady - middle))) / middle,
        outliers=int((series.reasons == outlier).sum()),
        spikes=int((settled >= SPIKE * middle).sum()),
        excess=float(np.maximum(settled - middle, 0).sum() / settled.sum()),
    )
