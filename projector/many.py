"""``project_many``: thousands of configurations at the price of their distinct parts, full projections of the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappush, heappushpop
from itertools import chain, groupby, islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from projector.errors import InputError, Problem, Unsupported
from projector.frameworks import Resolved
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.memory.peaks import Laid, fullest, fullest_of, laid, least
from projector.memory.verdict import Verdict
from projector.operators.types import Operator
from projector.pipeline.exchange import finish
from projector.projection import Projection, project
from projector.settle import arguments
from projector.settle.workload import settled
from projector.step.cycle import Cycle, cycle, stacked, tuned
from projector.step.limit import limits, shortest
from projector.step.priced import Priced, priced, seconds_of
from projector.workload.workload import Workload

__all__ = ["STATUSES", "Many", "project_many"]

Floats = NDArray[np.float64]
T = TypeVar("T")

STATUSES = ("ok", "slower", "out-of-memory", "invalid", "unsupported")
_WIDE = 64  # configurations evaluated together: their timelines stay within some tens of megabytes
_HEAT = 32  # configurations priced together, once the best are full: their times can spare those behind them
_AT_ONCE = 2048  # configurations between settling and evaluation, so that 10⁵ of them need no more memory than these


@dataclass(frozen=True, eq=False)
class Many:
    """One row per workload, in the order in which they were given.

    ``status``: one of :data:`STATUSES`, ``reason`` why it is not ``ok``; ``step_seconds``, ``tgs`` (NaN unless ``ok``);
    ``memory``: bytes allocated at the peak of the fullest rank. It is NaN where there is no configuration to speak of, and
    where an order that is made for its times was not made, because it cannot fit whatever it is (``reason``: "at least …")
    or is ``slower``. That is what a row is whose bound is no faster than the best that were asked for. All others are
    what :func:`projector.projection.project` finds for the workload alone.
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
    best: int | None = 100,
    settings: Settings = kernel_settings.DEFAULT,
) -> Many:
    """Projects every workload on ``cluster`` that can be among the ``best`` fastest (None: every one);
    :attr:`Many.best` has all that a projection says of these.

    What does not fit in memory, and what the peak of the device makes too slow, is rejected before anything is priced; what
    its priced stages make too slow, before its schedule is evaluated. ``workloads`` may be a generator: only the best of
    them are kept. Raises nothing for a workload: its row says why it has no time. Raises :class:`InputError` for a mode
    other than ``simulate``, or what is wrong with ``cluster``.
    """
    wrong = arguments.around(cluster, mode, settings)
    if mode == "benchmark":
        wrong.append(Problem("", "mode", mode, "simulate: what was measured is looked up one run at a time"))
    if wrong:
        raise InputError(wrong)
    parts: list[_Rows] = []
    race, given, first = _Race(best), iter(workloads), 0
    while loads := tuple(islice(given, _AT_ONCE)):
        rows = _Rows(len(loads))
        _evaluate(_fitting(loads, cluster, rows), cluster, settings, rows, race)
        race.enter({first + i: (rows.tokens[i] / rows.seconds[i], load) for i, load in enumerate(loads)})
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
        fastest=race.leaders,
        cluster=cluster,
        settings=settings,
    )


class _Race:
    """The fastest so far, and the tokens/s/GPU that one more must beat."""

    def __init__(self, best: int | None) -> None:
        self._best = best
        self._speeds: list[float] = []
        self._leaders: dict[int, tuple[float, Workload]] = {}

    @property
    def limited(self) -> bool:
        return self._best is not None

    @property
    def heat(self) -> int:
        """How many to look at next: all, or those that there is room for, then some at a time."""
        return _AT_ONCE if self._best is None else max(self._best - len(self._speeds), _HEAT)

    @property
    def reach(self) -> float:
        """What the last of the best reaches; 0 where there is room."""
        full = self._best is not None and len(self._speeds) >= self._best
        return self._speeds[0] if full and self._speeds else 0.0

    def time(self, speeds: Iterable[float]) -> None:
        """Takes down tokens/s/GPU."""
        best = self._best or 0
        for speed in (each for each in speeds if each == each and best):
            (heappush if len(self._speeds) < best else heappushpop)(self._speeds, speed)

    def enter(self, found: Mapping[int, tuple[float, Workload]]) -> None:
        """Keeps the workloads of the fastest."""
        both = self._leaders | {i: one for i, one in found.items() if one[0] == one[0]}
        order = sorted(both.items(), key=lambda item: -item[1][0])
        self._leaders = dict(order[: self._best])

    @property
    def leaders(self) -> dict[int, Workload]:
        return {i: load for i, (_, load) in self._leaders.items()}


