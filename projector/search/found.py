"""``search``: the best configurations of a space, what cannot be told from them, why the next layout loses, and what
binds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from projector.dataclass import dataclass
from projector.hardware.types import Cluster
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.projection import Projection, project
from projector.search.axes import Option
from projector.search.binding import Binding, bindings
from projector.search.bounds import roomier
from projector.search.explore import apart, spread
from projector.search.hunt import Hunt
from projector.search.nodes import Counts, Hit, layout_of
from projector.search.objective import Objective
from projector.search.space import Space, with_fields
from projector.search.tree import Tree
from projector.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A configuration with its projection; ``value``: of the objective, smaller is better; ``alike``: within the
    interval of the winner."""

    fields: Option
    workload: Workload
    projection: Projection
    value: float
    alike: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``seconds``, ``projections``: after which the search stops (None: exact). ``margin``: share of the usable
    memory that stays free. ``top``: configurations that are wanted, those alike but for what is done once a step
    counted as one. ``alike``: beyond them all that cannot be told from the winner."""

    seconds: float | None = None
    projections: int | None = None
    margin: float = 0.0
    top: int = 16
    alike: bool = False


@dataclass(frozen=True, kw_only=True)
class Found:
    """``best``: the winner first; ``hits``: all that was projected; ``front``: those of them that no other beats in both
    tokens/s/GPU and memory; ``gap``: see :class:`Hunt`; ``moved``: seconds by part of the step that the next layout
    takes more than the winner; ``whole``: no other configuration that cannot be told from the winner is left out;
    ``close``: a better one of which it is too close to tell whether it fits, where the winner does fit."""

    space: Space
    best: tuple[Best, ...]
    front: tuple[Hit, ...]
    hits: tuple[Hit, ...]
    counts: Counts
    gap: float | None
    seconds: float
    refused: Mapping[tuple[str, str], int]
    reasons: Mapping[str, int]
    next: Best | None = None
    moved: Mapping[str, float] = field(default_factory=dict)
    binding: tuple[Binding, ...] = ()
    whole: bool = False
    close: Best | None = None

    @property
    def alike(self) -> int:
        """How many cannot be told from the winner, itself among them."""
        return sum(each.alike for each in self.best)


def search(
    space: Space,
    cluster: Cluster,
    objective: Objective,
    limits: Limits,
    *,
    settings: Settings = kernel_settings.DEFAULT,
    explained: bool = True,
    known: dict[str, tuple[float, float]] | None = None,
    keep: Callable[[str, float, float], None] = lambda *_: None,
    told: Callable[[Counts, float | None], None] = lambda *_: None,
) -> Found:
    """Searches ``space`` on ``cluster``. Raises :class:`InputError` where no rule lets a configuration through, with
    the rules that empty the space. ``explained``: with what binds the best. ``known``, ``keep``, ``told``: see
    :class:`Hunt`."""
    began = time.monotonic()

    def hunted(
        smaller: Cluster, known: dict[str, tuple[float, float]], keep: Callable[[str, float, float], None]
    ) -> Hunt:
        hunt = Hunt(
            Tree(space),
            smaller,
            objective,
            top=limits.top,
            slack=apart() if limits.alike else 0.0,
            settings=settings,
            until=None if limits.seconds is None else began + limits.seconds,
            most=limits.projections,
            known=known,
            keep=keep,
            told=told,
        )
        hunt.run()
        return hunt

    smaller = roomier(cluster, 1.0 - limits.margin) if limits.margin else cluster
    hunt = hunted(smaller, {} if known is None else known, keep)
    if not hunt.counts.enumerated:
        raise hunt.tree.empty()
    close = _projected(hunt.leaders[:1], space, cluster, settings)
    if close and close[0].projection.memory.order:  # the best may not fit: what does stands before it
        room = (1.0 - limits.margin) * math.exp(-close[0].projection.memory.tolerance)
        clear = hunted(roomier(cluster, room), {}, lambda *_: None)  # what is known says nothing of a smaller memory
        if clear.hits:
            hunt = clear
    leaders = hunt.leaders
    close = close if leaders and leaders[0].fields != close[0].fields else ()
    second = [hit for hit in leaders if layout_of(hit.fields) != layout_of(leaders[0].fields)][:1]
    best = _projected(leaders if limits.alike else leaders[: limits.top], space, cluster, settings)
    best = tuple(each for place, each in enumerate(best) if place < limits.top or each.alike)
    other = _projected(second, space, cluster, settings)[0] if second else None
    near = [(bound, with_fields(space.base, fields)) for bound, fields in hunt.near]
    binding = bindings(best[0].projection, best[0].workload, smaller, settings, near) if best and explained else ()
    return Found(
        space=space,
        best=best,
        front=_front(hunt.hits, space.base),
        hits=tuple(hunt.hits),
        counts=hunt.counts,
        gap=hunt.gap,
        seconds=time.monotonic() - began,
        refused=hunt.tree.refused,
        reasons=hunt.reasons,
        next=other,
        moved=_moved(best[0].projection, other.projection) if other else {},
        binding=binding,
        whole=limits.alike and not hunt.gap,
        close=close[0] if close else None,
    )


def _projected(hits: Sequence[Hit], space: Space, cluster: Cluster, settings: Settings) -> tuple[Best, ...]:
    found: list[Best] = []
    for hit in hits:
        load = with_fields(space.base, hit.fields)
        made = project(load, cluster, settings=settings)
        log = math.log(made.tgs / found[0].projection.tgs) if found else 0.0
        alike = abs(log) <= spread(log)
        found.append(Best(fields=hit.fields, workload=load, projection=made, value=hit.value, alike=alike))
    return tuple(found)


def _moved(best: Projection, other: Projection) -> dict[str, float]:
    """Seconds of a step with the winner's tokens."""
    share = best.tgs * best.step_seconds / (other.tgs * other.step_seconds)
    moves = {name: other.breakdown[name] * share - best.breakdown[name] for name in best.breakdown}
    return dict(sorted(moves.items(), key=lambda item: -abs(item[1])))


def _front(hits: Sequence[Hit], base: Workload) -> tuple[Hit, ...]:
    """From the fastest to the one with the least memory."""
    found: list[Hit] = []
    each = {id(hit): hit.seconds * hit.fields.get("gpus", base.gpus) for hit in hits}
    for hit in sorted(hits, key=lambda one: (each[id(one)], one.memory)):
        if not found or hit.memory < found[-1].memory:
            found.append(hit)
    return tuple(found)
