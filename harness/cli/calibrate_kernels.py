"""``harness calibrate --kernels``: the constants of the kernel classes of each GPU, fitted on its measured tables."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from harness.cli.common import say
from harness.report.table import NONE, Column, Report, Table, percent
from projector.errors import InputError, Problem, nearest
from projector.io.progress import progress

if TYPE_CHECKING:
    from harness.kernels.calibrate import Fitted


def run(args: argparse.Namespace) -> int:
    """Fit, write ``projector/hardware/efficiency/*.yaml`` unless told not to, and show the held-out errors."""
    from harness.kernels import calibrate

    gpus, kinds, write, jobs = args.gpus, args.only, not args.dry_run, args.jobs
    known = calibrate.measured_gpus()
    unknown = [gpu for gpu in gpus if gpu not in known]
    if unknown:
        raise InputError(Problem("command line", "GPU", gpu, nearest(gpu, known)) for gpu in unknown)
    began = time.perf_counter()
    with progress("fitting kernels") as told:
        jobs = jobs or min(2, os.cpu_count() or 1)
        made = calibrate.calibrate(gpus, kinds or tuple(calibrate.KINDS), write, jobs, told)
    rows = tuple(_row(name, each) for name, fits in made for each in fits)
    words = "written to" if write else "nothing is written; they would go to"
    files = sorted({calibrate.REFERENCE.get(name, name) for name, _ in made} | {name for name, _ in made})
    lines = (f"{len(rows)} classes fitted in {time.perf_counter() - began:.0f} s, {words} {', '.join(files)}.yaml",)
    say(args, Report(title="Constants of kernel classes", lines=lines, tables=(_table(rows),)), most=None)
    return 0


def _table(rows: tuple[tuple[str, ...], ...]) -> Table:
    columns = (
        Column("GPU", numeric=False),
        Column("class", numeric=False),
        Column("rows"),
        Column("groups"),
        Column("constants"),
        *(Column(title) for title in ("all", "> 1e10", "> 1e11", "median")),
        Column("kept", numeric=False),
    )
    note = (
        "Held-out MAPE of all rows and of those above so many FLOP (median: above 1e10). Held out by whole groups: all rows "
        "of one (n, k), of one attention shape, of one set of experts. Not kept: few rows and a large error, so the "
        "prior stays."
    )
    return Table(title="Held-out errors", columns=columns, rows=rows, note=note)


def _row(name: str, fitted: Fitted) -> tuple[str, ...]:
    from harness.kernels.score import errors

    outcome = fitted.outcome
    cells = [errors(outcome.heldout[outcome.flops > least]) for least in (-1.0, 1e10, 1e11)]
    alone = outcome.groups < 2
    shown = ["too few" if alone else percent(e.mape) if e else NONE for e in cells]
    median = percent(cells[1].median) if cells[1] and not alone else NONE
    counts = (str(len(outcome.heldout)), str(outcome.groups), str(len(outcome.values)))
    return (name, outcome.title, *counts, *shown, median, "yes" if fitted.kept else "no")
