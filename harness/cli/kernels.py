"""``harness kernels``: scores the kernel models on tables of measured kernels, also by held-out fits."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.cli.common import folder_problems, say
from projector.errors import Problem, raise_all
from projector.io.progress import progress
from projector.io.rows import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.contracts.runs import MeasuredRun
    from harness.evidence.suite import Suite
    from harness.kernels.table_coverage import Share

FORMATS = ("md", "csv", "json", "png")


KNOWN = {"--format": {"choices": FORMATS, "default": list(FORMATS)}, "--jobs": {"default": min(2, os.cpu_count() or 1)}}


def command(args: argparse.Namespace) -> int:
    from harness.evidence import suite
    from harness.kernels import score, table
    from harness.report import kernel_view

    _check(args)
    suites = suite.load_all(args.suite, None) if args.suite else []
    stated = args.gpu[0] if len(args.gpu) == 1 else None
    loaded = table.choose(table.load(args.tables or table.default_tables(), stated), args.gpu, args.dtype, args.family)
    if not loaded.rows:
        say(args, kernel_view.nothing(loaded))
        return 0
    with progress("scoring kernels") as advance:
        scored = score.score(loaded.rows, args.cross_validate, args.jobs, advance)
        report = kernel_view.build(scored, loaded)
    if args.gemm_backend:
        from harness.kernels import other_model
        from harness.report.spec import tabled

        with progress(f"pricing by {args.gemm_backend}"):
            lines = other_model.compared(scored, args.gemm_backend)
        fit = "held out" if args.cross_validate else "with the constants as shipped"
        beside_table = tabled("beside", lines, backend=args.gemm_backend, fit=fit)
        report = replace(report, tables=(*report.tables, beside_table))
    if suites:
        with progress("projecting suites"):
            shown = kernel_view.unmeasured(shares(suites))
        report = replace(report, tables=(*report.tables, shown))
    if args.out is not None:
        with progress("writing reports"):
            kernel_view.write(args.out, report, scored, loaded, args.format, curves=args.curves)
    say(args, report, written=str(args.out or ""))
    return 0


def _check(args: argparse.Namespace) -> None:
    problems = folder_problems(args.out)
    if args.curves and args.out is None:
        problems.append(Problem("command line", "--curves", "no --out", "a folder to write the plots to"))
    if args.gemm_backend:
        from projector.kernels import backends

        backends.check(args.gemm_backend)
    raise_all(problems)


def shares(suites: Sequence[Suite]) -> Iterator[tuple[str, str, list[Share]]]:
    """Yields the shares of the runs of each suite and GPU, in order of both. A run without a projection has none."""
    runs = {run.id: run for suite in suites for run in suite.runs}
    known = {name: _share_of(run) for name, run in runs.items()}
    for suite in suites:
        by_gpu = grouped((run.gpu, of_run) for run in suite.runs if (of_run := known[run.id]) is not None)
        yield from ((suite.name, gpu, by_gpu[gpu]) for gpu in sorted(by_gpu))


def _share_of(run: MeasuredRun) -> Share | None:
    from harness.kernels.table_coverage import share
    from harness.predictors.ours import cluster_of
    from projector.projection import project

    try:
        cluster = cluster_of(run.cluster, run.gpu, run.gpus_per_node)
        return share(project(run.workload, cluster, published=run.measured.exists), cluster)
    except ValueError:  # the configuration is incomplete, cannot run, or is covered by no model
        return None
