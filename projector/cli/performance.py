"""``projector performance``: step time, throughput, where the step goes, and whether it fits."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from projector.cli.made import Comparison, Projections
from projector.cli.options import Subparsers, add_command, add_json, add_selection
from projector.errors import InputError, NoMeasurement, Unsupported

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.projection import Projection

__all__ = ["register"]

SIMULATE, BENCHMARK, BOTH = "simulate", "benchmark", "both"


def register(commands: Subparsers) -> None:
    parser = add_command(commands, "performance", "step time, tokens/s/GPU, MFU, breakdown and memory verdict", _run)
    add_selection(parser)
    group = parser.add_argument_group("how, and what comes out")
    group.add_argument(
        "--profiling-mode",
        choices=(SIMULATE, BENCHMARK, BOTH),
        default=SIMULATE,
        help="kernels from analytical models, from measured tables of this GPU (without any: an error), or the two "
        "side by side; default: simulate",
    )
    add_json(group)
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="write the pipeline's timeline, for ui.perfetto.dev (mode both: the simulated one)",
    )


def _run(options: argparse.Namespace) -> None:
    from projector.cli import document, report
    from projector.cli.inputs import blamed, read_case
    from projector.cli.page import show
    from projector.cli.trace import write_trace

    case = read_case(options)
    with blamed(options):
        made = _projections(case, options)
    if options.trace:
        write_trace(made.first, options.trace)
    if options.json:
        document.write(document.performance(case, made))
    else:
        show(report.performance(case, made))


def _projections(case: Case, options: argparse.Namespace) -> Projections:
    from projector.cli.changes import ALL

    modes = (SIMULATE, BENCHMARK) if options.profiling_mode == BOTH else (options.profiling_mode,)
    compared: tuple[Comparison, ...] = ()
    if options.pipeline_schedule_algorithm == ALL:
        compared = _compare(case, modes[0])
        case = _rescheduled(case, _best(compared))
    made: dict[str, Projection] = {}
    refused: dict[str, str] = {}
    for mode in modes:
        try:
            made[mode] = _project(case, mode)
        except NoMeasurement as error:
            if mode != options.profiling_mode:
                refused[mode] = str(error)
                continue
            raise
    return Projections(by_mode=made, refused=refused, compared=compared)


def _project(case: Case, mode: str) -> Projection:
    """A benchmark projection of which nothing was measured would be a simulation under another name: refused."""
    from projector.projection import project

    made = project(case.workload, case.cluster, mode, settings=case.settings)
    if mode == BENCHMARK and made.measured_share <= 0:
        raise NoMeasurement(f"no measurement for {case.cluster.gpu.name} of any kernel of this run")
    return made


def _compare(case: Case, mode: str) -> tuple[Comparison, ...]:
    from projector.cli.changes import candidates

    recipe = case.workload.recipe
    found = []
    for name in candidates(recipe.pp, recipe.vpp):
        try:
            found.append(Comparison(schedule=name, projection=_project(_rescheduled(case, name), mode)))
        except (InputError, Unsupported) as error:
            found.append(Comparison(schedule=name, reason=str(error).replace("\n", "; ")))
    if not any(item.projection for item in found):
        _project(case, mode)  # what is wrong with all of them is wrong with the workload: say that
    return tuple(found)


def _best(compared: tuple[Comparison, ...]) -> str:
    """The fastest schedule, of those that fit in memory where there are any."""
    made = [(item.schedule, item.projection) for item in compared if item.projection]
    if not made:
        raise Unsupported("; ".join(f"{item.schedule}: {item.reason}" for item in compared))
    return min(made, key=lambda pair: (not pair[1].memory.fits, pair[1].step_seconds))[0]


def _rescheduled(case: Case, name: str) -> Case:
    from projector.cli.changes import with_schedule

    workload = replace(case.workload, recipe=with_schedule(case.workload.recipe, name))
    return replace(case, workload=workload)
