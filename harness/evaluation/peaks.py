"""Measured memory peaks and outcomes beside the projected ones. A peak is what a source counts (tensors, allocator,
device), or, of a run that failed, what its rank kept (weights and optimizer states) and the one block that a compiled
step then could not get."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.contracts.estimates import publisher
from harness.contracts.runs import MeasuredRun
from harness.predictors.ours import Ours, cluster_of, memory_gib
from harness.score.memory_error import MemoryOutcome, Peak, Sized
from projector.errors import InputError, Unsupported
from projector.memory.tolerance import kind
from projector.projection import Projection

#: Sources whose rows were in sight when the memory model was written: their error proves nothing.
_SEEN = ("SimuMax",)
#: Assumptions that decide the peak: sizes read off the measurement; recompute; any setting of the adapters, whose inputs
#: are kept.
_GUESSED = ("seq_length=", "lora ", "recompute unknown")
#: The mark of an assumed recompute that the memory model itself asked for.
_CIRCULAR = "(does not fit without)"
_KEPT = ("weights", "master_weights", "moments")
_GIB = 2.0**30


def peaks(runs: Iterable[MeasuredRun]) -> list[Peak]:
    """Returns a :class:`Peak` for every run with a measured peak of a stated kind (or a failed allocation), a whole
    configuration and a projection. Where the source does not say whether tensors, allocator or device are counted, no
    projection can be right: the three lie 5 to 30 % apart."""
    compared = []
    for run in runs:
        measured = run.measured
        if run.problem or run.doubt or run.source.title.startswith(_SEEN):
            continue
        stated = measured.peak_memory_gib is not None and measured.memory_kind is not None
        if not stated and measured.failed_allocation_gib is None:
            continue
        projection = _projected(run)
        if projection is not None and not undecided((*run.assumed, *projection.assumed)):
            compared.append(_peak(run, projection))
    return compared


def undecided(assumed: Iterable[str]) -> bool:
    """Tells whether assumptions of a row and its projection decide its peak, so that an error proves nothing."""
    return any(guess in text for guess in (*_GUESSED, _CIRCULAR) for text in assumed)


def judged(runs: Iterable[MeasuredRun]) -> list[MemoryOutcome]:
    """Returns a :class:`Judged` for every run that ran or failed for lack of memory, and has a projection."""
    outcomes = []
    for run in runs:
        if run.problem or run.doubt or not run.measured.exists:
            continue
        projection = _projected(run)
        if projection is not None:
            plan, ran = projection.memory, run.measured.status == "ok"
            outcomes.append(
                MemoryOutcome(run_id=run.id, ran=ran, right=plan.fits == ran, close=plan.status == "too-close")
            )
    return outcomes


def sized(runs: Iterable[MeasuredRun]) -> list[Sized]:
    """Returns a :class:`Sized` for every run of a group with a measured peak and a projection whose recompute was not
    chosen to make it fit. What nobody states of a group's peaks is the same for all of them, so their order stands."""
    sizes = []
    for run in runs:
        peak = run.measured.peak_memory_gib
        if run.problem or run.doubt or peak is None or not run.group or run.source.title.startswith(_SEEN):
            continue
        projection = _projected(run)
        if projection is not None and not any(_CIRCULAR in text for text in projection.assumed):
            projected = memory_gib(projection, cluster_of(run.cluster, run.gpu, run.gpus_per_node), run.measured)
            counts = run.measured.memory_kind or "not stated"
            sizes.append(Sized(group=run.group, counts=counts, measured=peak, projected=projected))
    return sizes


def _peak(run: MeasuredRun, projection: Projection) -> Peak:
    cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
    block = run.measured.failed_allocation_gib
    if block is not None:
        held = sum(projection.memory.components[name] for name in _KEPT) / _GIB
        error = math.log((held + block) / (projection.memory.allocated / _GIB))
    else:
        error = math.log((run.measured.peak_memory_gib or math.nan) / memory_gib(projection, cluster, run.measured))
    return Peak(
        run_id=run.id,
        source=_code_publisher(publisher(run.source.title)),
        gpu=run.gpu,
        family=run.workload.model.family,
        kind=kind(projection.resolved),
        counts="block" if block is not None else run.measured.memory_kind or "",
        error=error,
    )


def _code_publisher(publisher: str) -> str:
    """Returns the publisher of the code, one for all of MLPerf: its submitters' peak is the same on any machine."""
    return "mlperf" if publisher.startswith("mlperf ") else publisher


def _projected(run: MeasuredRun) -> Projection | None:
    try:
        return Ours("simulate").projection(run)
    except (InputError, Unsupported):
        return None
