"""``project_many``: thousands of configurations at the price of their distinct parts, full projections of the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby, islice

import numpy as np
from numpy.typing import NDArray

from projector.errors import InputError, Problem, Unsupported
from projector.frameworks import Resolved
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.layers.types import Operator
from projector.memory.plan import fullest, least
from projector.memory.verdict import Verdict
from projector.pipeline.exchange import finish
from projector.projection import Projection, project
from projector.settle import arguments
from projector.settle.workload import settled
from projector.step.cycle import Cycle, cycle, stacked, tuned
from projector.step.priced import Priced, priced
from projector.workload.workload import Workload

__all__ = ["STATUSES", "Many", "project_many"]

Floats = NDArray[np.float64]

STATUSES = ("ok", "out-of-memory", "invalid", "unsupported")
_WIDE = 64  # configurations evaluated together: their timelines stay within some tens of megabytes
_AT_ONCE = 2048  # configurations between settling and evaluation, so that 10⁵ of them need no more memory than these


@dataclass(frozen=True, eq=False)
class Many:
    """One row per workload, in the order in which they were given.

    ``status``: one of :data:`STATUSES`, ``reason`` why it is not ``ok``; ``step_seconds``, ``tgs`` (NaN unless ``ok``);
    ``memory``: bytes allocated at the peak of the fullest rank. It is NaN where there is no configuration to speak of, and
    where an order that is made for its times cannot fit whatever it is (``reason``: "at least …"). All others are what
    :func:`projector.project` finds for the workload alone.
    """

    status: tuple[str, ...]
    reason: tuple[str, ...]
    step_seconds: Floats
    tgs: Floats
    memory: Floats
    fastest: Mapping[int, Workload] = field(repr=False)
    cluster: Cluster = field(repr=False)
    settings: Settings = field(repr=False)

    def __len__(self) -> int:
        return len(self.status)

    @cached_property
    def ranking(self) -> tuple[int, ...]:
        """Rows that are ``ok``, the highest tokens/s/GPU first."""
        return tuple(int(i) for i in np.argsort(-self.tgs, kind="stable") if self.status[i] == "ok")

    @cached_property
    def best(self) -> tuple[tuple[int, Projection], ...]:
        """The first rows of :attr:`ranking`, as many as were asked for, with their full projections, made when first asked
        for."""
        chosen = ((i, self.fastest[i]) for i in self.ranking[: len(self.fastest)])
        return tuple((i, project(load, self.cluster, settings=self.settings)) for i, load in chosen)


def project_many(
    workloads: Iterable[Workload],
    cluster: Cluster,
    mode: str = "simulate",
    *,
    best: int = 100,
    settings: Settings = kernel_settings.DEFAULT,
) -> Many:
    """Projects every workload on ``cluster``; of the ``best`` fastest :attr:`Many.best` has all that a projection says.

    What does not fit in memory is rejected before anything is priced. ``workloads`` may be a generator: only the best of
    them are kept. Raises nothing for a workload: its row says why it has no time. Raises :class:`InputError` for a mode
    other than ``simulate``, or what is wrong with ``cluster``.
    """
    wrong = arguments.around(cluster, mode, settings)
    if mode == "benchmark":
        wrong.append(Problem("", "mode", mode, "simulate: what was measured is looked up one run at a time"))
    if wrong:
        raise InputError(wrong)
    parts: list[_Rows] = []
    fastest: dict[int, tuple[float, Workload]] = {}
    given, first = iter(workloads), 0
    while loads := tuple(islice(given, _AT_ONCE)):
        rows = _Rows(len(loads))
        _evaluate(list(_fitting(loads, cluster, rows)), cluster, settings, rows)
        speeds = rows.tokens / rows.seconds
        here = ((first + i, (float(speeds[i]), loads[i])) for i in np.argsort(-speeds, kind="stable")[:best])
        fastest |= {i: found for i, found in here if found[0] == found[0]}
        fastest = dict(sorted(fastest.items(), key=lambda item: -item[1][0])[:best])
        parts.append(rows)
        first += len(loads)
    seconds, tokens, memory = (
        np.concatenate([np.zeros(0), *(getattr(rows, name) for rows in parts)])
        for name in ("seconds", "tokens", "memory")
    )
    return Many(
        status=tuple(chain.from_iterable(rows.status for rows in parts)),
        reason=tuple(chain.from_iterable(rows.reason for rows in parts)),
        step_seconds=seconds,
        tgs=tokens / seconds,
        memory=memory,
        fastest={int(i): load for i, (_, load) in fastest.items()},
        cluster=cluster,
        settings=settings,
    )


class _Rows:
    """Columns of a part of the result while it is made."""

    def __init__(self, number: int) -> None:
        self.status, self.reason = ["ok"] * number, [""] * number
        self.seconds, self.memory, self.tokens = (np.full(number, np.nan) for _ in range(3))

    def reject(self, row: int, status: str, reason: str) -> None:
        self.status[row], self.reason[row] = status, reason

    def fits(self, row: int, verdict: Verdict, bound: str = "") -> bool:
        """Whether a row fits in memory; it is rejected where it does not, or where a ``bound`` says that it cannot."""
        if verdict.margin < 0:
            self.reject(
                row, "out-of-memory", f"{bound}{verdict.required / 1e9:.1f} GB of {verdict.usable / 1e9:.1f} GB"
            )
        return verdict.margin >= 0


def _fitting(loads: Sequence[Workload], cluster: Cluster, rows: _Rows) -> Iterator[tuple[int, Resolved]]:
    """Rows that can run and fit, as the cluster would run them; the others are rejected in ``rows``."""
    for row, load in enumerate(loads):
        try:
            wrong = arguments.of_workload(load)
            if wrong:
                raise InputError(wrong)
            resolved = settled(load, cluster, published=False)
            if tuned(resolved):  # its order, and with it its memory, waits for its times
                rows.tokens[row] = load.tokens_per_step / load.gpus
                if rows.fits(row, least(resolved, cluster.gpu), "at least "):
                    yield row, resolved
                continue
            allocated, verdict = fullest(resolved, cluster.gpu)
        except InputError as error:
            rows.reject(row, "invalid", str(error))
            continue
        except Unsupported as error:
            rows.reject(row, "unsupported", str(error))
            continue
        rows.memory[row] = allocated
        rows.tokens[row] = load.tokens_per_step / load.gpus
        if rows.fits(row, verdict):
            yield row, resolved


def _evaluate(fitting: Sequence[tuple[int, Resolved]], cluster: Cluster, settings: Settings, rows: _Rows) -> None:
    """Step seconds of ``fitting``: kernels of all of them first, then their schedules in batches."""
    efficiency = efficiency_of(cluster.gpu)
    steps: list[tuple[int, Priced]] = []
    for row, resolved in fitting:
        try:
            steps.append((row, priced(resolved, cluster, efficiency, "simulate", settings)))
        except (InputError, Unsupported) as error:
            rows.reject(row, "unsupported" if isinstance(error, Unsupported) else "invalid", str(error))
    once = _once([made for _, made in steps])
    # schedule by schedule: few of them are in the memory at a time
    for _, alike in groupby(sorted(steps, key=lambda step: _schedule(step[1])), key=lambda step: _schedule(step[1])):
        cycles: dict[tuple[object, ...], list[tuple[int, Cycle, float]]] = {}
        for row, made in alike:
            run = cycle(made.resolved, made.times, made.held, made.clock(once[id(made.model)]))
            if tuned(made.resolved):
                rows.memory[row], verdict = fullest(made.resolved, cluster.gpu, run.compiled.schedule)
                if not rows.fits(row, verdict):
                    continue
            cycles.setdefault(_alike(run), []).append((row, run, made.idle))
        for group in cycles.values():
            for first in range(0, len(group), _WIDE):
                rows_, runs, idle = zip(*group[first : first + _WIDE], strict=True)
                rows.seconds[list(rows_)] = _seconds(runs) + np.array(idle)


def _schedule(made: Priced) -> tuple[str, int, int, int]:
    workload, recipe = made.resolved.workload, made.resolved.workload.recipe
    return recipe.pipeline_schedule or "", recipe.pp, recipe.vpp, workload.num_microbatches


def _once(steps: Sequence[Priced]) -> dict[int, dict[Operator, float]]:
    """Seconds of all that is computed once a step, by kernel model: one vectorised call for each."""
    ops: dict[int, dict[Operator, None]] = {}
    models = {id(made.model): made.model for made in steps}
    for made in steps:
        ops.setdefault(id(made.model), {}).update(dict.fromkeys(made.optimizers()))
    found: dict[int, dict[Operator, float]] = {}
    for key, those in ops.items():
        times = models[key].times(list(those))  # type: ignore[arg-type]
        found[key] = dict(zip(those, times.seconds.tolist(), strict=True))
    return found


def _alike(run: Cycle) -> tuple[object, ...]:
    """Equal for runs whose schedules can be evaluated together."""
    exchange = run.exchange
    together = id(run.compiled), run.overlap_p2p, run.overlap_flush, exchange.overlap_reduce, exchange.overlap_gather
    return (*together, exchange.bucket, exchange.logged, id(run) if run.hidden is not None else None)


def _seconds(runs: Sequence[Cycle]) -> Floats:
    run = runs[0] if len(runs) == 1 else stacked(runs)
    start = run.arrival()
    return run.seconds(start, finish(run.exchange, run.play(start, run.messages)))
