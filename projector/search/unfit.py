"""Explains a space without a configuration that fits: what empties it, the configuration that misses the least, and
what would make that one fit."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.types import Cluster
from projector.kernels.settings import Settings
from projector.projection import project
from projector.search import bounds
from projector.search.axes import Option
from projector.search.bounds import Fullest
from projector.search.found import SearchResult
from projector.search.nodes import without
from projector.search.remedies import Remedy, remedies
from projector.search.space import Space, with_fields
from projector.search.tree import Tree
from projector.search.words import words
from projector.workload.workload import Workload

_GIB = 2.0**30
_MOST = 2_000  # configurations whose memory is looked at, from the lightest weights on
_WEIGHED = 4_096  # groups of configurations whose weights are laid out, from those on which most ranks share them
_PASSING = ("recompute_", "offload_modules", "cpu_offloading_", "overlap_moe_expert_parallel_comm")
_Leaf = tuple[int, int, int, int]  # numbers for Tree.fields


@dataclass(frozen=True, slots=True)
class _Nearest:
    """The configuration that misses the memory least. ``looked``: of how many the memory was laid out; 0: no other can
    need less."""

    fields: Option
    need: Fullest
    looked: int


def unfit(found: SearchResult, cluster: Cluster, margin: float, settings: Settings) -> InputError:
    """Returns the error of a search ``found`` that projected nothing. ``margin``: share of the memory that stays free."""
    problems = [Problem("the space", "model", f"{n:,} combinations", why) for why, n in found.reasons.items() if n][:3]
    smaller = bounds.roomier(cluster, 1.0 - margin)
    if found.counts.out_of_memory:
        problems[:0] = _memory(found, cluster, smaller, settings)
    if found.gap is None:
        problems.append(Problem("--budget", "", f"{found.seconds:.0f} s", "more: not all of the space was looked at"))
    return InputError(problems or [Problem("the space", "", "no combination", "one that can be projected")])


def _memory(found: SearchResult, cluster: Cluster, smaller: Cluster, settings: Settings) -> Iterator[Problem]:
    best = _nearest(found.space, smaller)
    expected = "a GPU with more memory" if best is None else f"at most {best.need.usable / _GIB:.1f} GiB a GPU"
    yield Problem("the space", "memory", f"{found.counts.out_of_memory:,} combinations", expected)
    if best is None:
        return
    load = with_fields(found.space.base, best.fields)
    whole = bounds.needs([load], cluster)[0]
    tried = remedies(load, smaller, lambda each: project(each, smaller, settings=settings))
    fitting = [_change_in_words(each, found.space) for each in tried.found]
    if smaller.gpu != cluster.gpu and not isinstance(whole, str) and whole.share <= 1.0:
        fitting.insert(0, "no --memory-margin")
    yield Problem(
        "the space",
        f"nearest{f' of {best.looked:,} looked at' if best.looked else ''} ({words(best.fields)})",
        f"{best.need.required / _GIB:.1f} GiB, {(best.need.required - best.need.usable) / _GIB:.1f} GiB too much",
        "; or ".join(fitting) or f"a larger change: none of {tried.tried} makes it fit",
    )


def _change_in_words(remedy: Remedy, space: Space) -> str:
    change = remedy.change
    held = [name for name, value in change.fields if name in space.only and value not in space.only[name]]
    return f"{change.label} (held: {', '.join(held)})" if held else change.label


def _nearest(space: Space, cluster: Cluster) -> _Nearest | None:
    """Returns the configuration that needs the least share of the usable memory. Its weights bound what a configuration
    needs: the lightest are looked at first, until no others can need less."""
    tree = Tree(space)
    groups = sorted(_groups(tree), key=lambda leaves: _alone(tree.shapes[leaves[0][0]], space.base))
    best, least, looked, whole = None, float("inf"), 0, False
    for weights, leaves in sorted(_weighed(tree, groups[:_WEIGHED], cluster), key=lambda each: each[0]):
        whole = weights >= least and len(groups) <= _WEIGHED
        if whole or looked >= _MOST:
            break
        fields = [tree.fields(*leaf) for leaf in leaves]
        looked += len(fields)
        for each, need in zip(fields, bounds.needs([with_fields(space.base, f) for f in fields], cluster), strict=True):
            if not isinstance(need, str) and need.share < least:
                best, least = (each, need), need.share
    return (
        None
        if best is None
        else _Nearest(*best, 0 if whole or (looked < _MOST and len(groups) <= _WEIGHED) else looked)
    )


def _alone(sizes: Option, base: Workload) -> tuple[float, float]:
    """Returns the shares of all experts and of all other weights that a rank with these ``sizes`` has at the least."""
    tp, pp, ep, etp = (sizes.get(name, getattr(base.recipe, name)) for name in ("tp", "pp", "ep", "etp"))
    return 1.0 / (pp * ep * etp), 1.0 / (pp * tp)


def _groups(tree: Tree) -> list[list[_Leaf]]:
    """Returns the configurations with the same weights together, one for all that differ in what is done once a step."""
    kinds = [without(option, *_PASSING) for option in tree.space.layer_options]
    leaves_of: dict[Hashable, list[_Leaf]] = {}
    for branch in tree.branches():
        sizes = without(tree.shapes[branch.shape], "micro_batch_size")
        for layer, steps in zip(branch.layers, branch.step_options, strict=True):
            leaf = branch.shape, branch.pipe, layer, steps[0]
            leaves_of.setdefault((sizes, branch.pipe, kinds[layer]), []).append(leaf)
    return list(leaves_of.values())


def _weighed(tree: Tree, groups: Sequence[list[_Leaf]], cluster: Cluster) -> Iterator[tuple[float, list[_Leaf]]]:
    """Yields the groups with the share of the memory that their weights need."""
    loads = [with_fields(tree.space.base, tree.fields(*leaves[0])) for leaves in groups]
    for share, leaves in zip(bounds.weights(loads, cluster), groups, strict=True):
        yield 0.0 if isinstance(share, str) else share, leaves
