"""Branch and bound over the configurations of a space: exact unless it is stopped, and then it says how far it can be
off.

What is bounded together: all pipelines and all recompute of one choice of sizes and switches. First the weights alone
must fit; then the stages are priced without any recompute (those of one pipeline, and by the blocks of these all others:
:mod:`projector.search.families`), which bounds the step of every configuration below, whatever its order and overlaps. The
branch with the lowest bound is opened next: its recompute options, bounded by blocks like theirs, then by whether they fit
in memory, then by their own stages; then whole projections. It ends where no bound is below the last of the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

from projector.dataclass import dataclass
from projector.hardware.scaled import BETTER
from projector.hardware.types import Cluster
from projector.kernels import settings as kernel_settings
from projector.kernels.settings import Settings
from projector.many import project_many
from projector.search import bounds
from projector.search.axes import Option
from projector.search.families import Asked, Families
from projector.search.nodes import Counts, Hit, Leaf, Limb, layout_of, without
from projector.search.objective import Objective
from projector.search.space import with_fields
from projector.search.tree import Branch, Tree
from projector.workload.workload import Workload

_BEYOND = 512  # branches that are opened for the sake of a second layout
_TOGETHER = 32  # groups that are projected at once
_BUNCH = 65536  # limbs that are priced at once
_SOON = 2048  # the same where there is a time at which to stop
_NOTHING: Mapping[str, Any] = {
    "recompute_granularity": "none",
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
    "offload_modules": None,
    "cpu_offloading_num_layers": None,
}
_ADDS = (
    "recompute_",
    "offload_modules",
    "cpu_offloading_",
)  # what only adds to the time of a layer, and no weight sees
_BESIDE = ("tp_comm_overlap", "overlap_moe_expert_parallel_comm")  # switches that no weight sees


@dataclass
class Hunt:
    """``top``: groups that are wanted, and the best of a second layout beside them; ``until``: CPU seconds of the process
    at which to stop; ``known``: projections of hunts before it, by :meth:`name` of their fields; ``seeds``: what is
    projected already and fits. ``gap``: 0 where the search is exact, else the share by which a configuration that was not
    looked at may be better than the best (None: not all were bounded)."""

    tree: Tree
    cluster: Cluster
    objective: Objective
    top: int = 16
    settings: Settings = kernel_settings.DEFAULT
    until: float | None = None
    most: int | None = None
    known: dict[str, tuple[float, float]] = field(default_factory=dict)
    told: Callable[[Counts, float | None], None] = lambda *_: None
    seeds: Sequence[Hit] = ()
    counts: Counts = field(default_factory=Counts)
    hits: list[Hit] = field(default_factory=list)
    near: list[tuple[float, Option]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    gap: float | None = 0.0

    def __post_init__(self) -> None:
        self._heap: list[tuple[float, int, Limb | Leaf]] = []
        self._ticks = count()
        self._best: dict[Hashable, float] = {}
        self._layouts: dict[Hashable, float] = {}
        self._fits: dict[Hashable, bool] = {}
        self._reach = float("inf")
        kinds: dict[Hashable, int] = {}
        self._kinds = [kinds.setdefault(without(option, *_ADDS), len(kinds)) for option in self.tree.space.of_layers]
        self._families = Families(self.cluster)
        self._seen = [
            without(option, "recompute_method", "recompute_num_layers") for option in self.tree.space.of_layers
        ]
        self._weighed = [without(option, *_ADDS, *_BESIDE) for option in self.tree.space.of_layers]
        self._entered: set[str] = set()
        for hit in self.seeds:
            self._enter(hit)

    def run(self) -> None:
        """All of it, or until time or projections are spent."""
        if self._plant():
            self._climb()
        self.counts.points = self.tree.space.points

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
        late = self.until is not None and time.process_time() > self.until
        return late or (self.most is not None and self.counts.projected >= self.most)

    # -- bounds of everything

    def _plant(self) -> bool:
        """A limb for every pipeline whose weights fit; whether there was time for all."""
        bunch: list[Limb] = []
        for branch in self.tree.branches():
            if self.counts.enumerated and self._spent():
                self.gap = None
                return False
            if len(bunch) >= (_BUNCH if self.until is None else _SOON):
                self._price(bunch)
                bunch = []
            by_kind: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
            for layer, once in zip(branch.layers, branch.once, strict=True):
                by_kind.setdefault(self._kinds[layer], []).append((layer, once))
            for kind, leaves in by_kind.items():
                number = sum(len(once) for _, once in leaves)
                self.counts.enumerated += number
                if self._weights_fit(branch, leaves[0][0], leaves[0][1][0], number):
                    bunch.append(Limb(branch.shape, branch.pipe, kind, tuple(leaves)))
        self._price(bunch)
        return True

    def _weights_fit(self, branch: Branch, layer: int, once: int, number: int) -> bool:
        fields = {**self.tree.fields(branch.shape, branch.pipe, layer, once), **_NOTHING}
        load = with_fields(self.tree.space.base, fields)
        sizes = tuple(v for k, v in self.tree.shapes[branch.shape].items() if k != "micro_batch_size")
        key = sizes, branch.pipe, self._weighed[layer], load.num_microbatches > 1
        fits = self._fits.get(key)
        if fits is None:
            try:
                fits = bounds.weights(load, self.cluster) <= BETTER
            except bounds.REFUSALS as error:
                self._refused(str(error), 0)
                fits = False
            self._fits[key] = fits
        if not fits:
            self.counts.out_of_memory += number
        return fits

    def _price(self, limbs: Sequence[Limb]) -> None:
        loads = [self._load(limb.shape, limb.pipe, *limb.leaves[0], bare=True) for limb in limbs]
        self._families.ask(self._asked(limbs, loads), self.settings)
        self._push_all(0.0, limbs, loads)
        self.told(self.counts, self._first())

    def _push_all(self, bound: float, nodes: Sequence[Limb | Leaf], loads: Sequence[Workload]) -> None:
        asked = self._asked(nodes, loads)
        for node, one, least in zip(nodes, asked, self._families.bounds(asked), strict=True):
            if least is None:  # unless one before it has taught its blocks
                [least] = self._families.bounds([one])
            self._push(bound, node, one[-1], least)

    def _push(self, bound: float, node: Limb | Leaf, load: Workload, least: float | None) -> None:
        """A node with a bound of its own: ``least``, by blocks like its own, or (None) from its priced stages."""
        exact = least is None
        if least is None:
            where = self._where(node)
            found = bounds.seconds(
                [load], self.cluster, self.settings, lambda made: self._families.learn(*where, load, made)
            )
            least = found.item()
        if least == float("inf"):
            self._refused("no model prices its stages", node.number)
            return
        value = max(bound, self.objective.bound(load, least))
        heappush(self._heap, (value, next(self._ticks), replace(node, priced=exact)))

    def _load(
        self, shape: int, pipe: int, layer: int, once: Iterable[int], *, bare: bool = False, quiet: bool = True
    ) -> Workload:
        """``bare``: without recompute; ``quiet``: with the least that runs beside compute."""
        choices = tuple(once)
        numbers = self.tree.space.of_once
        chosen = min(choices, key=lambda i: bool(numbers[i].get("overlap_grad_reduce"))) if quiet else choices[0]
        fields = self.tree.fields(shape, pipe, layer, chosen)
        return with_fields(self.tree.space.base, {**fields, **_NOTHING} if bare else fields)

    def _refused(self, reason: str, number: int) -> None:
        words = reason.split("\n")[0]
        self.reasons[words] = self.reasons.get(words, 0) + number
        self.counts.unsupported += number

    # -- the lowest bound first

    def _climb(self) -> None:
        ready: list[tuple[float, Leaf]] = []
        beyond = 0
        while (self._heap or ready) and not self._spent():
            if ready and (len(ready) >= _TOGETHER or not self._heap or self._heap[0][0] > self._reach):
                self._project([leaf for _, leaf in ready])
                ready = []
                continue
            if not self._heap:
                break
            if self._heap[0][0] > self._reach:  # what is still wanted is the next layout
                beyond += 1
                first, second = (*sorted(self._layouts.items(), key=lambda item: item[1])[:2], None)[:2]
                if beyond > _BEYOND or (second is not None and self._heap[0][0] > second[1]):
                    break
                if first is not None and self._layout(self._heap[0][2]) == first[0]:
                    heappop(self._heap)
                    continue
            bound, _, node = heappop(self._heap)
            if isinstance(node, Limb):
                if node.priced:
                    self._open(bound, node)
                else:
                    load = self._load(node.shape, node.pipe, *node.leaves[0], bare=True)
                    self._push(bound, node, load, None)
            elif not node.fits:
                self._fit(bound, node)
            elif not node.parted:
                self._part(bound, node)
            else:
                ready.append((bound, node))
                if self._reach == float("inf") and len(ready) >= 4:  # something to compare with, soon
                    self._project([leaf for _, leaf in ready])
                    ready = []
        left = [bound for bound, _, _ in self._heap[:1]] + [bound for bound, _ in ready]
        best = min((hit.value for hit in self.hits), default=float("inf"))
        self.gap = max(0.0, 1.0 - min(left) / best) if left and min(left) < self._reach else 0.0

    def _layout(self, node: Limb | Leaf) -> Hashable:
        shape = self.tree.shapes[node.shape]
        return layout_of({**shape, **self.tree.space.pipelines(shape["pp"])[node.pipe]})

    def _open(self, bound: float, limb: Limb) -> None:
        """Its recompute options."""
        leaves = [Leaf(limb.shape, limb.pipe, layer, once) for layer, once in limb.leaves]
        self._push_all(bound, leaves, [self._load(leaf.shape, leaf.pipe, leaf.layer, leaf.once) for leaf in leaves])

    def _fit(self, bound: float, leaf: Leaf) -> None:
        """Whether it does in memory."""
        load = self._load(leaf.shape, leaf.pipe, leaf.layer, leaf.once)
        found = bounds.needs([load], self.cluster)[0]
        if isinstance(found, str):
            self._refused(found, len(leaf.once))
            return
        memory, verdict = found
        if verdict.margin < 0:
            self.counts.out_of_memory += len(leaf.once)
            if verdict.required < BETTER * verdict.usable:
                self.near.append((bound, self.tree.fields(leaf.shape, leaf.pipe, leaf.layer, leaf.once[0])))
            return
        value = max(bound, self.objective.bound(load, 0.0, memory))
        heappush(self._heap, (value, next(self._ticks), replace(leaf, fits=True)))

    def _part(self, bound: float, leaf: Leaf) -> None:
        """Each way in which gradients are reduced."""
        numbers = self.tree.space.of_once
        ways: dict[bool, list[int]] = {}
        for each in leaf.once:
            ways.setdefault(bool(numbers[each].get("overlap_grad_reduce")), []).append(each)
        for once in ways.values():
            load = self._load(leaf.shape, leaf.pipe, leaf.layer, once)
            self._push(bound, replace(leaf, once=tuple(once), parted=True), load, None)

    def _project(self, leaves: Iterable[Leaf]) -> None:
        every = [self.tree.fields(leaf.shape, leaf.pipe, leaf.layer, once) for leaf in leaves for once in leaf.once]
        names = [self.name(fields) for fields in every]
        new = [i for i, name in enumerate(names) if name not in self.known]
        loads = {i: with_fields(self.tree.space.base, every[i]) for i in range(len(every))}
        many = project_many([loads[i] for i in new], self.cluster, best=None, settings=self.settings)
        for row, i in enumerate(new):
            if many.status[row] == "ok":
                self.known[names[i]] = many.step_seconds[row].item(), many.memory[row].item()
            elif many.status[row] == "out-of-memory":
                self.counts.out_of_memory += 1
            else:
                self._refused(many.reason[row], 1)
        for i, name in enumerate(names):
            if name in self.known:
                seconds, memory = self.known[name]
                self.counts.projected += 1
                self._enter(Hit(every[i], self.objective.value(loads[i], seconds, memory), seconds, memory))
        self.told(self.counts, self._first())

    def _first(self) -> float | None:
        return min((hit.value for hit in self.hits), default=None)

    def _enter(self, hit: Hit) -> None:
        if (name := self.name(hit.fields)) in self._entered:
            return
        self._entered.add(name)
        self.hits.append(hit)
        group = self._group(hit.fields)
        if hit.value < self._best.get(group, float("inf")):
            self._best[group] = hit.value
            layout = layout_of(hit.fields)
            self._layouts[layout] = min(hit.value, self._layouts.get(layout, hit.value))
            if len(self._best) >= self.top:
                self._reach = sorted(self._best.values())[self.top - 1]

    def _asked(self, nodes: Sequence[Limb | Leaf], loads: Sequence[Workload]) -> list[Asked]:
        return [(*self._where(node), load) for node, load in zip(nodes, loads, strict=True)]

    def _where(self, node: Limb | Leaf) -> tuple[int, int, Hashable, Hashable]:
        """By what :mod:`projector.search.families` knows the blocks of a node."""
        if isinstance(node, Limb):
            return node.shape, node.pipe, ("bare", node.kind), ("bare", node.kind)
        return node.shape, node.pipe, node.layer, self._seen[node.layer]

    def name(self, fields: Option) -> str:
        return ";".join(f"{key}={value}" for key, value in sorted(fields.items()) if value is not None)
