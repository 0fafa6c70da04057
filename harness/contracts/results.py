"""The public, versioned contract of the results: one typed row for each run × predictor × fit, and the facts of the
runs.

History of ``SCHEMA_VERSION``
    1  first columns.
    2  ``doubt``.
    3  fits ``shipped`` (what was ``calibrated``) and ``heldout-family``; ``heldout`` is by source.
    4  ``unread``, the last column.
    5  no ``heldout-family``: the other headline is first looks of sources that nobody had seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.contracts.estimates import Observation
from projector.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 5
#: Columns that files of an older schema lack, by the version that brought them.
SINCE = {"doubt": 2, "unread": 4}

#: The predictor that every projector must beat; shown beside the others, never alone.
BASELINE = "constant-mfu"
#: How a row is corrected: not at all; by what all runs of ``measured/`` teach, as it is shipped; by the same without any run
#: of its source, which is what tables show.
FITS = ("uncalibrated", "shipped", "heldout")
#: Fits as files before version 3 name them.
RENAMED = {"calibrated": "shipped"}
#: Fits of files before version 5 that nothing shows any more.
GONE = ("heldout-family",)
STATUSES = ("ok", "unsupported", "invalid", "no-measurement", "out-of-memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of ``results.csv``. Times in seconds, TGS in tokens/s/GPU, memory in GiB, errors signed and relative.

    ``error`` = projected_tgs / measured_tgs − 1; ``memory_error`` likewise on GiB. None: the figure does not exist.
    Ten columns are the exposed seconds of one step and sum to ``projected_step_seconds`` where a predictor
    gives them. A row with status ``out-of-memory`` keeps the time it would take. ``assumed`` joins with ``; `` what
    the importer and the framework defaults filled in. ``doubt``: as in :class:`MeasuredRun`; such a row stands apart.
    ``unread`` joins with ``; `` the words of its source that nothing reads.
    """

    run_id: str
    suite: str
    group: str
    gpu: str
    gpus: int
    model: str
    family: str
    precision: str
    framework: str
    predictor: str
    fit: str
    status: str
    reason: str = ""
    assumed: str = ""
    doubt: str = ""
    projected_step_seconds: float | None = None
    measured_step_seconds: float | None = None
    projected_tgs: float | None = None
    measured_tgs: float | None = None
    error: float | None = None
    interval_low: float | None = None
    interval_high: float | None = None
    projected_memory_gib: float | None = None
    measured_memory_gib: float | None = None
    memory_error: float | None = None
    measured_share: float | None = None
    seconds_to_project: float | None = None
    compute_s: float | None = None
    host_s: float | None = None
    bubble_s: float | None = None
    tp_s: float | None = None
    ep_s: float | None = None
    cp_s: float | None = None
    pp_s: float | None = None
    dp_s: float | None = None
    optimizer_s: float | None = None
    other_s: float | None = None
    unread: str = ""

    @property
    def inside(self) -> bool | None:
        """Tells whether the measurement lies in the interval; None where one of the two is missing."""
        if self.interval_low is None or self.interval_high is None or self.measured_tgs is None:
            return None
        return self.interval_low <= self.measured_tgs <= self.interval_high

    def to_mapping(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COLUMNS}


COLUMNS = tuple(f.name for f in fields(Row))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """The facts of a run that reports need beside its rows: its source, the configuration that distinguishes it inside
    its group, the outcome of its measurement.

    ``complete``: the source states a whole configuration (a model and a recipe could be built). ``assumed``: what the
    importer filled in. ``differs``: the configuration as text by key, from which a group lists the keys that change;
    ``switches``: the keys of ``differs`` that no recipe field holds, so that no projector can see them;
    ``flops_per_token``: FLOP of the model for one token (forward and backward), where known. ``disturbed``: the run was
    measured on the machine at hand while that machine was moving.
    """

    run_id: str
    source: str = ""
    source_kind: str = ""
    arch: str = ""
    vendor: str = ""
    framework_version: str = ""
    memory_kind: str | None = None
    measured_status: str = "ok"
    complete: bool = True
    assumed: tuple[str, ...] = ()
    rel_std: float | None = None
    differs: Mapping[str, str] = field(default_factory=dict)
    switches: tuple[str, ...] = ()
    flops_per_token: float | None = None
    disturbed: bool = False

    def to_mapping(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "assumed": list(self.assumed), "differs": dict(self.differs), "switches": list(self.switches)}


def parted(rows: Iterable[Row]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Splits rows into :attr:`Evaluation.rows`, which count, and :attr:`Evaluation.doubted`, which their sources doubt."""
    every = tuple(rows)
    return tuple(row for row in every if not row.doubt), tuple(row for row in every if row.doubt)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The rows of an evaluation in the order cases × predictors × fits, and the facts of each run. ``observed``: by
    predictor, the observations that its projections of these runs give. ``doubted``: the rows of runs that their sources
    doubt. Nothing is fitted on doubted rows, and no figure or gate counts them."""

    rows: tuple[Row, ...]
    facts: Mapping[str, RunFacts]
    observed: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    doubted: tuple[Row, ...] = ()

    @property
    def every(self) -> tuple[Row, ...]:
        """Returns all rows as a file of results holds them: the doubted rows behind the others."""
        return (*self.rows, *self.doubted)

    def marked(self, disturbed: Collection[str]) -> Evaluation:
        """Returns the evaluation with the runs of the ids ``disturbed`` marked as disturbed."""
        facts = {name: replace(fact, disturbed=name in disturbed) for name, fact in self.facts.items()}
        return replace(self, facts=facts) if disturbed else self

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Returns the rows, without the doubted ones, as a frame of :mod:`harness.contracts.frame`."""
        from harness.contracts import frame

        return frame.of(self.rows, self.facts)

    @cached_property
    def once(self) -> pd.DataFrame:
        """Returns :attr:`frame` with every run × predictor × fit once."""
        from harness.contracts import frame

        return frame.once(self.frame)

    @property
    def predictors(self) -> list[str]:
        """Returns the names of the predictors in order of first appearance."""
        return list(dict.fromkeys(row.predictor for row in self.every))
