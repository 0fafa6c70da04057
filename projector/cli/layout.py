"""The layouts of a case that a search finds: what flags hold, and what is chosen where nothing is said."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.search.found import Found

#: Who says one of these has a layout in mind.
_LAYOUT = frozenset(("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "data_parallel_sharding"))


def add_jobs(group: Any) -> None:
    """The flag that says on how many cores a search works."""
    from projector.cli.parser import whole

    words = "processes that search side by side, each for the seconds of --budget; default: one a core"
    group.add_argument("--jobs", type=whole(1, 1024), metavar="N", help=words)


def jobs(options: argparse.Namespace) -> int:
    """On how many cores a search works; one where its command does not ask."""
    from projector.search.cores import usable

    return (options.jobs or usable()) if "jobs" in options else 1


def held(case: Case, options: argparse.Namespace) -> dict[str, tuple[Any, ...]]:
    """Returns the fields that a search would set and that flags hold, each to its value."""
    from projector.search.space import searched

    free, recipe = searched(case.workload), case.workload.recipe
    flags = options.told.flags.items()
    return {name: (getattr(recipe, name),) for name, flag in flags if flag.startswith("--") and name in free}


def searched(case: Case, options: argparse.Namespace, seconds: float) -> Found:
    """The best layouts of ``case``, whose flags hold their fields, in so many CPU seconds from the first that fits."""
    from projector.search.found import Limits, search
    from projector.search.objective import Objective
    from projector.search.space import space

    return search(
        space(case.workload, case.cluster, only=held(case, options)),
        case.cluster,
        Objective(),
        Limits(seconds=seconds, top=4, jobs=jobs(options)),
        settings=case.settings,
        explained=False,
        knowledge=case.known,
    )


def laid_out(case: Case, options: argparse.Namespace) -> Case:
    """``case`` in the first good layout of a search where nothing is said of any: all on one GPU would be none."""
    if options.config or options.told.flags.keys() & _LAYOUT:
        return case
    from projector.search.words import words

    found = searched(case, options, 0.0).best[:1]
    chosen = (f"chosen layout={words(each.fields)} (projector ask looks longer)" for each in found)
    assumed = (*(text for text in case.assumed if not text.startswith("chosen micro")), *chosen)
    return replace(case, workload=found[0].workload, assumed=assumed) if found else case
