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
from projector.frameworks import Resolved
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster, Efficiency
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.memo import uncollected
from projector.memory.columns import laid
from projector.memory.peaks import Fullest, fullest, fullest_of
from projector.memory.verdict import Need
from projector.pipeline import Schedule
from projector.projection import Projection, project
from projector.settle import arguments
from projector.settle.workload import settled_each
from projector.step.batch import shortest, step_seconds
from projector.step.columns import staged
from projector.workload.workload import Workload

Floats = NDArray[np.float64]

STATUSES = ("ok", "slower", "out-of-memory", "invalid", "unsupported")
_HEAT = 32  # configurations timed together, once the best are full: their times can spare those behind them
_AT_ONCE = 8192  # configurations between settling and evaluation, so that 10⁵ of them need no more memory than these


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
        rows = _Rows(len(loads))
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

    def __init__(self, number: int) -> None:
        self.status, self.reason = ["ok"] * number, [""] * number
        self.seconds, self.memory, self.share, self.tokens = (np.full(number, np.nan) for _ in range(4))

    def reject(self, row: int, status: str, reason: str) -> None:
        self.status[row], self.reason[row] = status, reason

    def refuse(self, row: int, error: InputError | Unsupported) -> None:
        self.reject(row, "unsupported" if isinstance(error, Unsupported) else "invalid", str(error))

    def fits(self, row: int, need: Need, bound: str = "") -> bool:
        """Returns whether a row fits in memory; it is rejected where it does not, or where a ``bound`` says that it
        cannot."""
        self.share[row] = need.required / need.usable
        if need.margin < 0:
            self.reject(
                row, "out-of-memory", f"{bound}{need.required / 2**30:.1f} GiB of {need.usable / 2**30:.1f} GiB"
            )
        return need.margin >= 0


def _fitting(loads: Sequence[Workload], cluster: Cluster, rows: _Rows) -> list[tuple[int, Resolved]]:
    """Rows that can run and fit, as the cluster would run them; the others are rejected in ``rows``."""
    fitting = []
    held = laid(settled_each(loads, cluster, checked=False), cluster.gpu)
    for row, found in enumerate(fullest_of(held, cluster.gpu)):
        if not isinstance(found, Fullest):
            rows.refuse(row, found)
            continue
        rows.tokens[row] = loads[row].tokens_per_step / loads[row].gpus
        rows.memory[row] = found.allocated or np.nan
        if rows.fits(row, found.need, "" if found.allocated else "at least "):
            fitting.append((row, found.run))
    return fitting


def _evaluate(
    fitting: Sequence[tuple[int, Resolved]], cluster: Cluster, settings: Settings, rows: _Rows, race: _Race
) -> None:
    """Step seconds of those of ``fitting`` that can win: the highest bound on their speed first, by their priced stages."""
    efficiency = efficiency_of(cluster.gpu)
    steps: list[tuple[int, Resolved, Floats]] = []
    made = staged([run for _, run in fitting], cluster, efficiency, settings)
    for (row, run), stages in zip(fitting, made, strict=True):
        if isinstance(stages, InputError | Unsupported):
            rows.refuse(row, stages)
        else:
            steps.append((row, run, stages))
    timed = partial(_time, cluster=cluster, efficiency=efficiency, settings=settings, rows=rows)
    if not race.limited:
        timed(steps)
        return
    least = shortest([run for _, run, _ in steps], [(stages[0], stages[1], stages[2]) for _, _, stages in steps])
    bounds = rows.tokens[[row for row, _, _ in steps]] / least
    queue = np.argsort(-bounds, kind="stable")
    while len(queue) and bounds[queue[0]] > race.reach:
        heat = queue[: race.heat]
        now, queue = heat[bounds[heat] > race.reach], queue[len(heat) :]
        timed([steps[i] for i in now])
        done = [steps[i][0] for i in now]
        race.time(rows.tokens[done] / rows.seconds[done])
    for i in np.flatnonzero(np.isnan(rows.seconds[[row for row, _, _ in steps]])):
        if rows.status[steps[i][0]] == "ok":
            reason = f"at most {bounds[i]:.4g} tokens/s/GPU, the best have {race.reach:.4g} or more"
            rows.reject(steps[i][0], "slower", reason)


def _time(
    steps: Sequence[tuple[int, Resolved, Floats]],
    cluster: Cluster,
    efficiency: Efficiency,
    settings: Settings,
    rows: _Rows,
) -> None:
    """Step seconds of rows whose stages are priced."""

    def fits(place: int, order: Schedule) -> bool:
        """Returns whether the ``place``-th of them does, in an ``order`` that was made for its times."""
        row, run, _ = steps[place]
        [held] = laid([run], cluster.gpu)
        if isinstance(held, InputError | Unsupported):
            raise held
        rows.memory[row], need = fullest(held, cluster.gpu, order)
        return rows.fits(row, need)

    each = [row for row, _, _ in steps]
    runs, stages = [run for _, run, _ in steps], [stages for _, _, stages in steps]
    rows.seconds[each] = step_seconds(runs, stages, cluster, efficiency, settings, fits)
