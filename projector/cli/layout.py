"""Searches layouts of a case: flags hold some fields, the others are chosen where nothing is said."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from projector.plan.usual import BUDGET

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.search.found import Limits, SearchResult
    from projector.search.nodes import Counts
    from projector.search.objective import Objective
    from projector.search.space import Space

#: Who says one of these has a layout in mind.
_LAYOUT = frozenset(("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "data_parallel_sharding"))


_BUDGET = re.compile(r"(\d+(?:\.\d+)?)(s|min|p)?")

MOST = 16_384  # GPUs that --gpus min tries
_BYTES = 6  # of a parameter that a GPU holds at the least: weights and gradients of 16 bits, a moment of 8 or two


def budget(text: str) -> dict[str, Any]:
    """Parses ``--budget`` for argparse into the limits of a search."""
    if text == "none":
        return {}
    match = _BUDGET.fullmatch(text.strip())
    if match is None:
        expected = "CPU seconds (8, 5min), a number of projections (500p), or none"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    if match[2] == "p":
        return {"projections": int(float(match[1]))}
    return {"seconds": float(match[1]) * (60 if match[2] == "min" else 1)}


#: What the table of flags does not know of how long a search may take.
BUDGET_FLAGS = {"budget": budget, "--budget": {"default": f"{BUDGET:g}"}}


def jobs(options: argparse.Namespace) -> int:
    """Returns on how many cores a search works; one where the command has no ``--jobs``."""
    from projector.search.cores import usable_cores

    return (options.jobs or usable_cores()) if "jobs" in options else 1


def held(case: Case, options: argparse.Namespace) -> dict[str, tuple[Any, ...]]:
    """Returns the fields that a search would set and that flags fix, each with its value."""
    from projector.search.space import searched

    free, recipe = searched(case.workload), case.workload.recipe
    flags = options.overrides.flags.items()
    return {name: (getattr(recipe, name),) for name, flag in flags if flag.startswith("--") and name in free}


def searched(
    case: Case, options: argparse.Namespace, objective: Objective | None = None, *, top: int = 4, **limits: Any
) -> SearchResult:
    """Returns the best layouts of ``case``, whose flags hold their fields, within the ``limits`` of a search; explained
    where an ``objective`` is stated."""
    from projector.search.found import Limits
    from projector.search.objective import Objective
    from projector.search.space import space

    explained = {"explained": objective is not None}
    within = Limits(top=top, jobs=jobs(options), **limits)
    return watched(
        case,
        space(case.workload, case.cluster, only=held(case, options)),
        objective or Objective(),
        within,
        **explained,
    )


def watched(case: Case, space: Space, objective: Objective, limits: Limits, **words: bool) -> SearchResult:
    """Returns what a search of ``space`` finds, and shows on stderr how far it is. ``words``: see
    :func:`projector.search.found.search`."""
    from projector.io.progress import progress
    from projector.search.found import search

    with progress(f"searching {space.points:,} combinations") as show_progress:

        def told(counts: Counts, best: float | None) -> None:
            text = f"{space.points:,} combinations, {counts.enumerated:,} valid, {counts.projected:,} projected"
            show_progress(words=text if best is None else f"{text}, best {objective.told(best)}")

        settings = case.settings
        return search(
            space, case.cluster, objective, limits, settings=settings, told=told, knowledge=case.known, **words
        )


def sizes(case: Case, most: int | None = None) -> list[int]:
    """Returns numbers of GPUs in powers of two, from the least that can hold the model up: parts of a host, then hosts."""
    from projector.workload.parameters import count

    host, gpu = case.cluster.gpus_per_host, case.cluster.gpu
    least = count(case.workload.model).main * _BYTES / gpu.usable_memory_bytes
    parts = [1 << power for power in range(host.bit_length()) if 1 << power < host]
    counts = (*parts, *(host << power for power in range(15)))
    return [size for size in counts if least <= size <= (most or MOST)] or [most or MOST]


def with_layout(case: Case, options: argparse.Namespace) -> Case:
    """Returns ``case`` in the first good layout of a search where nothing states one, since all on one GPU is none.
    Where the number of GPUs is open, too, it is the fewest of :func:`sizes` from a host up that hold a layout."""
    if options.config or options.overrides.flags.keys() & _LAYOUT:
        return case
    from projector.search.words import words

    stated, least = options.gpus or options.target_nodes, case.workload.gpus
    for gpus in [least] if stated else [size for size in sizes(case) if size >= least] or [least]:
        best = searched(replace(case, workload=replace(case.workload, gpus=gpus)), options, seconds=0.0).best[:1]
        if best and best[0].projection.memory.order == 0:
            break
    choices = [f"chosen layout={words(each.fields)} (projector ask looks longer)" for each in best]
    superseded = ["chosen micro"]
    if best and gpus > least:
        choices, superseded = [f"chosen gpus={gpus} (fewer hold no layout of it)", *choices], [*superseded, "gpus="]
    assumed = (*(text for text in case.assumed if not text.startswith(tuple(superseded))), *choices)
    return replace(case, workload=best[0].workload, assumed=assumed) if best else case
