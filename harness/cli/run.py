"""``harness run``: evaluates suites or files of runs, shows and writes the report, and judges the gates."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import predictors
from harness.cli import against, record
from harness.cli.common import folder_problems, said_of, say_screen
from harness.contracts.results import Row
from harness.contracts.runs import MeasuredRun
from harness.disk_cache import switch_off
from harness.evaluation import evaluate, observations
from harness.evidence import selection, suite
from harness.evidence.physics import judge
from harness.evidence.runs_of import runs_of_all
from harness.measure.spec import Plan, by_strategy
from harness.predictors import Predictor
from harness.report import files, github, junit, provenance, publish, runner, screen, view_drift
from harness.report.table import Report
from harness.score import drift, gate
from projector.cli.options import add_kernels, read_settings
from projector.dataclass import dataclass
from projector.errors import Problem, or_none, raise_all, unknown
from projector.io.files import write_whole
from projector.io.progress import progress
from projector.kernels.settings import DEFAULT

DEFAULT_OUT = Path("out")
_MOST_NAMED = 3  # runs or suites in the name of a folder
_PROBES = 2  # items of the progress bar beside trainings: probes of the device and of the processes' link


KNOWN = {
    "+kernels": add_kernels,
    "--with": {"help": "more predictors: " + ", ".join(predictors.names())},
    "--jobs": {"default": min(2, os.cpu_count() or 1)},
    "--measured": {"default": None, "help": "measured runs (default: ../measured/runs from the suite)"},
}


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    tools: tuple[Predictor, ...]
    suites: tuple[suite.Suite, ...]
    runs: tuple[MeasuredRun, ...]
    earlier: tuple[Row, ...] | None
    checks: tuple[gate.Check, ...] = ()
    unclear: frozenset[str] = frozenset()

    @property
    def selected(self) -> list[evaluate.Selected]:
        chosen = [evaluate.Selected(s.name, run) for s in self.suites for run in s.runs]
        return chosen + [evaluate.Selected("", run) for run in self.runs]


def command(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    if not args.cache:
        switch_off()
    inputs, trained = _trained(_possible(_inputs(args)), args)
    if not inputs.selected:
        return 0  # all trainings were skipped, which has been said
    selected = inputs.selected
    jobs = 1 if trained else args.jobs  # layers that are timed at the same time disturb each other
    with progress("projecting", len(selected) * len(inputs.tools)) as advance:
        evaluation = evaluate.evaluate(
            selected, inputs.tools, jobs=jobs, progress=advance, evidence=observations.packaged()
        ).marked(inputs.unclear)
    inputs_read = [path for s in inputs.suites for path in s.inputs] + list(args.runs) + trained
    saved = files.Saved(
        evaluation=evaluation,
        gates={s.name: s.gate for s in inputs.suites},
        provenance=provenance.collect(inputs_read, ("harness", *args.argv), time.perf_counter() - began),
    )
    return _publish(args, inputs, saved)


def _possible(inputs: _Inputs) -> _Inputs:
    """Removes optional trainings for which this machine has no devices; a suite that is left without runs has no gate."""
    if not any(s.plan.optional for s in inputs.suites):
        return inputs
    from harness.measure import launch

    suites = []
    for s in inputs.suites:
        plan, skipped = launch.possible(s.plan, str(s.path))
        for line in skipped:
            print(line, file=sys.stderr)
        suites.append(replace(s, plan=plan, gate=s.gate if s.runs or plan.jobs else {}))
    return replace(inputs, suites=tuple(suites))


def _trained(inputs: _Inputs, args: argparse.Namespace) -> tuple[_Inputs, list[Path]]:
    """Returns the inputs with the runs that their suites train here, and the files that these trainings left."""
    live = args.mode != "simulate"
    total = sum(len(s.plan.jobs) * (s.plan.repeat + live) for s in inputs.suites)
    if not total:
        return inputs, []
    from harness.cli import measure
    from harness.measure import shrink_test, suite_trainings
    from harness.predictors.live import Live

    with measure.watching(total + _PROBES) as advance:
        closed = suite_trainings.close(inputs.suites, _folder(args, inputs) / "measured", advance, live=live)
    if args.verbose or args.json:
        measure.show([done for each in closed.values() for done in each.done], aside=args.json)
    suites = tuple(replace(s, runs=(*s.runs, *closed[s.name].runs)) if s.name in closed else s for s in inputs.suites)
    checks = tuple(
        shrink_test.check(s.name, s.gate["benchmark"][gate.SHRINK], closed[s.name].shrunk)
        for s in suites
        if live and gate.SHRINK in s.gate.get("benchmark", {}) and s.plan.jobs
    )
    here = {id: place for each in closed.values() for id, place in each.here.items()}
    tools = tuple(Live(tool, here) if tool.name == "benchmark" else tool for tool in inputs.tools)
    unclear = frozenset(id for each in closed.values() for id in each.unclear)
    files = dict.fromkeys(path for each in closed.values() for path in each.files)
    return replace(inputs, suites=suites, tools=tools, checks=checks, unclear=unclear), list(files)


def _folder(args: argparse.Namespace, inputs: _Inputs) -> Path:
    """Returns the folder of the results."""
    named = args.ids or [s.name for s in inputs.suites] or [args.runs[0].stem]
    folder: Path = args.out or DEFAULT_OUT / "-".join(named[:_MOST_NAMED]).replace("/", "-")
    return folder


def _inputs(args: argparse.Namespace) -> _Inputs:
    """Reads and checks all that the command line names; raises all mistakes in one :class:`InputError`."""
    problems: list[Problem] = []
    extra = [name.strip() for name in args.extra.split(",") if name.strip()]
    settings = or_none(problems, lambda: read_settings(args)) or DEFAULT
    tools = or_none(problems, lambda: evaluate.tools_for(args.mode, extra, settings)) or ()
    if args.ids and not args.suites and not args.runs:
        args.runs = sorted((args.measured or Path("measured/runs")).glob("*.yaml"))
    suites = or_none(problems, lambda: suite.load_all(args.suites, args.measured)) or []
    runs = or_none(problems, lambda: runs_of_all(args.runs, said_of(args))) or []
    earlier = or_none(problems, lambda: against.read(args))
    if not args.suites and not args.runs:
        problems.append(Problem("command line", "SUITE", "nothing", "a suite file, or --runs FILE"))
    for run in runs:
        for doubt in judge(run).doubts:
            print(f"doubtful: {run.id}: {doubt}", file=sys.stderr)
    problems += against.problems(args)
    or_none(problems, lambda: record.check(args))
    problems += folder_problems(args.out)
    problems += _two_of_one_id(suites, runs)
    known = tuple(dict.fromkeys(run.id for run in (*(run for s in suites for run in s.runs), *runs)))
    problems += unknown("--id", args.ids, known) if not problems else []
    raise_all(problems)
    if args.ids:
        suites = [replace(s, runs=_only(s.runs, args.ids), gate={}, plan=Plan()) for s in suites]
        runs = list(_only(runs, args.ids))
    if args.strategy:
        measured = [*(run for s in suites for run in s.runs), *runs]
        ids = [run.id for run in selection.chosen(measured, args.strategy)] if measured else []
        plans = [by_strategy(s.plan, args.strategy, str(s.path)) if s.plan.jobs else Plan() for s in suites]
        suites = [
            replace(s, runs=_only(s.runs, ids), gate={}, plan=plan) for s, plan in zip(suites, plans, strict=True)
        ]
        runs = list(_only(runs, ids))
    return _Inputs(tools=tools, suites=tuple(suites), runs=tuple(runs), earlier=earlier)


def _two_of_one_id(suites: Sequence[suite.Suite], runs: Sequence[MeasuredRun]) -> list[Problem]:
    """Returns a problem for each id of two different runs; the same run selected twice is fine."""
    first: dict[str, tuple[str, MeasuredRun]] = {}
    problems = []
    for where, run in [(str(s.path), r) for s in suites for r in s.runs] + [("--runs", r) for r in runs]:
        origin, same = first.setdefault(run.id, (where, run))
        if same != run:
            problems.append(Problem(where, run.id, "a duplicate id", f"an id that no other run of {origin} has"))
    return problems


def _only(runs: Sequence[MeasuredRun], ids: Sequence[str]) -> tuple[MeasuredRun, ...]:
    return tuple(run for run in runs if run.id in ids)


def _publish(args: argparse.Namespace, inputs: _Inputs, saved: files.Saved) -> int:
    evaluation = saved.evaluation
    checks = [c for s in inputs.suites for c in gate.check(s.name, evaluation.frame, s.gate)] + list(inputs.checks)
    title = ", ".join(args.ids or [s.title for s in inputs.suites]) or _title(args.runs)
    report = publish.report_of(saved, checks, title)
    moved = None
    if inputs.earlier is not None:
        moved, plain = against.compare(args, inputs.earlier, evaluation)
        report = view_drift.added(report, moved, plain)
    folder = _folder(args, inputs)
    plots = args.out is not None if args.plots is None else args.plots
    with progress("writing reports"):
        publish.write_rows(folder, saved)
        publish.write_reports(folder, report, saved, publish.usual(plots=plots), args.jobs)
    if args.junit:
        write_whole(args.junit, junit.render(checks, evaluation.every, moved, judged=args.gate))
    record.append(args, inputs.suites, evaluation)
    held = all(c.passed for c in checks) and (moved is None or moved.passed)
    shown = screen.Screen(report=report, evaluation=evaluation, checks=checks, drift=moved, folder=folder)
    say_screen(args, shown, further={"passed": held})
    _tell_github(report, checks, moved, level="error" if args.gate else "warning", aside=args.json)
    return 0 if held or not args.gate else 1


def _tell_github(
    report: Report, checks: Sequence[gate.Check], moved: drift.Drift | None, *, level: str, aside: bool
) -> None:
    """Writes step summary and annotations where a runner of GitHub Actions is listening; ``aside``: on stderr, where
    stdout is a document."""
    page = github.summary_file(os.environ)
    if page is not None:
        github.write_summary(page, report)
    if github.wanted(os.environ):
        for annotation in github.annotate(checks, moved, report.lines, level=level):
            print(annotation, file=runner.unguarded(sys.stderr if aside else sys.stdout))


def _title(paths: Sequence[Path]) -> str:
    return f"Runs of {paths[0].name}" + (f" and {len(paths) - 1} more files" if len(paths) > 1 else "")
