"""Shows step time, throughput, where the step goes, and whether it fits: ``projector performance``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from projector.cli import memory as held
from projector.cli import runs, slow, start_files
from projector.cli.extra import Extra
from projector.cli.flags import add_command
from projector.cli.live import asked, first_rank_prints, kept
from projector.cli.options import add_selection
from projector.cli.parser import Parser
from projector.dataclass import dataclass
from projector.errors import InputError, NoMeasurement, Problem, Unsupported

if TYPE_CHECKING:
    from projector.cli.comparison import Row
    from projector.cli.inputs import Case
    from projector.projection import Projection
    from projector.workload.workload import Workload

SIMULATE, BENCHMARK, BOTH = "simulate", "benchmark", "both"
#: Vocabularies in use reach from Llama 2's to Gemma's.
_VOCABULARIES = (32_000, 256_000)


@dataclass(frozen=True, kw_only=True)
class Projections:
    """The projections of a case by mode, in the order asked for; ``refused``: modes without one and why; ``compared``:
    schedules tried; ``timed``: what the benchmark shrank to, beside what it stands for."""

    by_mode: dict[str, Projection]
    refused: dict[str, str]
    compared: tuple[Row, ...] = ()
    timed: str = ""

    @property
    def first(self) -> Projection:
        return next(iter(self.by_mode.values()))


def register(parser: Parser) -> None:
    """Adds the arguments of ``performance`` to ``parser``, or of ``both``, which also shows what ``memory`` does."""
    add_selection(parser)
    both = parser.prog.endswith(" both")
    known = {**runs.FLAGS, **start_files.FLAGS} | ({} if both else {"+margin": lambda _: None})

    def run(options: argparse.Namespace) -> None:
        options.profiling_mode = options.profiling_mode or (BENCHMARK if options.benchmark_gpus else SIMULATE)
        with kept(options), first_rank_prints(asked(options)):
            _show_projections(options)

    add_command(parser, run, known)
    parser.set_defaults(both=both, memory_safety_margin=None)


def _show_projections(options: argparse.Namespace) -> None:
    from projector.cli import as_json, document, remedies, report
    from projector.cli.idle_keys import idle_flags, idle_keys
    from projector.cli.inputs import naming_the_flag, read_case
    from projector.cli.layout import with_layout
    from projector.cli.trace import write_trace

    runs.prepare(options)
    case = read_case(options)
    user_runs = runs.read_own(options, _first_mode(options))
    case = user_runs.applied_to(case)
    with naming_the_flag(options):
        case = _with_vocabulary_range(with_layout(case, options))
        run = _projections(case, options)
        if options.strict:
            from projector.cli.setting_remarks import refuse_assumed

            refuse_assumed(case.workload, run.first, case.assumed)
        simulated = run.by_mode.get(SIMULATE)
        idle = idle_flags(case, simulated, options.overrides) if simulated else ()
        case = replace(case, notes=(*case.notes, *idle_keys(case, options)), moot=(*case.moot, *idle))
    if asked(options) and BENCHMARK in run.by_mode:
        case = replace(case, known=case.known.after_timing(run.first, run.by_mode[BENCHMARK]))
    slowed = slow.of_flags(options, run.first, case, _first_mode(options))
    if options.trace:
        write_trace(slowed.shown(run.first) if slowed else run.first, options.trace)
    paths = start_files.write(options.write, case, case.workload, options)
    own = Extra(list(runs.lines(user_runs)), runs.as_values(user_runs))
    fixes = remedies.extra(case, run.first)
    extras = list(_extras(case, options, run, slowed))
    values = {name: value for extra in (own, fixes, *extras) for name, value in extra.values.items()}
    blocks = [*(block for extra in (own, *extras) for block in extra.blocks), *start_files.lines(paths, case, options)]
    as_json.tell(
        options.json,
        lambda: {**document.performance(case, run), **values},
        lambda: (*report.performance(case, run, fixes.blocks), *blocks),
    )


def _with_vocabulary_range(case: Case) -> Case:
    """Returns ``case`` with the step's change under other vocabularies, where no tokenizer is named."""
    from projector.workload.tokenizers import STANDS_IN

    if not any(STANDS_IN in text for text in case.assumed):
        return case
    from projector.projection import project

    def seconds(size: int | None) -> float:
        model = case.workload.model if size is None else replace(case.workload.model, vocab_size=size)
        workload = replace(case.workload, model=model)
        return project(workload, case.cluster, "simulate", settings=case.settings).step_seconds

    base_seconds = seconds(None)
    changes = (f"{100 * (seconds(size) / base_seconds - 1):+.1f} % with {size // 1000}k" for size in _VOCABULARIES)
    remark = f"; the step changes by {', '.join(changes)}"
    assumed = tuple(text.replace(STANDS_IN, STANDS_IN + remark) for text in case.assumed)
    return replace(case, assumed=assumed)


