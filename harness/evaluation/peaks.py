"""Measured memory peaks and outcomes beside the projected ones. A peak is what a source counts (tensors, allocator,
device), or, of a run that failed, what its rank kept (weights and optimizer states) and the one block that a compiled
step then could not get."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress

from harness.contracts.estimates import publisher
from harness.contracts.runs import Measured, MeasuredRun
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

    def counted(measured: Measured) -> bool:
        return measured.failed_allocation_gib is not None or None not in (
            measured.peak_memory_gib,
            measured.memory_kind,
        )

    return [
        _peak(run, projection)
        for run, projection in _projected(run for run in runs if counted(run.measured) and not _in_sight(run))
        if not undecided((*run.assumed, *projection.assumed))
    ]


def _in_sight(run: MeasuredRun) -> bool:
    return run.source.title.startswith(_SEEN)


def undecided(assumed: Iterable[str]) -> bool:
    """Tells whether assumptions of a row and its projection decide its peak, so that an error proves nothing."""
    return any(guess in text for guess in (*_GUESSED, _CIRCULAR) for text in assumed)


def judged(runs: Iterable[MeasuredRun]) -> list[MemoryOutcome]:
    """Returns a :class:`MemoryOutcome` for every run that ran or failed for lack of memory, and has a projection."""
    return [
        MemoryOutcome(run_id=run.id, ran=ran, right=of.memory.fits == ran, close=of.memory.status == "too-close")
        for run, of in _projected(run for run in runs if run.measured.exists)
        for ran in (run.measured.status == "ok",)
    ]


def sized(runs: Iterable[MeasuredRun]) -> list[Sized]:
    """Returns a :class:`Sized` for every run of a group with a measured peak and a projection whose recompute was not
    chosen to make it fit. What nobody states of a group's peaks is the same for all of them, so their order stands."""
    chosen = (run for run in runs if run.measured.peak_memory_gib is not None and run.group and not _in_sight(run))
    return [
        Sized(
            group=run.group,
            counts=run.measured.memory_kind or "not stated",
            measured=run.measured.peak_memory_gib or 0.0,
            projected=_peak_gib(run, projection),
        )
        for run, projection in _projected(chosen)
        if not any(_CIRCULAR in text for text in projection.assumed)
    ]


def _peak_gib(run: MeasuredRun, projection: Projection) -> float:
    return memory_gib(projection, cluster_of(run.cluster, run.gpu, run.gpus_per_node), run.measured)


def _peak(run: MeasuredRun, projection: Projection) -> Peak:
    block = run.measured.failed_allocation_gib
    if block is not None:
        held = sum(projection.memory.components[name] for name in _KEPT) / _GIB
        error = math.log((held + block) / (projection.memory.allocated / _GIB))
    else:
        error = math.log((run.measured.peak_memory_gib or math.nan) / _peak_gib(run, projection))
    return Peak(
        run_id=run.id,
        # of the code: MLPerf's submitters are one, since their peak is the same on any machine
        source="mlperf" if (source := publisher(run.source.title)).startswith("mlperf ") else source,
        gpu=run.gpu,
        family=run.workload.model.family,
        kind=kind(projection.resolved),
        counts="block" if block is not None else run.measured.memory_kind or "",
        error=error,
    )


def _projected(runs: Iterable[MeasuredRun]) -> Iterator[tuple[MeasuredRun, Projection]]:
    """Yields the sound runs that can be projected, with their projections."""
    for run in runs:
        if not run.problem and not run.doubt:
            with suppress(InputError, Unsupported):
                yield run, Ours("simulate").projection(run)
