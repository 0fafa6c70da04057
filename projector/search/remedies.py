"""Finds what would make a configuration fit that runs out of memory: the cheapest changes, each projected.

Every change is tried alone, of each kind the gentlest that fits: recompute of the fewest layers, the largest smaller
micro-batch, the smallest parallel size. Where fewer than three are found, two and three are combined. The
cheapest change needs the fewest GPU-seconds for the same tokens, on the same GPUs the shortest step; what fits comes
before what is too close to tell. A change that the framework or the sizes do not allow is no remedy
(:func:`projector.settle.workload.settle`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import combinations
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.hardware.types import Cluster
from projector.memory.plan import plan
from projector.projection import Projection
from projector.search.remedy_kinds import Change, kinds
from projector.settle.workload import settle
from projector.workload.workload import Workload

_WANTED = 3  # changes that are returned; with fewer alone that fit, they are combined
_MOST_PROJECTED = 24  # combinations that are projected: those that free least beyond the need
_MANY = 8  # options of a kind above which the gentlest is found by bisection
_MOST_COMBINED = 10  # kinds of change that are combined with each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change with its projection."""

    change: Change
    projection: Projection

    @property
    def gpus(self) -> int:
        return self.projection.resolved.workload.gpus

    @property
    def cost(self) -> float:
        """Returns the GPU-seconds of a step."""
        return self.projection.step_seconds * self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """The result. ``found``: changes that fit, cheapest first; ``nearest``: where there is none, the change that comes
    nearest; ``tried``: how many configurations' memory was looked at."""

    found: tuple[Remedy, ...]
    nearest: Remedy | None
    tried: int


def remedies(workload: Workload, cluster: Cluster, project: Callable[[Workload], Projection]) -> Remedies:
    """Returns the cheapest changes under which ``workload``, which does not fit, fits on ``cluster``.

    ``project`` is called as :func:`projector.projection.project`; what it refuses is no remedy.
    """
    memory = _Margins(workload, cluster)
    each = list(kinds(settle(workload, cluster), cluster))
    alone = [_gentlest(options, fits) for options in each for fits in (memory.fits_surely, memory.fits)]
    fitting = _projected(dict.fromkeys(change for change in alone if change is not None), workload, project)
    strong = [(best, options) for options in each for best in _strongest(options, memory)]
    for size in (2, 3) if len(fitting) < _WANTED else ():
        fitting += _projected(_combined(strong, memory, size), workload, project)
    nearest = None
    if not fitting and memory.margins:
        best = max(memory.margins, key=lambda change: memory.margins[change])
        nearest = next(iter(_projected([best], workload, project)), None)
    cheapest: list[Remedy] = []
    for remedy in sorted(fitting, key=lambda one: (one.projection.memory.order, one.cost, len(one.change.fields))):
        if not any(other.change.part_of(remedy.change) for other in cheapest):
            cheapest.append(remedy)
    return Remedies(found=tuple(cheapest[:_WANTED]), nearest=nearest, tried=len(memory.margins))


@dataclass
class _Margins:
    """Bytes to spare under each change that was looked at (negative: too much); without changes that are not allowed.
    ``surely``: those that fit by more than the memory model may be off."""

    workload: Workload
    cluster: Cluster
    margins: dict[Change, float] = field(default_factory=dict)
    surely: set[Change] = field(default_factory=set)
    _looked: set[Change] = field(default_factory=set)

    def margin(self, change: Change) -> float | None:
        if change not in self._looked:
            self._looked.add(change)
            with suppress(InputError, Unsupported):
                memory = plan(settle(change.on(self.workload), self.cluster), self.cluster.gpu)
                self.margins[change] = memory.margin_bytes
                self.surely |= {change} if memory.order == 0 else set()
        return self.margins.get(change)

    def fits_surely(self, change: Change) -> bool:
        return self.fits(change) and change in self.surely

    def fits(self, change: Change) -> bool:
        margin = self.margin(change)
        return margin is not None and margin >= 0.0


def _gentlest(options: Sequence[Change], fits: Callable[[Change], bool]) -> Change | None:
    """Returns the first option that fits. Many options of one kind are sorted: each frees more than the one before."""
    if len(options) > _MANY:
        first = bisect_left(options, True, key=fits)
        return options[first] if first < len(options) else None
    return next((option for option in options if fits(option)), None)


def _strongest(options: Sequence[Change], memory: _Margins) -> list[Change]:
    """Returns the option that frees most, in a list of none or one: of many sorted options the last."""
    looked = options if len(options) <= _MANY else options[-1:]
    known = [option for option in looked if memory.margin(option) is not None]
    return [max(known, key=lambda option: memory.margins[option])] if known else []


def _combined(strong: Sequence[tuple[Change, Sequence[Change]]], memory: _Margins, size: int) -> list[Change]:
    """Returns combinations of ``size`` changes that fit, each as gentle as the others let it be. ``strong``: the option
    of every kind that frees most, and all options of the kind."""
    most = sorted(strong, key=lambda pair: -memory.margins[pair[0]])[:_MOST_COMBINED]
    fitting = []
    for parts in combinations(most, size):
        joined = _joined([change for change, _ in parts])
        if joined is not None and memory.fits(joined):
            fitting.append((memory.margins[joined], parts))
    refined = dict[Change, None]()
    for _, parts in sorted(fitting, key=lambda pair: pair[0]):
        if len(refined) == _MOST_PROJECTED:
            break
        refined[_refined(parts, memory)] = None
    return list(refined)


def _refined(parts: Sequence[tuple[Change, Sequence[Change]]], memory: _Margins) -> Change:
    """Returns the combination with one change after the other eased as far as it still fits."""
    chosen = [change for change, _ in parts]
    for i, (_, options) in enumerate(parts):

        def fits(option: Change, i: int = i) -> bool:
            joined = _joined([*chosen[:i], option, *chosen[i + 1 :]])
            return joined is not None and memory.fits(joined)

        chosen[i] = _gentlest(options, fits) or chosen[i]
    return _joined(chosen) or chosen[0]


def _joined(parts: Sequence[Change]) -> Change | None:
    """Returns all of ``parts`` at once; None where two of them set one field to different values."""
    fields: dict[str, Any] = {}
    for part in parts:
        for name, value in part.fields:
            if fields.setdefault(name, value) != value:
                return None
    factor = 1
    for part in parts:
        factor *= part.more_gpus
    return Change(
        kind=" + ".join(part.kind for part in parts),
        label=" + ".join(part.label for part in parts),
        fields=tuple(fields.items()),
        more_gpus=factor,
    )


def _projected(
    changes: Iterable[Change], workload: Workload, project: Callable[[Workload], Projection]
) -> list[Remedy]:
    allowed: list[Remedy] = []
    for change in changes:
        with suppress(InputError, Unsupported):
            allowed.append(Remedy(change=change, projection=project(change.on(workload))))
    return allowed
