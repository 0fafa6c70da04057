"""Answers what the projector's command line asks of evidence, through the entry points ``projector.evidence``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest import command
from harness.evidence.ingest.context import read_context
from harness.evidence.ingest.logs.settings import Incomplete
from harness.evidence.runs_of import runs_of
from harness.evidence.suite import load_all
from projector.cli.evidence import Measured
from projector.errors import InputError, Problem
from projector.intake.loaded import Loaded
from projector.io.table import values
from projector.workload.workload import Workload


def workloads(paths: Sequence[Path]) -> tuple[Workload, ...]:
    """Returns workloads of every run, case and training of the suites at ``paths``. Raises ``InputError`` for mistakes."""
    suites = load_all(list(paths))
    of_runs = [workload for suite in suites for run in suite.runs if (workload := _workload_of(run)) is not None]
    return (*of_runs, *(job.workload for suite in suites for job in suite.plan.jobs))


def _workload_of(run: object) -> Workload | None:
    try:
        workload: Workload = run.workload  # type: ignore[attr-defined]
    except ValueError:  # an incomplete configuration has no kernels
        return None
    return workload


def measured(
    path: Path, gpu: str | None, gpus: int | None, framework: str | None, config: Path | None = None
) -> Measured:
    """Returns the runs of a log or a table with their seconds a step, and why other runs have none. ``gpu``, ``gpus`` and
    ``framework`` say what a log does not; ``config``: what a log without a configuration (a history of W&B,
    TensorBoard's events) was started with. Raises :class:`InputError` for what cannot be read."""
    try:
        runs = runs_of(path, read_context(None, gpu, gpus, framework))
    except Incomplete:
        if config is None:
            raise
        runs = runs_of(path, read_context(config, gpu, gpus, framework))
    except InputError as error:
        if not (path.is_file() and command.is_table(path)):
            raise
        expected = "--anchor FILE with the seconds of its step, where it is a configuration"
        raise InputError([*error.problems, Problem(str(path), "", "no --anchor-step", expected)]) from None
    usable: list[tuple[str, Loaded, float]] = []
    refused: list[Problem] = []
    for run in runs:
        loaded, seconds = _usable(run), run.measured.step_seconds
        if loaded is None or seconds is None:
            refused.append(Problem(str(path), run.id, run.problem or "no step time", "a run with its step time"))
        else:
            usable.append((run.id, loaded, seconds))
    return usable, refused


def _usable(run: MeasuredRun) -> Loaded | None:
    if run.problem or run.model is None or run.recipe is None:
        return None
    stated = values(run, "model recipe gpus framework=stack.framework framework_date=stack.date assumed")
    return Loaded(**stated, cluster=run.cluster or run.gpu)
