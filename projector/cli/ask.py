"""Answers ``projector ask``: whether a model fits, in which layout, how fast it trains and how sure that is, how long and
dear the whole run is, and what starts it."""

from __future__ import annotations

import argparse
from copy import copy
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from projector.cli import runs, start_files
from projector.cli.flags import add_command, whole
from projector.cli.layout import BUDGET_FLAGS, searched, sizes
from projector.cli.options import add_selection
from projector.cli.parser import Parser
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported, collecting_into

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.plan.plan import Plan
    from projector.search.found import Best, SearchResult


def register(parser: Parser) -> None:
    gpu = "the usual cluster of a GPU (mi355x, h100) or a YAML file of one; several with commas, side by side"
    gpus = "GPUs of the run; min: the fewest on which it fits; default: what the file says, else min"
    add_selection(parser, {"--gpu": {"help": gpu}, "--gpus": {"type": _gpus, "help": gpus}})
    add_command(parser, _run, {**runs.FLAGS, **BUDGET_FLAGS, **start_files.FLAGS, "goal": _goal})


def _goal(text: str) -> tuple[float, str]:
    """Parses ``--within`` for argparse: an amount and its unit, which is days, s (of a step) or tokens/s."""
    number, unit = text, "days"
    for ending, unit_of_ending in (("/s", "tokens/s"), ("s", "s")):
        if text.endswith(ending):
            number, unit = text.removesuffix(ending), unit_of_ending
            break
    try:
        dated = number.count("-") == 2
        amount = float((date.fromisoformat(number) - date.today()).days if dated else number)
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e12:
        expected = "days (30), a day to come (2027-05-01), seconds of a step (2.5s) or tokens/s (1.2e6/s)"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return amount, unit


def _gpus(text: str) -> int | str:
    return "min" if text == "min" else whole(1, 1_000_000)(text)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer for one GPU: its ``case`` with the GPUs that were chosen, the best of ``found`` with the ``plan`` of
    the whole run and the words of the ``command`` that projects it; ``refused``: why no layout was found."""

    case: Case
    found: SearchResult | None = None
    plan: Plan | None = None
    command: tuple[str, ...] = ()
    refused: InputError | None = None

    @property
    def best(self) -> Best:
        assert self.found is not None
        return self.found.best[0]


def _run(options: argparse.Namespace) -> None:
    from projector.cli import as_json, ask_view

    names = [name.strip() for name in (options.gpu or "").split(",") if name.strip()]
    if len(names) > 1 and (beside := "--config" if options.config else "--write" if options.write else ""):
        raise InputError([Problem("--gpu", "", options.gpu, f"one GPU beside {beside}")])
    runs.prepare(options)
    problems: list[Problem] = []
    answers = []
    for name in names or [None]:
        single = copy(options)
        single.gpu = name
        with collecting_into(problems):
            answers.append(answered(single))
    if problems:
        raise InputError(dict.fromkeys(problems))
    case, result = answers[0].case, answers[0].found
    paths, which = start_files.write_best(case, result, options) if result else ((), "")
    written = start_files.lines(paths, case, options, which)
    as_json.tell(
        options.json, lambda: ask_view.as_document(answers), lambda: (*ask_view.as_page(answers, options), *written)
    )


def answered(options: argparse.Namespace) -> Answer:
    """Returns the answer for one GPU. Raises :class:`InputError` for what is wrong with the question."""
    from projector.cli.inputs import naming_the_flag, read_case
    from projector.search.unfit import unfit

    stated = options.gpus or options.target_nodes or options.config
    fewest = bool(options.within) or options.gpus == "min" or not stated
    if options.within and isinstance(options.gpus, int):
        expected = "no number of GPUs: the fewest are looked for"
        raise InputError([Problem("--within", "", f"--gpus {options.gpus}", expected)])
    if fewest:
        options.gpus = 1
    own_runs = runs.read_own(options)
    case = own_runs.applied_to(read_case(options))
    with naming_the_flag(options):
        counts = sizes(case) if fewest else [case.workload.gpus]
        fewest_for_goal = 0.0  # GPUs below which not even time in proportion to them is enough
        for gpus in counts:
            if 2 * gpus < fewest_for_goal and gpus != counts[-1]:
                continue
            options.gpus, quick = gpus, fewest
            case = own_runs.applied_to(read_case(options))
            try:
                result = searched(case, options, **({"seconds": 0.0} if quick else options.budget))
            except InputError:  # no rule lets a layout through
                if gpus == counts[-1]:
                    raise
                continue
            if result.best and options.within:
                over, reached = _excess_over_goal(case, result, options)
                shortest = over * (1.0 - (result.most or 0.0))  # of any layout
                fewest_for_goal = gpus * shortest
                if shortest <= 1 < over:  # a longer look may find one that is fast enough
                    result, quick = searched(case, options, **options.budget), False
                    over, reached = _excess_over_goal(case, result, options)
                if over > 1:
                    missed = Problem("--within", "", f"{options.within[0]:g} {options.within[1]}", reached)
                    if gpus == counts[-1]:
                        raise InputError([missed])
                    continue
            if result.best and (result.best[0].projection.memory.order == 0 or gpus == counts[-1]):
                if not stated and not options.within:
                    case = replace(case, assumed=(f"chosen gpus={gpus} (the fewest that hold it)", *case.assumed))
                return _with_whole_run(case, searched(case, options, **options.budget) if quick else result, options)
        return Answer(case=case, refused=unfit(result, case.cluster, 0.0, case.settings))


def _excess_over_goal(case: Case, result: SearchResult, options: argparse.Namespace) -> tuple[float, str]:
    """Returns how many times as long as ``--within`` allows the best layout takes, and in words what it reaches."""
    (amount, unit), projection, load = options.within, result.best[0].projection, result.best[0].workload
    step = case.known.expect(projection).middle
    rate = load.recipe.global_batch_size * load.recipe.seq_length / step
    if unit == "days":
        plan = _with_whole_run(case, result, options).plan
        step = plan.forecast.middle.days if plan else float("inf")
    over, reached = (amount / rate, rate) if unit == "tokens/s" else (step / amount, step)
    return over, f"{reached:,.4g} {unit}, on {load.gpus} GPUs, or less"


def _with_whole_run(case: Case, result: SearchResult, options: argparse.Namespace) -> Answer:
    from projector.cli import command
    from projector.plan.assumptions import ASSUMPTIONS
    from projector.plan.plan import plan
    from projector.plan.usual import tokens_of_a_run

    load, assumptions = result.best[0].workload, dict(ASSUMPTIONS)
    if options.price is not None:
        assumptions |= options.price.at(case.cluster.gpu.name)
    amount = options.tokens or tokens_of_a_run(load.model)
    try:
        forecast = plan(load, case.cluster, amount, assumptions, settings=case.settings, grow=False, known=case.known)
    except Unsupported:  # failures stop it
        forecast = None
    return Answer(case=case, found=result, plan=forecast, command=tuple(command.words(case, load, options)))
