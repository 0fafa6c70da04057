"""``project_many``: prices what thousands of configurations share once, and projects the best of them in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import chain, islice

import numpy as np

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.frameworks.columns import Runs
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.memo import uncollected
from projector.memory.peaks import fullest
from projector.pipeline import Schedule
from projector.projection import Projection, project
from projector.settle import arguments
from projector.settle.columns import settle_many
from projector.size import Floats, Rows
from projector.step.batch import step_seconds
from projector.step.columns import stage_figures_of
from projector.workload.workload import Workload

STATUSES = ("ok", "out-of-memory", "invalid", "unsupported")
_AT_ONCE = 16384  # configurations that are settled and evaluated together: more share work, fewer need less memory


@dataclass(frozen=True, eq=False)
class Many:
    """The result of :func:`project_many`: one row per workload, in the order in which they were given.

    ``status``: one of :data:`STATUSES`, ``reason`` why it is not ``ok``; ``step_seconds``, ``tgs`` (NaN unless ``ok``);
    ``memory``: bytes allocated at the peak of the fullest rank, ``share``: what these need of the usable ones. The
    bytes are NaN for a row that is invalid or unsupported, and for one that cannot fit in whatever order (``reason``:
    "at least …"). All others are what :func:`projector.projection.project` finds for the workload alone.
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
        """Returns the first rows of :attr:`ranking`, as many as were asked for, with full projections, made on request."""
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
    """Projects every workload on ``cluster``; :attr:`Many.best` has the full projections of the ``best`` fastest (None:
    of all).

    What does not fit in memory is rejected before anything is priced. ``workloads`` may be a generator: only the best
    of them are kept. Raises nothing for a workload: its row says why it has no time. Raises :class:`InputError` for a
    mode other than ``simulate``, and for mistakes of ``cluster``.
    """
    wrong = arguments.argument_problems(cluster, mode, settings)
    if mode == "benchmark":
        wrong.append(Problem("", "mode", mode, "simulate: what was measured is looked up one run at a time"))
    raise_all(wrong)
    parts: list[_Rows] = []
    leaders, given, first = dict[int, tuple[float, Workload]](), iter(workloads), 0
    while loads := tuple(islice(given, _AT_ONCE)):
        rows = _Rows(len(loads))
        with uncollected():
            _evaluate(*_fitting(loads, cluster, rows), cluster, settings, rows)
        speeds = (rows.tokens / rows.seconds).tolist()
        leaders |= {first + i: (speed, loads[i]) for i, speed in enumerate(speeds) if speed == speed}
        leaders = dict(sorted(leaders.items(), key=lambda item: -item[1][0])[:best])
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
        fastest={i: load for i, (_, load) in leaders.items()},
        cluster=cluster,
        settings=settings,
    )


class _Rows:
    """The columns of a part of the result while they are filled."""

    def __init__(self, number: int) -> None:
        self.status, self.reason = ["ok"] * number, [""] * number
        self.seconds, self.memory, self.share, self.tokens = (np.full(number, np.nan) for _ in range(4))

    def reject(self, row: int, status: str, reason: str) -> None:
        self.status[row], self.reason[row] = status, reason

    def refuse(self, row: int, error: InputError | Unsupported) -> None:
        self.reject(row, "unsupported" if isinstance(error, Unsupported) else "invalid", str(error))

    def exceed(self, row: int, required: float, usable: float, bound: str = "") -> None:
        """Rejects a row that needs more memory than there is; ``bound``: words before the need."""
        self.reject(row, "out-of-memory", f"{bound}{required / 2**30:.1f} GiB of {usable / 2**30:.1f} GiB")


def _fitting(loads: Sequence[Workload], cluster: Cluster, rows: _Rows) -> tuple[Runs, Rows]:
    """Returns the settled runs that fit in memory, and the rows of these; rejects all others in ``rows``."""
    runs, places, refused = settle_many(loads, cluster, checked=False)
    needs, unlaid = fullest(runs, cluster.gpu)
    for row, error in (*refused.items(), *((int(places[i]), error) for i, error in unlaid.items())):
        rows.refuse(row, error)
    rows.tokens[places] = [loads[i].tokens_per_step / loads[i].gpus for i in places.tolist()]
    rows.memory[places] = np.where(needs.allocated > 0, needs.allocated, np.nan)
    rows.share[places] = needs.required / needs.usable
    for i in np.flatnonzero(needs.required > needs.usable).tolist():
        rows.exceed(places[i], needs.required[i], needs.usable[i], "" if needs.allocated[i] else "at least ")
    fits = np.flatnonzero(needs.required <= needs.usable)
    fits = fits[np.argsort(places[fits], kind="stable")]
    return runs.only(fits), places[fits]


def _evaluate(runs: Runs, places: Rows, cluster: Cluster, settings: Settings, rows: _Rows) -> None:
    """Writes the step seconds of ``runs``, which belong to ``places`` in ``rows``."""
    efficiency = efficiency_of(cluster.gpu)
    stages, refused = stage_figures_of(runs, cluster, efficiency, settings)
    for i, error in refused.items():
        rows.refuse(places[i], error)
    priced = np.array(sorted(stages), np.intp)
    runs, places = runs.only(priced), places[priced]

    def fits(place: int, order: Schedule) -> bool:
        """Returns whether the ``place``-th run fits in memory in an ``order`` that was made for its times."""
        needs, unlaid = fullest(runs.only(np.array([place])), cluster.gpu, order)
        for error in unlaid.values():
            raise error
        row = places[place]
        rows.memory[row], rows.share[row] = needs.allocated[0], needs.required[0] / needs.usable[0]
        if needs.required[0] > needs.usable[0]:
            rows.exceed(row, needs.required[0], needs.usable[0])
        return bool(needs.required[0] <= needs.usable[0])

    stages_of_run = {place: stages[i] for place, i in enumerate(priced.tolist())}
    rows.seconds[places] = step_seconds(runs, stages_of_run, cluster, efficiency, settings, fits)
