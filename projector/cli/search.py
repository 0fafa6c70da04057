"""Finds the best configurations of a space, what cannot be told from them, and what binds: ``projector search``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from projector.cli import runs, start_files
from projector.cli.layout import BUDGET_FLAGS, jobs, sizes, watched
from projector.cli.parser import wrapped
from projector.errors import InputError, Problem, raise_all
from projector.search.page import add_pictures, pictures

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.hardware.types import Gpu
    from projector.search.objective import Objective
    from projector.search.space import Space

_PICTURES = partial(add_pictures, drawn="pictures: time against memory, where time goes")
KNOWN = {**runs.FLAGS, **BUDGET_FLAGS, **start_files.FLAGS, "+pictures": _PICTURES}


def command(options: argparse.Namespace) -> None:
    from projector.cli import as_json, search_view
    from projector.cli.command import words
    from projector.cli.inputs import naming_the_flag, read_case
    from projector.io.terminal import show
    from projector.search import plots
    from projector.search.found import Limits

    limits = Limits(margin=options.memory_margin, top=options.top, jobs=jobs(options), **options.budget)
    runs.prepare(options)
    gpus_open = not (options.gpus or options.target_nodes or options.config or options.max_gpus or options.fewest_gpus)
    if (options.max_gpus or options.fewest_gpus) and not options.gpus and not options.target_nodes:
        options.gpus = options.max_gpus or 1  # their number need not be stated where their most is
    user_runs = runs.read_own(options)
    case = user_runs.applied_to(read_case(options))
    with naming_the_flag(options):
        counts = [_gpu_counts(case, options)]
        if options.fewest_gpus or gpus_open:  # where nothing is said, from a host up
            fewest = case.workload.gpus if gpus_open else 1
            counts = [(size,) for size in sizes(case, options.max_gpus) if size >= fewest] or counts
        for gpus in counts:
            try:
                result = watched(case, _space(case, options, gpus), _objective(case, options), limits)
            except InputError:  # no rule lets a layout through
                if gpus == counts[-1]:
                    raise
                continue
            if result.best:
                break
        if not result.best:
            from projector.search.unfit import unfit

            refused = unfit(result, case.cluster, options.memory_margin, case.settings)
            if options.json:
                raise refused
            show(search_view.why_nothing_fits(case, refused), sys.stderr)
            raise InputError([])
    start = words(case, result.best[0].workload, options)
    shown = partial(search_view.as_page, case, result, options.top, wrapped(start))
    as_json.tell(
        options.json,
        lambda: {**search_view.as_document(case, result, options.objective, start), **runs.as_values(user_runs)},
        lambda: (*shown(), *runs.lines(user_runs)),
    )
    title = f"{case.workload.model.name} on {case.cluster.name}"
    pictures(options, f"Search: {title}", shown(), lambda: plots.figures(result, title))
    paths, which = start_files.write_best(case, result, options)
    show(() if options.json else start_files.lines(paths, case, options, which))


def _space(case: Case, options: argparse.Namespace, gpus: tuple[int, ...]) -> Space:
    from projector.cli.layout import held
    from projector.search.space import space

    problems: list[Problem] = []
    only = _typed_values(options.fix, "--fix", problems, case.cluster.gpu)
    vary = _typed_values(options.vary, "--vary", problems, case.cluster.gpu)
    raise_all(problems)
    return space(case.workload, case.cluster, only={**held(case, options), **only}, vary=vary, gpus=gpus)


def _gpu_counts(case: Case, options: argparse.Namespace) -> tuple[int, ...]:
    """Returns hosts in powers of two of GPUs, and the most; none where the most is not said."""
    most, host = options.max_gpus or 0, case.cluster.gpus_per_host
    return tuple(sorted({*(host << n for n in range(most.bit_length()) if host << n <= most), *({most} - {0})}))


def _typed_values(texts: list[str], flag: str, problems: list[Problem], gpu: Gpu) -> dict[str, tuple[Any, ...]]:
    """Returns typed values of ``FIELD=V,…`` by field (``a+b``: several at once; ``none``: not stated); without values,
    all that the field may hold and ``gpu`` can run."""
    from projector.cli.recipe_flags import typed_value, wrong_value
    from projector.errors import nearest
    from projector.search.axes import GROUPS
    from projector.settle import capable
    from projector.workload.fields import field_of, fields

    values_of: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, _, listed = text.partition("=")
        if flag == "--vary" and name in GROUPS and not listed.strip():
            values_of[name] = ()
            continue
        field = field_of(name.strip().replace("-", "_"))
        if field is None:
            known = tuple(pairs.key for pairs in fields())
            problems.append(Problem(flag, "", text, nearest(name, known)))
            continue
        if len(field.path) > 1:
            problems.append(Problem(flag, name, text, f"a field of its own, no part of {field.path[0]}"))
            continue
        words = [word.strip() for word in listed.split(",") if word.strip()]
        if not words and flag == "--vary":
            runnable = [word for word in field.choices if not capable.field_problems(gpu, {field.key: word})]
            words = ["true", "false"] if field.kind is bool else runnable
        open_words = () if field.kind is str and not field.many else ("none",)
        values = [
            None if word in open_words else typed_value(field, word.replace("+", ",") if field.many else word)
            for word in words
        ]
        pairs = zip(values, words, strict=True)
        refused = [word for value, word in pairs if value is not None and wrong_value(field, value, word, flag, name)]
        if refused or not values:
            text_found = ", ".join(refused) or text
            problems.append(Problem(flag, name, text_found, f"values separated by commas: {field.expected}"))
            continue
        values_of[field.key] = tuple(tuple(value) if isinstance(value, list) else value for value in values)
    return values_of


def _objective(case: Case, options: argparse.Namespace) -> Objective:
    from projector.plan.price import unstated
    from projector.search.objective import Objective

    gpu = case.cluster.gpu
    price = options.price.gpu_hour(gpu.name) if options.price else None
    if options.objective == "cost" and price is None:
        raise unstated(gpu.name)
    return Objective(name=options.objective, price=price or 1.0, watts=gpu.tdp_watts)