def _first_mode(options: argparse.Namespace) -> str:
    """Returns the mode of the projection that everything else is told of."""
    return SIMULATE if options.profiling_mode == BOTH else str(options.profiling_mode)


def _extras(
    case: Case, options: argparse.Namespace, projections: Projections, slowed: slow.Slowed | None
) -> Iterator[Extra]:
    """Yields an answer to each further question of ``options``, in the order of the page."""
    from projector.cli import communication, exploration, live, mfu, report
    from projector.io.table import Line
    from projector.projection import project

    mode, first = _first_mode(options), projections.first
    if nodes := options.sub_target_nodes:
        small, efficiency = exploration.scaled(case, nodes, partial(_project_in_mode, options, mode))
        text = f"Scaling: {small.tgs:.1f} tokens/s/GPU on {nodes} hosts; efficiency {100 * efficiency:.1f} %"
        yield Extra([Line(text)], {"scaling": {"nodes": nodes, "tgs": small.tgs, "efficiency": efficiency}})
    if options.communication:
        rows = project(case.workload, case.cluster, mode, settings=case.settings, communication=True).communication
        yield Extra([communication.table(rows)], {"communication": communication.as_document(rows)})
    if options.mfu:
        counts = mfu.counted(first)
        yield Extra([mfu.table(counts)], {"mfu_by_formula": [asdict(each) for each in counts]})
    if slowed:
        yield Extra(list(slow.tables(slowed)), {"slow": slow.as_document(slowed)})
    if options.both:
        yield Extra([*report.held(case, first), *held.with_margin(options, first.memory)])
        if BENCHMARK in projections.by_mode and asked(options):
            yield live.counted(options, case, first)
    if options.explore:
        yield exploration.extra(case, mode)


def _projections(case: Case, options: argparse.Namespace) -> Projections:
    from projector.cli.changes import ALL
    from projector.cli.comparison import compare, with_schedule

    if asked(options) and options.profiling_mode == SIMULATE:
        name = "--save-benchmark" if options.save_benchmark else "--load-benchmark"
        raise InputError([Problem(name, "--profiling-mode", SIMULATE, f"{BENCHMARK} or {BOTH}: it times nothing else")])
    modes = (SIMULATE, BENCHMARK) if options.profiling_mode == BOTH else (options.profiling_mode,)
    compared: tuple[Row, ...] = ()
    if options.pipeline_schedule_algorithm == ALL:
        compared = compare(case, lambda each: _project(each, modes[0]))
        if compared[0].projection is None:
            _project(case, modes[0])  # what is wrong with all of them is wrong with the workload: say that
            raise Unsupported("; ".join(f"{row.schedule}: {row.reason}" for row in compared))
        case = with_schedule(case, compared[0].schedule, compared[0].vpp)
    by_mode: dict[str, Projection] = {}
    refused: dict[str, str] = {}
    for mode in modes:
        try:
            by_mode[mode] = _project_in_mode(options, mode, case)
        except NoMeasurement as error:
            if mode != options.profiling_mode:
                refused[mode] = str(error)
                continue
            raise
    timed = _shrunk_sizes(case, options) if asked(options) and BENCHMARK in by_mode else ""
    return Projections(by_mode=by_mode, refused=refused, compared=compared, timed=timed)


def _shrunk_sizes(case: Case, options: argparse.Namespace) -> str:
    from projector.benchmark.measured import INSTEAD
    from projector.cli.live import measurement

    times, target = measurement(options, case.workload, case.cluster), case.workload
    shrunk, warnings = times.asked, "".join(f". {note}" for note in times.notes if note.startswith(INSTEAD))

    def sizes(workload: Workload) -> str:
        return ", ".join(f"{name} {getattr(workload.recipe, name)}" for name in ("pp", "ep", "tp", "cp"))

    shrunk_words = f"{sizes(shrunk.workload)} on {shrunk.ranks} of {target.gpus} ranks"
    return f"Benchmark: {shrunk_words}; target: {sizes(target)}, dp {target.dp}; what is left out is priced{warnings}"


def _project_in_mode(options: argparse.Namespace, mode: str, case: Case) -> Projection:
    """Projects ``case``, by ``benchmark`` from layers timed on the device at hand where times are asked for."""
    if mode != BENCHMARK or not asked(options):
        return _project(case, mode)
    from projector.benchmark.measured import restore
    from projector.cli.live import measurement

    return restore(measurement(options, case.workload, case.cluster), case.workload, case.cluster)


def _project(case: Case, mode: str) -> Projection:
    """Projects ``case``. A benchmark projection of which nothing was measured is refused: it would be a simulation."""
    from projector.projection import project

    projection = project(case.workload, case.cluster, mode, settings=case.settings)
    if mode == BENCHMARK and projection.measured_share <= 0:
        raise NoMeasurement(f"no measurement for {case.cluster.gpu.name} of any kernel of this run")
    return projection
