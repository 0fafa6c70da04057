"""Branch and bound over the configurations of a space: exact unless it is stopped, and then it says how far it can be
off.

What is bounded together: all pipelines and all recompute of one choice of sizes and switches. First the weights alone
must fit; then the stages are priced without any recompute (those of one pipeline, and by the blocks of these all others:
:class:`Families`), which bounds the step of every configuration below, whatever its order and overlaps. The
branch with the lowest bound is opened next: its recompute options, bounded by blocks like theirs, then by whether they fit
in memory, then by their own stages; then whole projections. It ends where no bound is below the last of the best.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from heapq import heappop, heappush
from itertools import compress, count
from typing import Any

from projector.dataclass import dataclass
from projector.hardware.scaled import BETTER
from projector.hardware.types import Cluster
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.many import project_many
from projector.search import bounds
from projector.search.axes import Option
from projector.search.bounds import Blocks, Families
from projector.search.nodes import Counts, Hit, Node, layout_of, without
from projector.search.objective import Objective
from projector.search.space import with_fields
from projector.search.tree import Tree
from projector.workload.workload import Workload

_BEYOND = 512  # branches that are opened for the sake of a second layout
_TOGETHER = 2048  # nodes that are opened, or projected, at once
_SOONER = 64  # the same before there is anything to compare with
_BUNCH = 65536  # limbs that are priced at once
_SOON = 4096  # the same where there is a time at which to stop
_NOTHING: Mapping[str, Any] = {
    "recompute_granularity": "none",
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
    "offload_modules": None,
    "cpu_offloading_num_layers": None,
}
_ADDS = "recompute_", "offload_modules", "cpu_offloading_"  # what only adds to the time of a layer, and no weight sees
_BESIDE = "overlap_moe_expert_parallel_comm"  # a switch that no weight and no workspace sees


@dataclass(kw_only=True)
class Outcome:
    """What a hunt has found, and says of its space to one through a larger space. ``near``: bounds of what does not fit, or
    not surely, with the shares of the memory that it needs; ``reasons``: of what no model covers; ``refused``: see
    :class:`Tree`; ``left``: the lowest bound of what is wanted and was not looked at; ``bounded``: whether everything has a
    bound; ``known``: projections, by :meth:`Hunt.name` of their fields, those of hunts before it among them."""

    counts: Counts = field(default_factory=Counts)
    hits: list[Hit] = field(default_factory=list)
    near: list[tuple[float, float, Option]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    left: float = float("inf")
    bounded: bool = True
    known: dict[str, tuple[float, float, float]] = field(default_factory=dict)


class _Lead:
    """The best of what counts, by group and by layout; ``reach``: what the last that is wanted has."""

    def __init__(self, top: int) -> None:
        self._top, self._best = top, dict[Hashable, float]()
        self.layouts, self.reach = dict[Hashable, float](), float("inf")

    def enter(self, group: Hashable, layout: Hashable, value: float) -> None:
        if value < self._best.get(group, float("inf")):
            self._best[group] = value
            self.layouts[layout] = min(value, self.layouts.get(layout, value))
            if len(self._best) >= self._top:
                self.reach = sorted(self._best.values())[self._top - 1]


@dataclass
class Hunt(Outcome):
    """``top``: groups that are wanted, and the best of a second layout beside them; ``until``: the second by ``now`` at
    which to stop; ``seeds``: what is projected already and fits; ``blocks``: seconds that hunts before it found. ``room``:
    the share of the memory that may be needed; ``sure``: the share up to which it is sure to be there. The best of both are
    found: of all that fits, and of what surely does."""

    tree: Tree
    cluster: Cluster
    objective: Objective
    top: int = 16
    settings: Settings = kernel_settings.DEFAULT
    until: float | None = None
    now: Callable[[], float] = time.process_time
    most: int | None = None
    told: Callable[[Counts, float | None], None] = lambda *_: None
    seeds: Sequence[Hit] = ()
    blocks: Blocks = field(default_factory=dict)
    room: float = 1.0
    sure: float = 1.0

    def __post_init__(self) -> None:
        self._heap: list[tuple[float, int, Node]] = []
        self._ticks = count()
        self._wave = _SOONER
        self._took = dict[str, float]()  # CPU seconds of one node, by what was done with it last
        self._all, self._clear = _Lead(self.top), _Lead(self.top)
        self._weights: dict[Hashable, float] = {}
        self.refused = self.tree.refused
        self._families = Families(self.cluster, self.blocks)
        options, kinds = self.tree.space.of_layers, dict[Hashable, int]()
        number = ("recompute_method", "recompute_num_layers")
        self._kinds = [kinds.setdefault(without(option, *_ADDS), len(kinds)) for option in options]
        self._seen = [without(option, *number) for option in options]
        self._bare = [without({**option, **_NOTHING}, *number) for option in options]
        self._weighed = [without(option, *_ADDS, _BESIDE) for option in options]
        self._entered: set[str] = set()
        self.enter(self.seeds)

    def run(self) -> None:
        """All of it, or until time or projections are spent."""
        if self._plant():
            self._climb()
        self.counts.points = self.tree.space.points

    def outcome(self) -> Outcome:
        """Runs it, and what it found."""
        before = set(self.known)
        self.run()
        own = {each.name: getattr(self, each.name) for each in fields(Outcome)}
        return Outcome(**own | {"known": {name: found for name, found in self.known.items() if name not in before}})

    def join(self, parts: Sequence[Outcome]) -> None:
        """Takes what hunts through all pieces of its space found."""
        for part in parts:
            self.counts += part.counts
            self.enter(part.hits)
            self.near += part.near
            self.reasons.update(part.reasons)
            self.refused.update(part.refused)
            self.known |= part.known
            self.left = min(self.left, part.left)
            self.bounded &= part.bounded

    @property
    def _reach(self) -> float:
        """What is above is wanted by nobody: the last of what surely fits has it, which is no less than the last of all."""
        return self._clear.reach

    @property
    def gap(self) -> float | None:
        """0 where the search is exact, else the share by which a configuration that was not looked at may be better than the
        best; None: not all were bounded."""
        if not self.bounded:
            return None
        best = min((hit.value for hit in self.hits), default=float("inf"))
        return max(0.0, 1.0 - self.left / best) if self.left < float("inf") else 0.0

    @property
    def clear(self) -> list[Hit]:
        """Those that surely fit."""
        return [hit for hit in self.hits if hit.share <= self.sure]

    @property
    def leaders(self) -> list[Hit]:
        """The best of each group, the best first."""
        found: dict[Hashable, Hit] = {}
        for hit in sorted(self.hits, key=lambda each: each.value):
            found.setdefault(self._group(hit.fields), hit)
        return list(found.values())

    def _group(self, fields: Option) -> Hashable:
        once = {name for axis in self.tree.space.once for option in axis for name in option}
        return tuple((name, value) for name, value in fields.items() if name not in once)

    def _spent(self) -> bool:
        late = self.until is not None and self.now() > self.until
        return late or (self.most is not None and self.counts.projected >= self.most)

    def _timely(self, work: Callable[..., None], most: int) -> int:
        """How many of ``most`` nodes there is time for, as ``work`` on nodes went last; one at the least."""
        took = self._took.get(work.__name__, 0.0)
        if self.until in (None, math.inf) or not took:
            return most
        return max(1, min(most, int((self.until - self.now()) / took)))

    def _timed(self, work: Callable[..., None], nodes: Sequence[Any]) -> None:
        began = self.now()
        work(nodes)
        if nodes:
            self._took[work.__name__] = (self.now() - began) / len(nodes)

    # -- bounds of everything

    def _plant(self) -> bool:
        """A limb for every pipeline whose weights fit; whether there was time for all."""
        bunch: list[Node] = []
        for number, branch in enumerate(self.tree.branches()):
            if number % 16 == 1 and self._spent():  # a look at the clock costs as much as a branch
                self._weighed_out(bunch)
                self.bounded = False
                return False
            if self.until is not None and len(bunch) >= self._timely(self._price, _SOON):
                self._timed(self._price, bunch)
                bunch = []
            by_kind: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
            for layer, once in zip(branch.layers, branch.once, strict=True):
                by_kind.setdefault(self._kinds[layer], []).append((layer, once))
            for leaves in by_kind.values():
                bunch.append(Node(branch.shape, branch.pipe, tuple(leaves)))
                self.counts.enumerated += bunch[-1].number
        bunch.sort(key=lambda limb: self._kinds[limb.layer])  # whose layers are alike is priced together
        for first in range(0, len(bunch), _BUNCH):
            self._price(bunch[first : first + _BUNCH])
        return True

    def _weighed_out(self, limbs: Sequence[Node]) -> list[tuple[Node, Workload]]:
        """Those whose weights fit, whatever passes through them, without recompute; the others are out of memory."""
        loads = [self._load(limb) for limb in limbs]
        keys: list[Hashable] = []
        new: dict[Hashable, Workload] = {}
        for limb, load in zip(limbs, loads, strict=True):
            sizes = tuple(v for k, v in self.tree.shapes[limb.shape].items() if k != "micro_batch_size")
            keys.append((sizes, limb.pipe, self._weighed[limb.layer], load.num_microbatches > 1))
            if keys[-1] not in self._weights:
                new.setdefault(keys[-1], load)
        for key, share in zip(new, bounds.weights(list(new.values()), self.cluster), strict=True):
            if isinstance(share, str):
                self._refused(share, 0)
            self._weights[key] = float("inf") if isinstance(share, str) else share
        fits = [self._weights[key] <= BETTER * self.room for key in keys]
        self.counts.out_of_memory += sum(limb.number for limb, fit in zip(limbs, fits, strict=True) if not fit)
        known = [
            replace(limb, clear=self._weights[key] <= BETTER * self.sure) for limb, key in zip(limbs, keys, strict=True)
        ]
        return list(compress(zip(known, loads, strict=True), fits))

    def _price(self, limbs: Sequence[Node]) -> None:
        self._push_all([(0.0, *each) for each in self._weighed_out(limbs)])
        self.told(self.counts, self._first())

    def _push_all(self, nodes: Sequence[tuple[float, Node, Workload]]) -> None:
        """Nodes with bounds of their own, which are no lower than those they come with: by blocks like theirs, or where none
        are known by their priced stages."""
        asked = [(*self._where(node), load) for _, node, load in nodes]
        self._families.ask(asked, self.settings)
        least = self._families.bounds(asked)
        rest = [i for i, each in enumerate(least) if each is None]
        found = [each or 0.0 for each in least]
        loads = [nodes[i][2] for i in rest]
        for i, each in zip(rest, bounds.seconds(loads, self.cluster, self.settings), strict=True):
            found[i] = each.item()
        for (bound, node, load), each in zip(nodes, found, strict=True):
            if each == float("inf"):
                self._refused("no model prices its stages", node.number)
            else:
                heappush(self._heap, (max(bound, self.objective.bound(load, each)), next(self._ticks), node))

    def _load(self, node: Node) -> Workload:
        """The first below it, with the least that runs beside compute."""
        numbers = self.tree.space.of_once
        chosen = min(node.once, key=lambda i: bool(numbers[i].get("overlap_grad_reduce")))
        fields = self.tree.fields(node.shape, node.pipe, node.layer, chosen)
        return with_fields(self.tree.space.base, {**fields, **_NOTHING} if node.bare else fields)

    def _refused(self, reason: str, number: int) -> None:
        self.reasons[reason.split("\n")[0]] += number
        self.counts.unsupported += number

    # -- the lowest bound first

    def _climb(self) -> None:
        ready: list[tuple[float, Node]] = []
        beyond = 0
        while (self._heap or ready) and not self._spent():
            if ready and (len(ready) >= _SOONER or not self._heap or self._heap[0][0] > self._reach):
                number = self._timely(self._project, len(ready))
                self._timed(self._project, [leaf for _, leaf in ready[:number]])
                del ready[:number]
                continue
            if not self._heap:
                break
            if self._heap[0][0] > self._reach:  # what is still wanted is the next layout
                beyond += 1
                first, second = (*sorted(self._clear.layouts.items(), key=lambda item: item[1])[:2], None)[:2]
                if beyond > _BEYOND or (second is not None and self._heap[0][0] > second[1]):
                    break
                if first is not None and self._layout(self._heap[0][2]) == first[0]:
                    heappop(self._heap)
                    continue
            next_ = list(self._next())
            self._timed(self._open, [each for each in next_ if each[1].bare])
            self._timed(self._fit, [each for each in next_ if not (each[1].bare or each[1].fits)])
            ready += [each for each in next_ if each[1].fits]
            if self._all.reach == float("inf") and len(ready) >= 4:  # something to compare with, soon
                self._project([leaf for _, leaf in ready])
                ready = []
        left = [bound for bound, _, _ in self._heap[:1]] + [bound for bound, _ in ready]
        self.left = min((bound for bound in left if bound < self._reach), default=float("inf"))

    def _layout(self, node: Node) -> Hashable:
        shape = self.tree.shapes[node.shape]
        return layout_of({**shape, **self.tree.space.pipelines(shape["pp"])[node.pipe]})

    def _open(self, limbs: Sequence[tuple[float, Node]]) -> None:
        """Their recompute options."""
        leaves = [(b, replace(limb, leaves=(each,), bare=False)) for b, limb in limbs for each in limb.leaves]
        self._push_all([(bound, leaf, self._load(leaf)) for bound, leaf in leaves])

    def _next(self) -> Iterator[tuple[float, Node]]:
        """The node with the lowest bound, and those that are opened with it, but for what nobody wants."""
        most = max(self._reach, self._heap[0][0])
        together = self._timely(self._open, self._timely(self._fit, self._wave))
        if self.until is None or self._all.reach < float("inf"):
            self._wave = min(2 * self._wave, _TOGETHER)
        for _ in range(min(together, len(self._heap))):
            if self._heap[0][0] <= most:
                bound, _, node = heappop(self._heap)
                if node.clear or bound <= self._all.reach:
                    yield bound, node

    def _fit(self, leaves: Sequence[tuple[float, Node]]) -> None:
        """Whether they do in memory."""
        loads = [self._load(leaf) for _, leaf in leaves]
        for (bound, leaf), load, found in zip(leaves, loads, bounds.needs(loads, self.cluster), strict=True):
            if isinstance(found, str):
                self._refused(found, leaf.number)
                continue
            share = found.share
            if self.sure < share < BETTER * self.room:
                self.near.append((bound, share, self.tree.fields(leaf.shape, leaf.pipe, leaf.layer, leaf.once[0])))
            if share > self.room:
                self.counts.out_of_memory += leaf.number
                continue
            value = max(bound, self.objective.bound(load, 0.0, found.allocated))
            known = replace(leaf, fits=True, clear=share <= self.sure)
            heappush(self._heap, (value, next(self._ticks), known))

    def _project(self, leaves: Iterable[Node]) -> None:
        every = [self.tree.fields(leaf.shape, leaf.pipe, leaf.layer, once) for leaf in leaves for once in leaf.once]
        names = [self.name(fields) for fields in every]
        new = [i for i, name in enumerate(names) if name not in self.known]
        loads = {i: with_fields(self.tree.space.base, every[i]) for i in range(len(every))}
        many = project_many([loads[i] for i in new], self.cluster, best=None, settings=self.settings)
        for row, i in enumerate(new):
            if many.status[row] == "ok":
                found = many.step_seconds[row].item(), many.memory[row].item(), many.share[row].item()
                self.known[names[i]] = found
            elif many.status[row] == "out-of-memory":
                self.counts.out_of_memory += 1
            else:
                self._refused(many.reason[row], 1)
        for i, name in enumerate(names):
            if name in self.known:
                seconds, memory, share = self.known[name]
                if share > self.room:
                    self.counts.out_of_memory += 1
                    continue
                self.counts.projected += 1
                self.enter([Hit(every[i], self.objective.value(loads[i], seconds, memory), seconds, memory, share)])
        self.told(self.counts, self._first())

    def _first(self) -> float | None:
        return min((hit.value for hit in self.hits), default=None)

    def enter(self, hits: Iterable[Hit]) -> None:
        """Takes up what is projected and fits, each configuration once."""
        for hit in hits:
            if (name := self.name(hit.fields)) in self._entered:
                continue
            self._entered.add(name)
            self.hits.append(hit)
            for lead in (self._all, self._clear) if hit.share <= self.sure else (self._all,):
                lead.enter(self._group(hit.fields), layout_of(hit.fields), hit.value)

    def _where(self, node: Node) -> tuple[int, Hashable, Hashable]:
        """By what :class:`Families` knows the blocks of a node."""
        if node.bare:
            return node.pipe, ("bare", self._kinds[node.layer]), self._bare[node.layer]
        return node.pipe, node.layer, self._seen[node.layer]

    def name(self, fields: Option) -> str:
        return ";".join(f"{key}={value}" for key, value in sorted(fields.items()) if value is not None)
