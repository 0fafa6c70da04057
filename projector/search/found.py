"""``search``: the best configurations of a space, which of them measured runs cannot tell apart, why the next layout
loses, and what binds."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported
from projector.expectation import Knowledge
from projector.hardware.scaled import BETTER
from projector.hardware.types import Cluster
from projector.io.rows import Rows
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.memory.tolerance import TOLERANCE, tolerance
from projector.projection import Projection, project
from projector.search.axes import Option
from projector.search.binding import Binding, bindings
from projector.search.bounds import Blocks, roomier
from projector.search.branch_and_bound import BranchAndBound
from projector.search.cores import Clock
from projector.search.explore import gains
from projector.search.nodes import Candidate, Counts, SearchState, layout_of
from projector.search.objective import Objective
from projector.search.opening import around, descend
from projector.search.space import Space, with_fields
from projector.search.tree import Tree
from projector.search.words import words
from projector.settle.workload import settle_checked
from projector.workload.workload import Workload

_RATE = 10_000  # combinations that are bounded or projected in a CPU second, at least
_LARGE = 1 << 20  # combinations from which a space is worth several processes
_OPENING = 4.0  # CPU seconds of a common start, before several processes search without a deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A configuration with its projection. ``value``: of the objective, smaller is better; ``gain``: expected
    throughput over that of the winner, less 1, with the ends of its 90 % interval (middle, low, high)."""

    fields: Option
    workload: Workload
    projection: Projection
    value: float
    gain: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __repr__(self) -> str:
        return f"{self.projection.tgs:,.1f} tokens/s/GPU, {words(self.fields)}"

    @property
    def alike(self) -> bool:
        """Returns whether its step cannot be told from the winner's: 0 lies inside the 90 % interval of ``gain``."""
        return self.gain[1] <= 0.0 <= self.gain[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a search stops and what it returns. ``seconds`` of CPU, ``projections``: after which it stops (None: exact).
    With ``seconds`` a good configuration is looked for first (:mod:`projector.search.opening`), however long that
    takes. ``margin``: share of the usable memory that stays free. ``top``: how many configurations are wanted, those
    that differ only in what is done once a step counted as one. ``jobs``: processes that work side by side, each for
    ``seconds``; with ``projections`` one."""

    jobs: int = 1
    seconds: float | None = None
    projections: int | None = None
    margin: float = 0.0
    top: int = 16


@dataclass(frozen=True, kw_only=True)
class SearchResult(Rows):
    """The result of a search. ``best``: the winner first; ``hits``: all that was projected; ``front``: the hits that no
    other beats in all of seconds, GPU-seconds and memory; ``gap``: see :attr:`BranchAndBound.gap`; ``most``: where
    ``gap`` is None, the share by which the best may be off, because no device is faster than its peak (None: the
    objective is no speed); ``seconds``: of CPU, of all processes; ``next``: the best configuration of another layout;
    ``moved``: seconds that it takes more than the winner, by part of the step; ``close``: a better configuration that
    is too close to the limit of memory to tell whether it fits, where the winner does fit."""

    space: Space
    best: tuple[Best, ...]
    front: tuple[Candidate, ...]
    hits: tuple[Candidate, ...]
    counts: Counts
    gap: float | None
    most: float | None
    seconds: float
    refused: Mapping[tuple[str, str], int]
    reasons: Mapping[str, int]
    next: Best | None = None
    moved: Mapping[str, float] = field(default_factory=dict)
    binding: tuple[Binding, ...] = ()
    close: Best | None = None

    def plot(self, what: str = "front") -> Any:
        """Returns a matplotlib figure: time against memory (``front``), or where the time of the best goes
        (``breakdown``). Raises :class:`InputError` for another word."""
        from projector.search.plots import figures

        drawn = figures(self, self.space.base.model.name)
        if what not in drawn:
            raise InputError([Problem("plot()", "what", what, " or ".join(drawn))])
        return drawn[what]

    @property
    def alike(self) -> int:
        """Returns how many of the best configurations, the winner included, have a step whose ratio to the winner's has
        1 inside its 90 % interval."""
        return sum(each.alike for each in self.best)

    def surest(self, seconds: Callable[[Best], float]) -> Best:
        """Returns the configuration with the highest tokens/s/GPU where its step takes ``seconds``, such as the slow
        end of its interval; the first of equals."""
        return max(self.best, key=lambda each: each.projection.tgs * each.projection.step_seconds / seconds(each))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Returns for each of the best the fields that it sets and its figures, as plain values."""
        return [
            {name: value for name, value in each.fields.items() if value is not None}
            | {"step_seconds": each.projection.step_seconds, "tgs": each.projection.tgs, "mfu": each.projection.mfu}
            | dict(zip(("gain", "gain_low", "gain_high"), each.gain, strict=True))
            | {"memory": each.projection.memory.status, "spare_gib": each.projection.memory.margin_bytes / 2.0**30}
            for each in self.best
        ]

    def __repr__(self) -> str:
        head = f"{len(self.best)} best of {self.counts.points:,} combinations in {self.seconds:.1f} s of CPU:"
        return "\n".join((head, *(f"  {each!r}" for each in self.best[:5])))


def search(
    space: Space,
    cluster: Cluster,
    objective: Objective,
    limits: Limits,
    *,
    settings: Settings = kernel_settings.DEFAULT,
    explained: bool = True,
    told: Callable[[Counts, float | None], None] = lambda *_: None,
    knowledge: Knowledge | None = None,
) -> SearchResult:
    """Returns the best configurations of ``space`` on ``cluster``. Raises :class:`InputError` where no rule lets a
    configuration through, with the rules that empty the space. ``explained``: also says what binds the best. ``told``:
    gets the counts and the best value so far. ``knowledge``: what tells two configurations apart (None: what the
    package carries)."""
    smaller = roomier(cluster, 1.0 - limits.margin)
    searcher = _Searcher(space, smaller, objective, limits, settings, told, math.exp(-_tolerance(space, cluster)))
    first = searcher.opening(searcher.safe_limit) or searcher.opening(1.0)
    seeds: Sequence[Candidate] = first.hits if first else ()
    if first:  # the stated configuration may fit, too, even if not surely
        seeds = searcher.run(around(space, space.stated, ()), seeds).hits
    solver = searcher.run(space, seeds)
    if not solver.counts.enumerated:
        raise solver.tree.empty()
    shown = partial(_projected, space=space, cluster=cluster, settings=settings, knowledge=knowledge or Knowledge())
    close, limit = shown(solver.leaders[:1]), 1.0
    if close and close[0].projection.memory.order and solver.safe_hits:  # the best may not fit: what surely does leads
        solver.hits, limit = solver.safe_hits, solver.safe_limit
    leaders = solver.leaders
    second = [hit for hit in leaders if layout_of(hit.fields) != layout_of(leaders[0].fields)][:1]
    best = shown(leaders[: limits.top])
    other = shown(second)[0] if second else None
    misses = [(b, with_fields(space.base, f)) for b, share, f in solver.near_misses if limit < share < BETTER * limit]
    within = roomier(searcher.cluster, limit)
    binding = bindings(best[0].projection, best[0].workload, within, settings, misses) if best and explained else ()
    return SearchResult(
        space=space,
        best=best,
        front=_front(solver.hits, space.base),
        hits=tuple(solver.hits),
        counts=first.counts if first and solver.gap is None else solver.counts,
        gap=solver.gap,
        most=_most(best[0], space, objective) if best and solver.gap is None else None,
        seconds=searcher.clock.now() + searcher.clock.others,
        refused=solver.refused,
        reasons=solver.reasons,
        next=other,
        moved=_seconds_moved(best[0].projection, other.projection) if other else {},
        binding=binding,
        close=close[0] if close and leaders[0].fields != close[0].fields else None,
    )


@dataclass(frozen=True)
class _Searcher:
    """Searches a space and parts of it, under the limits of one search, whose clock begins now."""

    space: Space
    cluster: Cluster
    objective: Objective
    limits: Limits
    settings: Settings
    progress: Callable[[Counts, float | None], None]
    safe_limit: float
    blocks: Blocks = field(default_factory=dict)
    weights: dict[Hashable, float | str] = field(default_factory=dict)
    projected: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    @property
    def jobs(self) -> int:
        return 1 if self.limits.projections is not None else self.limits.jobs

    def run(self, part: Space, seeds: Sequence[Candidate]) -> BranchAndBound:
        """Returns the finished search of ``part``, which is cut into pieces for several processes where it is large.
        ``seeds``: see :class:`BranchAndBound`."""
        solver = self._solver(part, seeds)
        late = self.limits.seconds is not None and self.clock.now() > self.limits.seconds
        pieces = part.pieces(self.jobs) if part.points >= _LARGE and not late else (part,)
        if len(pieces) == 1:
            solver.run()
            return solver
        works = [partial(self._outcome, piece, seeds) for piece in pieces]
        latest: dict[int, tuple[Counts, float | None]] = {}

        def told(number: int, news: tuple[Counts, float | None]) -> None:
            latest[number] = news
            best = min((value for _, value in latest.values() if value is not None), default=None)
            self.progress(sum((counts for counts, _ in latest.values()), Counts()), best)

        solver.join(self.clock.beside(works, self.jobs, told))
        solver.counts.points = part.points
        self.progress(solver.counts, min((hit.value for hit in solver.hits), default=None))
        return solver

    def _outcome(self, piece: Space, seeds: Sequence[Candidate], tell: Callable[[Any], None]) -> SearchState:
        return self._solver(piece, seeds, progress=lambda *news: tell(news)).outcome()

    def _solver(self, part: Space, seeds: Sequence[Candidate], **other: Any) -> BranchAndBound:
        """Returns a search of ``part`` that has not begun. ``other``: arguments that replace those of the whole search."""
        given: dict[str, Any] = {
            "settings": self.settings,
            "now": self.clock.now,
            "blocks": self.blocks,
            "weights": self.weights,
            "safe_limit": self.safe_limit,
            "top": self.limits.top,
            "deadline": self.limits.seconds,
            "max_projections": self.limits.projections,
            "progress": self.progress,
        }
        return BranchAndBound(
            Tree(part), self.cluster, self.objective, seeds=seeds, projected=self.projected, **given | other
        )

    def opening(self, limit: float) -> SearchState | None:
        """Returns good configurations that need at most ``limit`` of the memory; None where none fits, or where there
        is neither a deadline nor several processes, which need a common start: each would look for the best of its own
        piece."""
        until = self.limits.seconds
        if until is None:
            if self.jobs == 1 or self.space.points < _LARGE:
                return None
            until = _OPENING

        def solve(part: Space, seeds: Sequence[Candidate]) -> BranchAndBound:
            solver = self._solver(
                part, seeds, memory_limit=limit, safe_limit=limit, **({} if seeds else {"deadline": math.inf})
            )
            solver.run()
            return solver

        whole = self.space.points <= _RATE * until  # time for the whole space: something will be found
        return descend(self.space, solve, lambda: whole or self.clock.now() > until)


def _tolerance(space: Space, cluster: Cluster) -> float:
    """Returns how far the memory of a configuration of ``space`` may be off, as ln, at most over all ways of sharding."""
    name = "data_parallel_sharding"
    tolerances = []
    for value in dict.fromkeys(option.get(name) for option in space.layer_options):
        try:
            tolerances.append(
                tolerance(settle_checked(with_fields(space.base, {name: value}), cluster, published=False))
            )
        except (InputError, Unsupported):  # as stated it cannot run
            continue
    return max(tolerances, default=max(TOLERANCE.values()))


def _most(best: Best, space: Space, objective: Objective) -> float | None:
    """Returns the share by which a step is longer than one at the peak rate of the fastest type that is searched."""
    if objective.name == "memory" or (objective.name == "step" and "gpus" in space.axes()):
        return None
    gpu = best.projection.cluster.gpu
    types = {option.get("precision", best.workload.recipe.precision) for option in space.layer_options}
    fastest = max(gpu.peak_of(name) for name in types)
    return max(0.0, 1.0 - best.projection.mfu * gpu.peak_of("bf16") / fastest)


def _projected(
    hits: Sequence[Candidate], space: Space, cluster: Cluster, settings: Settings, knowledge: Knowledge
) -> tuple[Best, ...]:
    shown: list[Best] = []
    for hit in hits:
        load = with_fields(space.base, hit.fields)
        projection = project(load, cluster, settings=settings)
        first = shown[0].projection if shown else projection
        gain = gains(knowledge.ratio(projection, first), projection, first) if shown else (0.0, 0.0, 0.0)
        shown.append(Best(fields=hit.fields, workload=load, projection=projection, value=hit.value, gain=gain))
    return tuple(shown)


def _seconds_moved(best: Projection, other: Projection) -> dict[str, float]:
    """Returns the seconds by part that ``other`` takes more, for the tokens of a step of ``best``."""
    share = best.tgs * best.step_seconds / (other.tgs * other.step_seconds)
    moves = {name: other.breakdown[name] * share - best.breakdown[name] for name in best.breakdown}
    return dict(sorted(moves.items(), key=lambda item: -abs(item[1])))


def _front(hits: Sequence[Candidate], base: Workload) -> tuple[Candidate, ...]:
    """Returns the hits that no other beats in all of seconds, GPU-seconds (money and energy go with them) and memory,
    by GPU-seconds."""
    costs = {id(hit): (hit.seconds * hit.fields.get("gpus", base.gpus), hit.memory, hit.seconds) for hit in hits}
    front: list[Candidate] = []
    for hit in sorted(hits, key=lambda one: costs[id(one)]):  # sorted by GPU-seconds: none that follows is better there
        if not any(other.memory <= hit.memory and other.seconds <= hit.seconds for other in front):
            front.append(hit)
    return tuple(front)
