"""``project_many``: thousands of configurations at the price of their distinct parts, full projections of the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

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
from projector.settle.columns import settled_each
from projector.size import Rows
from projector.step.batch import step_seconds
from projector.step.columns import staged
from projector.workload.workload import Workload

Floats = NDArray[np.float64]

STATUSES = ("ok", "out-of-memory", "invalid", "unsupported")
_AT_ONCE = 16384  # configurations between settling and evaluation: more share what is built, fewer need less memory


@dataclass(frozen=True, eq=False)
class Many:
    """One row per workload, in the order in which they were given.

    ``status``: one of :data:`STATUSES`, ``reason`` why it is not ``ok``; ``step_seconds``, ``tgs`` (NaN unless ``ok``);
    ``memory``: bytes allocated at the peak of the fullest rank, ``share``: what these need of the usable ones. The bytes
    are NaN where there is no configuration to speak of, and where it cannot fit in whatever order (``reason``: "at least
    …"). All others are what :func:`projector.projection.project` finds for the workload alone.
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
    """Projects every workload on ``cluster``; :attr:`Many.best` has all that a projection says of the ``best`` fastest
    (None: of every one).

    What does not fit in memory is rejected before anything is priced. ``workloads`` may be a generator: only the best of
    them are kept. Raises nothing for a workload: its row says why it has no time. Raises :class:`InputError` for a mode
    other than ``simulate``, or what is wrong with ``cluster``.
    """
    wrong = arguments.around(cluster, mode, settings)
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
    """Columns of a part of the result while it is made."""

    def __init__(self, number: int) -> None:
        self.status, self.reason = ["ok"] * number, [""] * number
        self.seconds, self.memory, self.share, self.tokens = (np.full(number, np.nan) for _ in range(4))

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
    rows.tokens[those] = [loads[i].tokens_per_step / loads[i].gpus for i in those.tolist()]
    rows.memory[those] = np.where(needs.allocated > 0, needs.allocated, np.nan)
    rows.share[those] = needs.required / needs.usable
    for i in np.flatnonzero(needs.required > needs.usable).tolist():
        rows.exceed(those[i], needs.required[i], needs.usable[i], "" if needs.allocated[i] else "at least ")
    fits = np.flatnonzero(needs.required <= needs.usable)
    fits = fits[np.argsort(those[fits], kind="stable")]
    return runs.only(fits), those[fits]


def _evaluate(runs: Runs, those: Rows, cluster: Cluster, settings: Settings, rows: _Rows) -> None:
    """Step seconds of ``runs``, which are of the rows ``those``."""
    efficiency = efficiency_of(cluster.gpu)
    stages, refused = staged(runs, cluster, efficiency, settings)
    for i, error in refused.items():
        rows.refuse(those[i], error)
    priced = np.array(sorted(stages), np.intp)
    runs, those = runs.only(priced), those[priced]

    def fits(place: int, order: Schedule) -> bool:
        """Returns whether the ``place``-th of them does, in an ``order`` that was made for its times."""
        needs, unlaid = fullest(runs.only(np.array([place])), cluster.gpu, order)
        for error in unlaid.values():
            raise error
        row = those[place]
        rows.memory[row], rows.share[row] = needs.allocated[0], needs.required[0] / needs.usable[0]
        if needs.required[0] > needs.usable[0]:
            rows.exceed(row, needs.required[0], needs.usable[0])
        return bool(needs.required[0] <= needs.usable[0])

    own = {place: stages[i] for place, i in enumerate(priced.tolist())}
    rows.seconds[those] = step_seconds(runs, own, cluster, efficiency, settings, fits)
