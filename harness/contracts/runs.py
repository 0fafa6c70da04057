"""Measured runs and cases, which the harness compares, and the predictions that it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from projector.dataclass import dataclass
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

#: How the ``problem`` of a run begins whose model the zoo does not have (any more): its name follows.
MISSING_MODEL = "no model of the zoo:"
#: What every run states.
REQUIRED = ("id", "source", "gpu", "gpus", "stack", "measured")

BREAKDOWN = ("compute_s", "host_s", "bubble_s", "tp_s", "ep_s", "cp_s", "pp_s", "dp_s", "optimizer_s", "other_s")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The publication that a figure comes from. ``kind``: ``log``, ``table``, ``figure``, ``issue``, …"""

    title: str
    revision: str = ""
    licence: str = ""
    kind: str = "table"


@dataclass(frozen=True, kw_only=True)
class Stack:
    framework: str
    version: str = ""
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured figures of a run. Step time and TGS (tokens/s/GPU) are both filled; ``derived`` names the figures
    that were computed from others.

    ``memory_kind``: ``allocated``, ``reserved``, ``device`` or None where the source does not say. ``memory_rank``: the
    pipeline rank whose memory the figure gives; None: the fullest. ``status``: ``ok`` or ``out-of-memory`` (the run
    failed for lack of memory: then no time, but perhaps ``failed_allocation_gib``, the block that it asked for and did
    not get).
    """

    step_seconds: float | None = None
    tgs: float | None = None
    tflops_per_gpu: float | None = None
    peak_memory_gib: float | None = None
    memory_kind: str | None = None
    memory_rank: int | None = None
    failed_allocation_gib: float | None = None
    samples: int | None = None
    rel_std: float | None = None
    derived: tuple[str, ...] = ()
    status: str = "ok"

    @property
    def exists(self) -> bool:
        """Tells whether somebody ran it: it has a figure, or failed for lack of memory. A case has neither."""
        figures = (self.step_seconds, self.tgs, self.tflops_per_gpu, self.peak_memory_gib)
        return self.status != "ok" or any(figure is not None for figure in figures)


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One measured run with its whole configuration, or a case: the same with nothing measured.

    ``problem``: why the row cannot be projected as it stands (configuration incomplete or outside the models); it is
    kept in every table. ``assumed``: what an importer or default filled in. ``unread``: ``key: words`` of its source that
    nothing reads, so that its recipe may be another one. ``doubt``: why, by its own source, a figure is
    no sound measurement of this configuration; such a run is projected and scored apart, and teaches nothing.
    """

    id: str
    source: Source
    gpu: str
    gpus: int
    stack: Stack
    model: Model | None
    recipe: Recipe | None
    measured: Measured
    model_name: str = ""
    gpus_per_node: int | None = None
    cluster: str | None = None
    group: str = ""
    switches: Mapping[str, object] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    problem: str = ""
    doubt: str = ""
    notes: str = ""

    @property
    def workload(self) -> Workload:
        if self.model is None or self.recipe is None:
            raise ValueError(self.problem or f"{self.id}: configuration incomplete")
        return Workload(
            model=self.model,
            recipe=self.recipe,
            gpus=self.gpus,
            framework=self.stack.framework,
            framework_date=self.stack.date,
        )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A predictor's answer. ``status``: ``ok``, ``unsupported``, ``invalid``, ``no-measurement`` or ``out-of-memory``."""

    status: str
    reason: str = ""
    step_seconds: float | None = None
    memory_gib: float | None = None
    measured_share: float | None = None
    breakdown: Mapping[str, float] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    seconds_to_project: float = 0.0
