"""``project_many``: thousands of configurations at the price of their distinct parts, full projections of the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.frameworks.columns import Runs
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster, Efficiency
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.memo import uncollected
from projector.memory.peaks import fullest
from projector.pipeline import Schedule
from projector.projection import Projection, project
from projector.settle import arguments
from projector.settle.columns import settled_each
from projector.size import Rows
from projector.step.batch import shortest, step_seconds
from projector.step.columns import staged
from projector.workload.workload import Workload

Floats = NDArray[np.float64]

STATUSES = ("ok", "slower", "out-of-memory", "invalid", "unsupported")
_HEAT = 32  # configurations timed together, once the best are full: their times can spare those behind them
_AT_ONCE = 16384  # configurations between settling and evaluation: more share what is built, fewer need less memory


@dataclass(frozen=True, eq=False)
class Many:
    """One row per workload, in the order in which they were given.

    ``status``: one of :data:`STATUSES`, ``reason`` why it is not ``ok``; ``step_seconds``, ``tgs`` (NaN unless ``ok``);
    ``memory``: bytes allocated at the peak of the fullest rank, ``share``: what these need of the usable ones. The bytes
    are NaN where there is no configuration to speak of, where it cannot fit in whatever order (``reason``: "at least …"),
    and where an order that is made for its times was not made, because it is ``slower``. That is what a row is whose bound
    is no faster than the best that were asked for. All others are what :func:`projector.projection.project` finds for the
    workload alone.
    """

    status: tuple[str, ...]
    reason: tuple[str, ...]
    step_seconds: Floats
    tgs: Floats
    memory: Floats
    share: Floats
    fastest: Mapping[int, Workload] = field(repr=False)
    cluster: Cluster = field(repr=False)
    settings: Settings = field(repr=False)

    def __len__(self) -> int:
        return len(self.status)

    @cached_property
    def ranking(self) -> tuple[int, ...]:
        """Returns the rows that are ``ok``, the highest tokens/s/GPU first."""
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

    What does not fit in memory is rejected before anything is priced; what its priced stages make too slow, before its
    schedule is evaluated. ``workloads`` may be a generator: only the best of
    them are kept. Raises nothing for a workload: its row says why it has no time. Raises :class:`InputError` for a mode
    other than ``simulate``, or what is wrong with ``cluster``.
    """
    wrong = arguments.around(cluster, mode, settings)
    if mode == "benchmark":
        wrong.append(Problem("", "mode", mode, "simulate: what was measured is looked up one run at a time"))
    raise_all(wrong)
    parts: list[_Rows] = []
    race, given, first = _Race(best), iter(workloads), 0
    while loads := tuple(islice(given, _AT_ONCE)):
        rows = _Rows(loads)
        with uncollected():
            _evaluate(_fitting(loads, cluster, rows), cluster, settings, rows, race)
        race.enter({first + i: (rows.tokens[i] / rows.seconds[i], load) for i, load in enumerate(loads)})
        parts.append(rows)
        first += len(loads)
    seconds, tokens, memory, share = (
        np.concatenate([np.zeros(0), *(getattr(rows, name) for rows in parts)])
        for name in ("seconds", "tokens", "memory", "share")
    )
    return Many(
        status=tuple(chain.from_iterable(rows.status for rows in parts)),
        reason=tuple(chain.from_iterable(rows.reason for rows in parts)),
        step_seconds=seconds,
        tgs=tokens / seconds,
        memory=memory,
        share=share,
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
        """Returns how many to look at next: all, or those that there is room for, then some at a time."""
        return _AT_ONCE if self._best is None else max(self._best - len(self._speeds), _HEAT)

    @property
    def reach(self) -> float:
        """Returns what the last of the best reaches; 0 where there is room."""
        return self._speeds[-1] if self._best and len(self._speeds) == self._best else 0.0

    def time(self, speeds: Iterable[float]) -> None:
        """Takes down tokens/s/GPU."""
        known = (each for each in speeds if each == each)
        self._speeds = sorted((*self._speeds, *known), reverse=True)[: self._best]

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

    def __init__(self, loads: Sequence[Workload]) -> None:
        number = len(loads)
        self.status, self.reason = ["ok"] * number, [""] * number
        self.seconds, self.memory, self.share = (np.full(number, np.nan) for _ in range(3))
        self.tokens = np.array([load.tokens_per_step / load.gpus for load in loads])

    def reject(self, row: int, status: str, reason: str) -> None:
        self.status[row], self.reason[row] = status, reason

    def refuse(self, row: int, error: InputError | Unsupported) -> None:
        self.reject(row, "unsupported" if isinstance(error, Unsupported) else "invalid", str(error))

    def exceed(self, row: int, required: float, usable: float, bound: str = "") -> None:
        """Rejects a row that needs more than there is, or of which a ``bound`` says so."""
        self.reject(row, "out-of-memory", f"{bound}{required / 2**30:.1f} GiB of {usable / 2**30:.1f} GiB")


def _fitting(loads: Sequence[Workload], cluster: Cluster, rows: _Rows) -> tuple[Runs, Rows]:
    """What can run and fits, as the cluster would run it, and its rows; the others are rejected in ``rows``."""
    runs, those, refused = settled_each(loads, cluster, checked=False)
    needs, unlaid = fullest(runs, cluster.gpu)
    for row, error in (*refused.items(), *((int(those[i]), error) for i, error in unlaid.items())):
        rows.refuse(row, error)
    rows.memory[those] = np.where(needs.allocated > 0, needs.allocated, np.nan)
    rows.share[those] = needs.required / needs.usable
    for i in np.flatnonzero(needs.required > needs.usable).tolist():
        rows.exceed(those[i], needs.required[i], needs.usable[i], "" if needs.allocated[i] else "at least ")
    fits = np.flatnonzero(needs.required <= needs.usable)
    fits = fits[np.argsort(those[fits], kind="stable")]
    return runs.only(fits), those[fits]


def _evaluate(fitting: tuple[Runs, Rows], cluster: Cluster, settings: Settings, rows: _Rows, race: _Race) -> None:
    """Step seconds of those that can win: the highest bound on their speed first, by their priced stages."""
    runs, those = fitting
    efficiency = efficiency_of(cluster.gpu)
    made, refused = staged(runs, cluster, efficiency, settings)
    for i, error in refused.items():
        rows.refuse(those[i], error)
    timed = partial(_time, cluster=cluster, efficiency=efficiency, settings=settings, rows=rows)
    there = np.array(sorted(made), np.intp)
    if not race.limited:
        timed(runs.only(there), those[there], {place: made[i] for place, i in enumerate(there.tolist())})
        return
    bounds = rows.tokens[those] / shortest(runs, made)
    queue = there[np.argsort(-bounds[there], kind="stable")]
    while len(queue) and bounds[queue[0]] > race.reach:
        heat = queue[: race.heat]
        now, queue = heat[bounds[heat] > race.reach], queue[len(heat) :]
        timed(runs.only(now), those[now], {place: made[i] for place, i in enumerate(now.tolist())})
        race.time(rows.tokens[those[now]] / rows.seconds[those[now]])
    for i in there[np.isnan(rows.seconds[those[there]])].tolist():
        if rows.status[those[i]] == "ok":
            reason = f"at most {bounds[i]:.4g} tokens/s/GPU, the best have {race.reach:.4g} or more"
            rows.reject(those[i], "slower", reason)


def _time(
    runs: Runs,
    those: Rows,
    stages: Mapping[int, Floats],
    cluster: Cluster,
    efficiency: Efficiency,
    settings: Settings,
    rows: _Rows,
) -> None:
    """Step seconds of rows ``those``, whose stages are priced."""

    def fits(place: int, order: Schedule) -> bool:
        """Returns whether the ``place``-th of them does, in an ``order`` that was made for its times."""
        needs, refused = fullest(runs.only(np.array([place])), cluster.gpu, order)
        for error in refused.values():
            raise error
        row = those[place]
        rows.memory[row], rows.share[row] = needs.allocated[0], needs.required[0] / needs.usable[0]
        if needs.required[0] > needs.usable[0]:
            rows.exceed(row, needs.required[0], needs.usable[0])
        return bool(needs.required[0] <= needs.usable[0])

    rows.seconds[those] = step_seconds(runs, stages, cluster, efficiency, settings, fits)
