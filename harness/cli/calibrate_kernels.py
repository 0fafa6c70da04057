"""``harness calibrate --kernels``: fits the constants of the kernel classes of each GPU to its measured tables."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.cli.common import say
from harness.report.spec import tabled
from harness.report.table import NONE, Report, Table, percent
from projector.errors import InputError, Problem, nearest
from projector.io.progress import progress

if TYPE_CHECKING:
    from harness.kernels.calibrate import Fitted


def run(args: argparse.Namespace) -> int:
    """Fits, writes ``projector/hardware/efficiency/*.yaml`` unless told not to, and shows the held-out errors."""
    from harness.kernels import calibrate

    gpus, kinds, write, jobs = args.gpus, args.only, not args.dry_run, args.jobs
    known = calibrate.measured_gpus()
    unknown = [gpu for gpu in gpus if gpu not in known]
    if unknown:
        raise InputError(Problem("command line", "GPU", gpu, nearest(gpu, known)) for gpu in unknown)
    began = time.perf_counter()
    with progress("fitting kernels") as advance:
        jobs = jobs or min(2, os.cpu_count() or 1)
        by_gpu = calibrate.calibrate(gpus, kinds or tuple(calibrate.KINDS), write, jobs, advance)
    rows = [(name, fit) for name, fits in by_gpu for fit in fits]
    words = "written to" if write else "nothing is written; they would go to"
    files = sorted({calibrate.REFERENCE.get(name, name) for name, _ in by_gpu} | {name for name, _ in by_gpu})
    lines = (f"{len(rows)} classes fitted in {time.perf_counter() - began:.0f} s, {words} {', '.join(files)}.yaml",)
    say(args, Report(title="Constants of kernel classes", lines=lines, tables=(_table(rows),)), most=None)
    return 0


def _table(fitted: Sequence[tuple[str, Fitted]]) -> Table:
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
