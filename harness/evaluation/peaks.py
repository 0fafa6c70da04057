"""Measured peaks and outcomes beside what the projector says of them.

A peak is what a source counts (tensors, allocator, device), or, of a run that failed, what its rank kept (weights and
optimizer states) and the one block that a compiled step then could not get.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.contracts.estimates import publisher
from harness.contracts.runs import MeasuredRun
from harness.predictors.ours import Ours, cluster_of, memory_gib
from harness.score.memory_error import Judged, Peak, Sized
from projector.errors import InputError, Unsupported
from projector.memory.tolerance import kind
from projector.projection import Projection

#: Rows with which the memory model was written: their error proves nothing.
_SEEN = ("SimuMax",)
#: What decides the peak was not stated: sizes read off the measurement; recompute; anything of the adapters, whose inputs
#: are kept.
_GUESSED = ("seq_length=", "lora ", "recompute unknown")
#: Recompute that the memory model itself asked for.
_CIRCULAR = "(does not fit without)"
_KEPT = ("weights", "master_weights", "moments")
_GIB = 2.0**30


def peaks(runs: Iterable[MeasuredRun]) -> list[Peak]:
    """One for every run with a measured peak of which it is known what it counts, a whole configuration and a projection.

    A figure that may be of tensors, of the allocator or of the device is no peak to be right about: these lie 5 to 30 %
    apart.
    """
    found = []
    for run in runs:
        measured = run.measured
        if run.problem or run.doubt or run.source.title.startswith(_SEEN):
            continue
        stated = measured.peak_memory_gib is not None and measured.memory_kind is not None
        if not stated and measured.failed_allocation_gib is None:
            continue
        made = _projected(run)
        if made is not None and not undecided((*run.assumed, *made.assumed)):
            found.append(_peak(run, made))
    return found


def undecided(assumed: Iterable[str]) -> bool:
    """Whether what decides a peak is among what a row and its projection assume: no error of such a peak is a figure."""
    return any(guess in text for guess in (*_GUESSED, _CIRCULAR) for text in assumed)


def judged(runs: Iterable[MeasuredRun]) -> list[Judged]:
    """One for every run that ran or failed for lack of memory, and has a projection."""
    found = []
    for run in runs:
        if run.problem or run.doubt or not run.measured.exists:
            continue
        made = _projected(run)
        if made is not None:
            plan, ran = made.memory, run.measured.status == "ok"
            found.append(Judged(run_id=run.id, ran=ran, right=plan.fits == ran, close=plan.status == "too-close"))
    return found


def sized(runs: Iterable[MeasuredRun]) -> list[Sized]:
    """One for every run of a group with a measured peak and a projection that did not ask the peak for its recompute.

    What nobody states of a group's peaks is the same for all of them, so their order stands.
    """
    found = []
    for run in runs:
        peak = run.measured.peak_memory_gib
        if run.problem or run.doubt or peak is None or not run.group or run.source.title.startswith(_SEEN):
            continue
        made = _projected(run)
        if made is not None and not any(_CIRCULAR in text for text in made.assumed):
            projected = memory_gib(made, cluster_of(run.cluster, run.gpu, run.gpus_per_node), run.measured)
            counts = run.measured.memory_kind or "not stated"
            found.append(Sized(group=run.group, counts=counts, measured=peak, projected=projected))
    return found


def _peak(run: MeasuredRun, made: Projection) -> Peak:
    cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
    block = run.measured.failed_allocation_gib
    if block is not None:
        kept = sum(made.memory.components[name] for name in _KEPT) / _GIB
        error = math.log((kept + block) / (made.memory.allocated / _GIB))
    else:
        error = math.log((run.measured.peak_memory_gib or math.nan) / memory_gib(made, cluster, run.measured))
    return Peak(
        run_id=run.id,
        source=_code(publisher(run.source.title)),
        gpu=run.gpu,
        family=run.workload.model.family,
        kind=kind(made.resolved),
        counts="block" if block is not None else run.measured.memory_kind or "",
        error=error,
    )


def _code(publisher: str) -> str:
    """Submitters of a benchmark run one code in one configuration, whose peak is the same on anyone's machine."""
    return "mlperf" if publisher.startswith("mlperf ") else publisher


def _projected(run: MeasuredRun) -> Projection | None:
    try:
        return Ours("simulate").projection(run)
    except (InputError, Unsupported):
        return None
