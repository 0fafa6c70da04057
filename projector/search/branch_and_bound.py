"""Branch and bound over the configurations of a space: exact, unless it is stopped; then it says how far off it can be.

A node begins as one pipeline of one choice of sizes and switches, with all recompute options. First its weights alone
must fit. Then its stages are bounded without any recompute, by blocks that are priced once for all pipelines
(:class:`BlockBounds`) or else by their own prices, whatever the order and overlaps of the configurations below. The
node with the lowest bound is expanded next: into its recompute options, which are bounded in the same way, then by
whether they fit in memory; then into whole projections. The search ends where no bound is below the last of the best.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
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
from projector.search.bounds import BlockBounds, Blocks
from projector.search.nodes import Candidate, Counts, Incumbents, Node, SearchState, layout_of, without
from projector.search.objective import Objective
from projector.search.space import with_fields
from projector.search.tree import Tree
from projector.workload.workload import Workload

_SECOND_LAYOUT_NODES = 512  # nodes that are expanded for the sake of a second layout
_MAX_WAVE = 2048  # nodes that are expanded, or projected, together
_FIRST_WAVE = 64  # the same before there is an incumbent
_BATCH = 65536  # nodes that are priced together
_TIMED_BATCH = 4096  # the same where there is a deadline and the time of a node is not known yet
_NO_RECOMPUTE: Mapping[str, Any] = {
    "recompute_granularity": "none",
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
    "offload_modules": None,
    "cpu_offloading_num_layers": None,
}
_TIME_ONLY = "recompute_", "offload_modules", "cpu_offloading_"  # prefixes of switches that only add time to a layer
_EXPERT_OVERLAP = "overlap_moe_expert_parallel_comm"  # a switch that changes no weight and no workspace


@dataclass
class BranchAndBound(SearchState):
    """A best-first search through a :class:`Tree`. ``top``: how many groups are wanted, and the best of a second layout
    beside them; ``deadline``: the second by ``now`` at which to stop; ``max_projections``: how many projections to stop
    after; ``seeds``: configurations that fit and are already projected; ``blocks``, ``weights``: what earlier searches
    around the same base found: seconds of blocks, and shares of the memory that weights need; ``memory_limit``: the share
    of the usable memory that a configuration may need; ``safe_limit``: the share up to which it surely fits. The search
    finds the best of all that fits and the best of all that surely fits."""

    tree: Tree
    cluster: Cluster
    objective: Objective
    top: int = 16
    settings: Settings = kernel_settings.DEFAULT
    deadline: float | None = None
    now: Callable[[], float] = time.process_time
    max_projections: int | None = None
    progress: Callable[[Counts, float | None], None] = lambda *_: None
    seeds: Sequence[Candidate] = ()
    blocks: Blocks = field(default_factory=dict)
    weights: dict[Hashable, float | str] = field(default_factory=dict)
    memory_limit: float = 1.0
    safe_limit: float = 1.0

    def __post_init__(self) -> None:
        self._heap: list[tuple[float, int, Node]] = []
        self._ties = count()
        self._seconds_per_node = dict[str, float]()  # CPU seconds of a node, by method, when it last ran
        self._incumbents, self._safe_incumbents = Incumbents(self.top), Incumbents(self.top)
        self._weight_sizes = dict[tuple[int, int], Hashable]()
        self.refused = self.tree.refused
        self._block_bounds = BlockBounds(self.cluster, self.blocks)
        options, kinds = self.tree.space.layer_options, dict[Hashable, int]()
        number = ("recompute_method", "recompute_num_layers")
        self._switch_groups = [kinds.setdefault(without(option, *_TIME_ONLY), len(kinds)) for option in options]
        self._layer_keys = [without(option, *number) for option in options]
        self._relaxed_keys = [without({**option, **_NO_RECOMPUTE}, *number) for option in options]
        self._weight_keys = [without(option, *_TIME_ONLY, _EXPERT_OVERLAP) for option in options]
        self._added: set[str] = set()
        self.add(self.seeds)
        self._wave_size = _MAX_WAVE if self._cutoff < math.inf else _FIRST_WAVE  # what is below it is expanded anyway

    def run(self) -> None:
        """Searches the whole space, or until the deadline or the number of projections is reached."""
        if self._enumerate_branches():
            self._expand_best_first()
        self.counts.points = self.tree.space.points

    def outcome(self) -> SearchState:
        """Runs the search and returns its state, of the projections only the new ones."""
        before = set(self.projected)
        self.run()
        state = {each.name: getattr(self, each.name) for each in fields(SearchState)}
        return SearchState(
            **state | {"projected": {name: p for name, p in self.projected.items() if name not in before}}
        )

    def join(self, parts: Sequence[SearchState]) -> None:
        """Adds the states of the searches through all pieces of this search's space."""
        for part in parts:
            self.counts += part.counts
            self.add(part.hits)
            self.near_misses += part.near_misses
            self.reasons.update(part.reasons)
            self.refused.update(part.refused)
            self.projected |= part.projected
            self.open_bound = min(self.open_bound, part.open_bound)
            self.all_bounded &= part.all_bounded

    @property
    def _cutoff(self) -> float:
        """Returns the value above which a bound is pruned: that of the last wanted group that surely fits."""
        return self._safe_incumbents.cutoff

    @property
    def gap(self) -> float | None:
        """Returns 0 where the search is exact, else the share by which a configuration that was not expanded may be
        better than the best; None where not every configuration has a bound."""
        if not self.all_bounded:
            return None
        best = min((hit.value for hit in self.hits), default=float("inf"))
        return max(0.0, 1.0 - self.open_bound / best) if self.open_bound < float("inf") else 0.0

    @property
    def safe_hits(self) -> list[Candidate]:
        """Returns the hits that surely fit."""
        return [hit for hit in self.hits if hit.share <= self.safe_limit]

    @property
    def leaders(self) -> list[Candidate]:
        """Returns the best hit of each group, the best first."""
        leaders: dict[Hashable, Candidate] = {}
        for hit in sorted(self.hits, key=lambda each: each.value):
            leaders.setdefault(self._group(hit.fields), hit)
        return list(leaders.values())

    def _group(self, fields: Option) -> Hashable:
        step_fields = {name for axis in self.tree.space.per_step for option in axis for name in option}
        return tuple((name, value) for name, value in fields.items() if name not in step_fields)

    def _out_of_budget(self) -> bool:
        late = self.deadline is not None and self.now() > self.deadline
        return late or (self.max_projections is not None and self.counts.projected >= self.max_projections)

    def _affordable(self, work: Callable[..., None], most: int, untimed: int | None = None) -> int:
        """Returns for how many of ``most`` nodes there is time, one at least, as fast as ``work`` was; else ``untimed``."""
        if self.deadline in (None, math.inf):
            return most
        took = self._seconds_per_node.get(work.__name__)
        return max(1, min(most, int((self.deadline - self.now()) / took))) if took else untimed or most

    def _run_timed(self, work: Callable[..., None], nodes: Sequence[Any]) -> None:
        began = self.now()
        work(nodes)
        if nodes:
            self._seconds_per_node[work.__name__] = (self.now() - began) / len(nodes)

    # -- bounds of everything

    def _enumerate_branches(self) -> bool:
        """Adds a node for every pipeline whose weights fit. Returns whether there was time for all."""
        batch: list[Node] = []
        for number, branch in enumerate(self.tree.branches()):
            if number % 16 == 1 and self._out_of_budget():  # a look at the clock costs as much as a branch
                self._prune_by_weights(batch)
                self.all_bounded = False
                return False
            if self.deadline is not None and len(batch) >= self._affordable(self._add_branches, _BATCH, _TIMED_BATCH):
                self._run_timed(self._add_branches, batch)
                batch = []
            by_switches: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
            for layer, steps in zip(branch.layers, branch.step_options, strict=True):
                by_switches.setdefault(self._switch_groups[layer], []).append((layer, steps))
            for options in by_switches.values():
                batch.append(Node(branch.shape, branch.pipe, tuple(options)))
                self.counts.enumerated += batch[-1].number
        batch.sort(key=lambda node: self._switch_groups[node.layer])  # nodes with equal layers are priced together
        for first in range(0, len(batch), _BATCH):
            self._add_branches(batch[first : first + _BATCH])
        return True

    def _prune_by_weights(self, nodes: Sequence[Node]) -> list[tuple[Node, Workload]]:
        """Returns the nodes whose weights alone fit, or nearly, each with its first workload; counts the others."""
        keys = [self._weight_key(node) for node in nodes]
        new = {key: node for key, node in zip(keys, nodes, strict=True) if key not in self.weights}
        loads = [self._first_workload(node) for node in new.values()]
        self.weights.update(zip(new, bounds.weights(loads, self.cluster), strict=True))
        kept: list[tuple[Node, Workload]] = []
        for node, key in zip(nodes, keys, strict=True):
            share = self.weights[key]
            if isinstance(share, str):
                self._count_unsupported(share, node.number)
            elif share > BETTER * self.memory_limit:
                self.counts.out_of_memory += node.number
            else:
                safe = share <= BETTER * self.safe_limit
                kept.append((node if safe else replace(node, safe=False), self._first_workload(node)))
        return kept

    def _weight_key(self, node: Node) -> Hashable:
        """Returns what the weights of the first configuration below ``node`` depend on."""
        place = node.shape, node.pipe
        if (sizes := self._weight_sizes.get(place)) is None:
            shape = self.tree.shapes[node.shape]
            sizes = without({**shape, **self.tree.space.pipelines(shape["pp"])[node.pipe]}, "micro_batch_size")
            self._weight_sizes[place] = sizes = sizes, self.tree.accumulates[node.shape]
        return sizes, self._weight_keys[node.layer]

    def _add_branches(self, nodes: Sequence[Node]) -> None:
        self._push([(0.0, *each) for each in self._prune_by_weights(nodes)])
        self.progress(self.counts, self._best_value())

    def _push(self, nodes: Sequence[tuple[float, Node, Workload]]) -> None:
        """Puts nodes on the heap with a bound by their blocks, or by their own stages where no block has a price; no
        bound sinks."""
        queries = [(*self._block_key(node), load) for _, node, load in nodes]
        self._block_bounds.price(queries, self.settings)
        least = self._block_bounds.bounds(queries)
        rest = [i for i, each in enumerate(least) if each is None]
        seconds = [each or 0.0 for each in least]
        loads = [nodes[i][2] for i in rest]
        for i, each in zip(rest, bounds.seconds(loads, self.cluster, self.settings), strict=True):
            seconds[i] = each.item()
        for (bound, node, load), each in zip(nodes, seconds, strict=True):
            if each == float("inf"):
                self._count_unsupported("no model prices its stages", node.number)
            else:
                heappush(self._heap, (max(bound, self.objective.value(load, each)), next(self._ties), node))

    def _first_workload(self, node: Node) -> Workload:
        """Returns the first configuration below ``node``, with the fewest overlaps."""
        numbers = self.tree.space.step_options
        chosen = min(node.step_options, key=lambda i: bool(numbers[i].get("overlap_grad_reduce")))
        fields = self.tree.fields(node.shape, node.pipe, node.layer, chosen)
        return with_fields(self.tree.space.base, {**fields, **_NO_RECOMPUTE} if node.relaxed else fields)

    def _count_unsupported(self, reason: str, number: int) -> None:
        self.reasons[reason.split("\n")[0]] += number
        self.counts.unsupported += number

    # -- the lowest bound first

    def _expand_best_first(self) -> None:
        ready: list[tuple[float, Node]] = []
        extra = 0
        while (self._heap or ready) and not self._out_of_budget():
            if ready and (len(ready) >= _FIRST_WAVE or not self._heap or self._heap[0][0] > self._cutoff):
                number = self._affordable(self._project, len(ready))
                self._run_timed(self._project, [leaf for _, leaf in ready[:number]])
                del ready[:number]
                continue
            if not self._heap:
                break
            if self._heap[0][0] > self._cutoff:  # only the best of a second layout is still wanted
                extra += 1
                first, second = (*sorted(self._safe_incumbents.layouts.items(), key=lambda item: item[1])[:2], None)[:2]
                if extra > _SECOND_LAYOUT_NODES or (second is not None and self._heap[0][0] > second[1]):
                    break
                if first is not None and self._layout(self._heap[0][2]) == first[0]:
                    heappop(self._heap)
                    continue
            wave = list(self._pop_wave())
            self._run_timed(self._expand, [each for each in wave if each[1].relaxed])
            self._run_timed(self._prune_by_memory, [each for each in wave if not (each[1].relaxed or each[1].fits)])
            ready += [each for each in wave if each[1].fits]
            if self._incumbents.cutoff == float("inf") and len(ready) >= 4:  # find an incumbent soon
                self._project([leaf for _, leaf in ready])
                ready = []
        open_bounds = [bound for bound, _, _ in self._heap[:1]] + [bound for bound, _ in ready]
        self.open_bound = min((bound for bound in open_bounds if bound < self._cutoff), default=float("inf"))

    def _layout(self, node: Node) -> Hashable:
        shape = self.tree.shapes[node.shape]
        return layout_of({**shape, **self.tree.space.pipelines(shape["pp"])[node.pipe]})

    def _expand(self, nodes: Sequence[tuple[float, Node]]) -> None:
        """Replaces nodes by one node for each of their recompute options."""
        leaves = [(b, replace(node, options=(each,), relaxed=False)) for b, node in nodes for each in node.options]
        self._push([(bound, leaf, self._first_workload(leaf)) for bound, leaf in leaves])

    def _pop_wave(self) -> Iterator[tuple[float, Node]]:
        """Yields the node with the lowest bound and those to expand with it, without nodes that nobody wants."""
        most = max(self._cutoff, self._heap[0][0])
        together = self._affordable(self._expand, self._affordable(self._prune_by_memory, self._wave_size))
        if self.deadline is None or self._incumbents.cutoff < float("inf"):
            self._wave_size = min(2 * self._wave_size, _MAX_WAVE)
        for _ in range(min(together, len(self._heap))):
            if self._heap[0][0] <= most:
                bound, _, node = heappop(self._heap)
                if node.safe or bound <= self._incumbents.cutoff:
                    yield bound, node

    def _prune_by_memory(self, leaves: Sequence[tuple[float, Node]]) -> None:
        """Puts leaves that fit in memory back on the heap, and counts the others; collects near misses."""
        loads = [self._first_workload(leaf) for _, leaf in leaves]
        for (bound, leaf), load, need in zip(leaves, loads, bounds.needs(loads, self.cluster), strict=True):
            if isinstance(need, str):
                self._count_unsupported(need, leaf.number)
                continue
            share = need.share
            if self.safe_limit < share < BETTER * self.memory_limit:
                self.near_misses.append(
                    (bound, share, self.tree.fields(leaf.shape, leaf.pipe, leaf.layer, leaf.step_options[0]))
                )
            if share > self.memory_limit:
                self.counts.out_of_memory += leaf.number
                continue
            value = max(bound, self.objective.value(load, 0.0, need.allocated))
            known = replace(leaf, fits=True, safe=share <= self.safe_limit)
            heappush(self._heap, (value, next(self._ties), known))

    def _project(self, leaves: Iterable[Node]) -> None:
        points = [self.tree.fields(n.shape, n.pipe, n.layer, step) for n in leaves for step in n.step_options]
        names = [self.name(fields) for fields in points]
        new = [i for i, name in enumerate(names) if name not in self.projected]
        loads = {i: with_fields(self.tree.space.base, points[i]) for i in range(len(points))}
        many = project_many([loads[i] for i in new], self.cluster, best=None, settings=self.settings)
        for row, i in enumerate(new):
            if many.status[row] == "ok":
                result = many.step_seconds[row].item(), many.memory[row].item(), many.share[row].item()
                self.projected[names[i]] = result
            elif many.status[row] == "out-of-memory":
                self.counts.out_of_memory += 1
            else:
                self._count_unsupported(many.reason[row], 1)
        for i, name in enumerate(names):
            if name in self.projected:
                seconds, memory, share = self.projected[name]
                if share > self.memory_limit:
                    self.counts.out_of_memory += 1
                    continue
                self.counts.projected += 1
                self.add(
                    [Candidate(points[i], self.objective.value(loads[i], seconds, memory), seconds, memory, share)]
                )
        self.progress(self.counts, self._best_value())

    def _best_value(self) -> float | None:
        return min((hit.value for hit in self.hits), default=None)

    def add(self, hits: Iterable[Candidate]) -> None:
        """Adds hits that are projected and fit, each configuration once."""
        for hit in hits:
            if (name := self.name(hit.fields)) in self._added:
                continue
            self._added.add(name)
            self.hits.append(hit)
            safe = (self._safe_incumbents,) if hit.share <= self.safe_limit else ()
            for incumbents in (self._incumbents, *safe):
                incumbents.add(self._group(hit.fields), layout_of(hit.fields), hit.value)

    def _block_key(self, node: Node) -> tuple[int, Hashable, Hashable]:
        """Returns the key by which :class:`BlockBounds` knows the blocks of ``node``."""
        if node.relaxed:
            return node.pipe, ("relaxed", self._switch_groups[node.layer]), self._relaxed_keys[node.layer]
        return node.pipe, node.layer, self._layer_keys[node.layer]

    def name(self, fields: Option) -> str:
        """Returns a text that is equal for configurations that set the same fields."""
        return ";".join(f"{key}={value}" for key, value in sorted(fields.items()) if value is not None)
