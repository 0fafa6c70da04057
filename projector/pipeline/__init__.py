"""Pipeline schedules as data, one evaluator, and what the memory model and the trace viewer need from them.

``compile`` (cached) turns a schedule into index arrays; ``evaluate`` gives its times for per-stage durations;
``replay`` says what is alive when (views: ``in_flight``, ``peak``); ``trace`` and ``sketch`` show it.
"""

from __future__ import annotations

from functools import lru_cache

from projector.pipeline.bounds import lower_bound
from projector.pipeline.compiler import compile_schedule
from projector.pipeline.evaluator import evaluate
from projector.pipeline.residency import InFlight, Situations, in_flight, peak, replay, resident, situations
from projector.pipeline.schedules import build, choose, find, generator, names, problems
from projector.pipeline.timeline import Timeline
from projector.pipeline.types import KINDS, Action, Compiled, Costs, Generator, Schedule

__all__ = ["KINDS", "Action", "Compiled", "Costs", "Generator", "InFlight", "Schedule", "Situations", "Timeline"]
__all__ += ["build", "choose", "compile", "evaluate", "find", "generator", "in_flight", "lower_bound", "names", "peak"]
__all__ += ["problems", "replay", "resident", "situations"]


@lru_cache(maxsize=64)
def compile(
    name: str,
    pp: int,
    vpp: int,
    microbatches: int,
    group: int | None = None,
    extra_warmup: int = 0,
    costs: Costs | None = None,
    paired: bool = False,
) -> Compiled:
    """Returns the index arrays of a schedule, cached.

    ``name``: a registered name or alias. ``group``: ``microbatch_group_size_per_vp_stage`` (default ``pp``).
    ``extra_warmup``: forwards that every rank runs ahead beyond the usual (1 with Megatron's expert-parallel overlap).
    ``costs``: see :func:`build`; ``paired``: a forward and the backward after it
    run as one (expert-parallel overlap between micro-batches). Raises :class:`projector.errors.InputError` for an
    unknown name (with the nearest ones) or sizes that the schedule does not take.
    """
    return compile_schedule(build(name, pp, vpp, microbatches, group, extra_warmup, costs), paired)
