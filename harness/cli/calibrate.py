"""``harness calibrate``: fits the posterior to measured runs, with errors of rows that nobody had seen and the gain from
a few runs of one's own; with ``--kernels`` fits the constants of kernel classes to measured kernels."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from harness.calibrate import held_out
from harness.cli.common import measured_runs, say
from harness.contracts.estimates import Observation
from harness.report.spec import tabled
from harness.report.table import NONE, Report, Table, percent
from projector import posterior
from projector.errors import InputError, Problem, raise_all, unknown
from projector.io.files import read_text, write_whole
from projector.io.progress import progress
from projector.posterior import Posterior

if TYPE_CHECKING:
    from harness.kernels.calibrate import Fitted

NAME = "simulate"
# The kinds of harness.kernels.calibrate, repeated because that takes long to import.
KINDS = ("gemm", "attention", "grouped", "stream")
KNOWN = {"--only": {"choices": KINDS, "help": f"with --kernels: only {', '.join(KINDS)}"}}


def command(args: argparse.Namespace) -> int:
    if args.kernels:
        return _kernels(args)
    if args.only or args.dry_run:
        raise InputError([Problem("command line", "--only, --dry-run", "no --kernels", "--kernels beside them")])
    from harness.evaluation import evaluate, observations, posterior_file
    from harness.report import view_posterior

    measured = measured_runs(args)
    present = tuple(dict.fromkeys(run.gpu for run in measured))
    raise_all(unknown("GPU", args.gpus, present))
    runs = [run for run in measured if not args.gpus or run.gpu in args.gpus]
    looks = observations.looks(args.looks if args.looks.exists() else None)
    if not looks:
        raise InputError([Problem(str(args.looks), "", "no first look", "some, made by `harness first-look`")])
    tools = evaluate.tools_for(NAME)[:1]
    with progress("projecting", len(runs)) as advance:
        selected = [evaluate.Selected("", run) for run in runs]
        result = evaluate.evaluate(selected, tools, jobs=args.jobs or 1, progress=advance)
        advance(words="learning")
        known, rows = posterior_file.learnt(runs, result.observed[NAME], looks)
        tables = [view_posterior.deviations(known), view_posterior.scatter(known)]
        lines = []
        if args.judge:
            judged = held_out.judged(rows, looks, known)
            tables = [view_posterior.by_group(judged), view_posterior.own_runs(judged.unseen), *tables]
            lines = [view_posterior.headline(judged.unseen)]
    if args.against:
        old = posterior.parse(read_text(args.against, "a posterior"), str(args.against))
        lines.append(_agreement(known, old, rows))
    if args.out:
        write_whole(args.out, posterior_file.text(known))
    report = Report(title=f"Calibration of {NAME}", lines=tuple(lines), tables=tuple(tables))
    say(args, report, most=None, written=str(args.out or ""))
    return 1 if any(line.startswith("FAIL") for line in lines) else 0


def _agreement(new: Posterior, old: Posterior, rows: Sequence[Observation]) -> str:
    """Tells whether two posteriors agree on every row: middles to 1 %, half widths to 2 %."""
    worst = max(rows, key=lambda row: _moved(new, old, row))
    moved = _moved(new, old, worst)
    return f"{'PASS' if moved <= 1.0 else 'FAIL'}: {worst.run_id} moved most, {moved:.2f} of what is allowed"


def _moved(new: Posterior, old: Posterior, row: Observation) -> float:
    facts = replace(row.facts, source="own")
    (middle, spread), (was, wide) = new.log_ratio(facts), old.log_ratio(facts)
    half = abs(new.tail[0] * math.sqrt(spread) - old.tail[0] * math.sqrt(wide)) / (old.tail[0] * math.sqrt(wide))
    return max(abs(middle - was) / 0.01, half / 0.02)


def _kernels(args: argparse.Namespace) -> int:
    """Fits, writes ``projector/hardware/efficiency/*.yaml`` unless told not to, and shows the held-out errors."""
    from harness.kernels import calibrate

    gpus, kinds, write, jobs = args.gpus, args.only, not args.dry_run, args.jobs
    known = calibrate.measured_gpus()
    raise_all(unknown("GPU", gpus, known))
    began = time.perf_counter()
    with progress("fitting kernels") as advance:
        jobs = jobs or min(2, os.cpu_count() or 1)
        by_gpu = calibrate.calibrate(gpus, kinds or tuple(calibrate.KINDS), write, jobs, advance)
    rows = [(name, fit) for name, fits in by_gpu for fit in fits]
    words = "written to" if write else "nothing is written; they would go to"
    files = sorted({calibrate.REFERENCE.get(name, name) for name, _ in by_gpu} | {name for name, _ in by_gpu})
    lines = (f"{len(rows)} classes fitted in {time.perf_counter() - began:.0f} s, {words} {', '.join(files)}.yaml",)
    say(args, Report(title="Constants of kernel classes", lines=lines, tables=(_fitted_classes(rows),)), most=None)
    return 0


def _fitted_classes(fitted: Sequence[tuple[str, Fitted]]) -> Table:
    return tabled(
        "fitted_classes",
        fitted,
        rows=lambda line: len(line[1].outcome.heldout),
        all=partial(_error, -1.0),
        large=partial(_error, 1e10),
        larger=partial(_error, 1e11),
        median=partial(_error, 1e10, median=True),
    )


def _error(least: float, fitted: tuple[str, Fitted], *, median: bool = False) -> str:
    """Returns the held-out error of the rows above ``least`` FLOP as text."""
    from harness.kernels.score import errors

    outcome = fitted[1].outcome
    if outcome.groups < 2:
        return NONE if median else "too few"
    statistics = errors(outcome.heldout[outcome.flops > least])
    if statistics is None:
        return NONE
    return percent(statistics.median if median else statistics.mape)
