"""``harness figures``: the figures that the project answers for, over all measured runs; with ``--out`` the reports."""

from __future__ import annotations

import argparse
import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.calibrate import held_out
from harness.cli import against
from harness.cli.common import folder_problems, say, tables_in
from harness.contracts.results import BASELINE, Evaluation
from harness.evaluation import evaluate, first_look, observations, speed
from harness.evidence import shelf, suite
from harness.evidence.runs_of import runs_of_all
from harness.report import (
    files,
    markdown,
    pictures,
    provenance,
    publish,
    view_drift,
    view_figures,
    view_sources,
    view_switches,
    view_whatif,
)
from harness.report.pictures import Picture
from harness.report.table import Report
from projector import posterior
from projector.errors import NO_FILE, InputError, Problem, or_none, raise_all
from projector.io.files import write_whole
from projector.io.progress import progress

_DOTS_PER_INCH = 120  # resolution of plots that are checked in


KNOWN = {"--suite": {"default": shelf.folder("suites") / "moe.yaml"}}


def command(args: argparse.Namespace) -> int:
    args.suite = shelf.suite(args.suite)
    problems: list[Problem] = []
    paths = or_none(problems, lambda: tables_in(args.measured)) or []
    if args.speed and not args.suite.is_file():
        problems.append(Problem(str(args.suite), "", NO_FILE, "a suite to time, or --no-speed"))
    problems += folder_problems(args.out)
    problems += against.problems(args)
    raise_all(problems)
    earlier = against.read(args)
    runs = runs_of_all(paths)
    # Timed first: the evaluation of a thousand runs would leave every kernel time remembered.
    with progress("timing the project's own work"):
        timed = speed.measure(args.suite) if args.speed else None
    tools = evaluate.tools_for("both")
    with progress("projecting", len(runs) * len(tools)) as advance:
        result = evaluate.evaluate([evaluate.Selected("", r) for r in runs], tools, jobs=args.jobs, progress=advance)
    with progress("judging rows that nobody had seen"):
        judged = _judged(result)
    with progress("writing reports"):
        report = view_figures.build(result, timed, _suites(args.suite.parent, args.measured), judged)
        if args.out is not None:
            origin = provenance.collect(paths, ("harness", *args.argv), 0.0)
            _write(args.out, report, files.Saved(evaluation=result, gates={}, provenance=origin), args.jobs, judged)
    if earlier is None:
        say(args, report, most=None, written=str(args.out or ""))
        return 0
    held, plain = against.compare(args, earlier, result, view_figures.MAIN)
    ids = [look.run_id for look in first_look.read(first_look.FILE)] if first_look.FILE.exists() else []
    known = view_drift.Known(facts=result.facts, looked=frozenset(ids))
    say(args, view_drift.added(report, held, plain, known), most=None, written=str(args.out or ""))
    return 0 if held.passed and plain.passed else 1


def _judged(evaluation: Evaluation) -> held_out.Judgement | None:
    """Returns rows of the main predictor judged by other sources; None without first looks."""
    looks = observations.looks(first_look.FILE) if first_look.FILE.exists() else []
    rows = [o for o in evaluation.observed[view_figures.MAIN] if math.isfinite(o.log_ratio)]
    return held_out.judged(rows, looks, posterior.load()) if looks else None


def _suites(folder: Path, measured: Path) -> dict[str, frozenset[str]]:
    """Returns the run ids of every suite of the folder that selects runs; ``harness run`` refuses broken suites."""
    ids_by_suite = {}
    for path in sorted(folder.glob("*.yaml")):
        with suppress(InputError):
            loaded = suite.load(path, measured)
            ids_by_suite[loaded.name] = frozenset(run.id for run in loaded.runs if run.measured.tgs)
    return {name: ids for name, ids in ids_by_suite.items() if ids}


def _write(folder: Path, report: Report, saved: files.Saved, jobs: int, judged: held_out.Judgement | None) -> None:
    """Writes the reports that are checked in: all but the lists of single rows, which ``results.csv`` holds."""
    brief = publish.brief(publish.report_of(saved, (), "Projection accuracy over all measured runs"))
    evaluation, main = saved.evaluation, view_figures.MAIN
    names = [name for name in evaluation.predictors if name != BASELINE]
    switched, pairs = view_switches.build(evaluation, main)
    gains = Picture("switches", "Gains of single switches: projected over measured", partial(view_switches.plot, pairs))
    plots = [picture for name in names for picture in publish.main_plots(evaluation, name)]
    articles = [each for each in publish.post_plots(evaluation) if not each.dark and each.stem != "post-hero"]
    every = [*plots, gains, *articles]
    drawn = pictures.written(folder, every, evaluation.once, jobs, _DOTS_PER_INCH)
    linked, beside = ({p.caption: p.file("png") for p in drawn if p in shown} for shown in (plots, [gains]))
    # without the facts that differ from one machine and commit to the next
    stable = replace(saved, provenance={"inputs": saved.provenance.get("inputs", {})})
    title = Report(title="How far off are projections of training speed?")
    looks = first_look.read(first_look.FILE)
    sources = view_sources.build(evaluation, looks, main, judged.unseen if judged else ())
    main_rows = (r for r in evaluation.every if r.predictor == main and r.fit != "shipped")
    texts = {
        "figures.md": markdown.render(report),
        "accuracy.md": markdown.render(brief, linked),
        "accuracy.html": publish.page(brief, saved),
        "post.md": publish.article(title, stable, drawn),
        "switches.md": markdown.render(switched, beside),
        observations.FILE: observations.text(evaluation.observed),
        "whatif.md": markdown.render(view_whatif.build(evaluation, main)),
        "sources.md": markdown.render(sources),
        "results.csv": files.csv_text(map(files.rounded, main_rows)),
    }
    for name, text in texts.items():
        write_whole(folder / name, text)