class _Rows:
    """Columns of a part of the result while it is made."""

    def __init__(self, number: int) -> None:
        self.status, self.reason = ["ok"] * number, [""] * number
        self.seconds, self.memory, self.tokens = (np.full(number, np.nan) for _ in range(3))

    def reject(self, row: int, status: str, reason: str) -> None:
        self.status[row], self.reason[row] = status, reason

    def faster(self, those: Sequence[tuple[int, T]], most: Floats, race: _Race) -> list[tuple[int, T]]:
        """Those that can be among the best at the ``most`` tokens/s/GPU they reach; the others are rejected."""
        reach = race.reach
        for (row, _), speed in zip(those, most, strict=True):
            if speed <= reach:
                self.reject(row, "slower", f"at most {speed:.4g} tokens/s/GPU, the best have {reach:.4g} or more")
        return [one for one, speed in zip(those, most, strict=True) if speed > reach]

    def fits(self, row: int, verdict: Verdict, bound: str = "") -> bool:
        """Whether a row fits in memory; it is rejected where it does not, or where a ``bound`` says that it cannot."""
        if verdict.margin < 0:
            self.reject(
                row, "out-of-memory", f"{bound}{verdict.required / 1e9:.1f} GB of {verdict.usable / 1e9:.1f} GB"
            )
        return verdict.margin >= 0


def _fitting(loads: Sequence[Workload], cluster: Cluster, rows: _Rows) -> list[tuple[int, Resolved]]:
    """Rows that can run and fit, as the cluster would run them; the others are rejected in ``rows``."""
    every = list(_laid(loads, cluster, rows))
    known = [(row, run) for row, run in every if not tuned(run.resolved)]  # the order of others waits for their times
    peaks = dict(zip((row for row, _ in known), fullest_of([run for _, run in known], cluster.gpu), strict=True))
    fitting = []
    for row, run in every:
        if row in peaks:
            rows.memory[row], verdict = peaks[row]
            fits = rows.fits(row, verdict)
        else:
            fits = rows.fits(row, least(run, cluster.gpu), "at least ")
        if fits:
            fitting.append((row, run.resolved))
    return fitting


def _laid(loads: Sequence[Workload], cluster: Cluster, rows: _Rows) -> Iterator[tuple[int, Laid]]:
    for row, load in enumerate(loads):
        try:
            wrong = arguments.of_workload(load)
            if wrong:
                raise InputError(wrong)
            run = laid(settled(load, cluster, published=False), cluster.gpu)
        except InputError as error:
            rows.reject(row, "invalid", str(error))
        except Unsupported as error:
            rows.reject(row, "unsupported", str(error))
        else:
            rows.tokens[row] = load.tokens_per_step / load.gpus
            yield row, run


def _evaluate(
    fitting: Sequence[tuple[int, Resolved]], cluster: Cluster, settings: Settings, rows: _Rows, race: _Race
) -> None:
    """Step seconds of those of ``fitting`` that can win: the fastest by the peak of the device first."""
    runs = [resolved for _, resolved in fitting]
    device, _ = settings.device(cluster.gpu, efficiency_of(cluster.gpu))
    most = np.full(len(runs), np.inf)
    if race.limited:
        most = rows.tokens[[row for row, _ in fitting]] / shortest(runs, [limits(run, device) for run in runs])
    order = np.argsort(-most, kind="stable")
    while len(order):
        now, order = np.split(order, [race.heat])
        heat = rows.faster([fitting[i] for i in now], most[now], race)
        steps = _priced(heat, cluster, settings, rows)
        if race.limited:
            floor = shortest([made.resolved for _, made in steps], [seconds_of(made) for _, made in steps])
            steps = rows.faster(steps, rows.tokens[[row for row, _ in steps]] / floor, race)
        _time(steps, cluster, rows)
        done = [row for row, _ in steps]
        race.time(rows.tokens[done] / rows.seconds[done])


def _priced(
    heat: Sequence[tuple[int, Resolved]], cluster: Cluster, settings: Settings, rows: _Rows
) -> list[tuple[int, Priced]]:
    efficiency, steps = efficiency_of(cluster.gpu), []
    for row, resolved in heat:
        try:
            steps.append((row, priced(resolved, cluster, efficiency, "simulate", settings)))
        except (InputError, Unsupported) as error:
            rows.reject(row, "unsupported" if isinstance(error, Unsupported) else "invalid", str(error))
    return steps


def _time(steps: Sequence[tuple[int, Priced]], cluster: Cluster, rows: _Rows) -> None:
    """Step seconds: what is done once a step of all of them first, then their schedules in batches."""
    once = _once([made for _, made in steps])
    # schedule by schedule: few of them are in the memory at a time
    for _, alike in groupby(sorted(steps, key=lambda step: _schedule(step[1])), key=lambda step: _schedule(step[1])):
        cycles: dict[tuple[object, ...], list[tuple[int, Cycle, float]]] = {}
        for row, made in alike:
            run = cycle(made.resolved, made.times, made.held, made.clock(once[id(made.model)]))
            if tuned(made.resolved):
                rows.memory[row], verdict = fullest(
                    laid(made.resolved, cluster.gpu), cluster.gpu, run.compiled.schedule
                )
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
