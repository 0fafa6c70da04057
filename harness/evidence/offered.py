"""What the projector's command line asks of evidence, offered by the entry points ``projector.evidence``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.evidence.ingest import command
from harness.evidence.ingest.context import read_context
from harness.evidence.runs_of import runs_of
from harness.evidence.suite import load_all
from projector.errors import InputError, Problem
from projector.intake.loaded import Loaded
from projector.workload.workload import Workload

_MOST_NAMED = 4  # runs of a file that a mistake names


def workloads(paths: Sequence[Path]) -> tuple[Workload, ...]:
    """Workloads of every run, case and training of the suites at ``paths``. Raises ``InputError`` with all mistakes."""
    suites = load_all(list(paths))
    found = [made for suite in suites for run in suite.runs if (made := _workload(run)) is not None]
    return (*found, *(job.workload for suite in suites for job in suite.plan.jobs))


def _workload(run: object) -> Workload | None:
    try:
        made: Workload = run.workload  # type: ignore[attr-defined]
    except ValueError:  # an incomplete configuration has no kernels
        return None
    return made


def measured(path: Path, gpu: str | None, gpus: int | None, framework: str | None) -> tuple[Loaded, float]:
    """The one run of a log or of a table of runs, and the seconds of its step; the other words say what a log does not.

    Raises :class:`InputError` for several runs, a run that cannot be projected, and one without a step time.
    """
    said = read_context(None, gpu, gpus, framework)
    try:
        runs = runs_of(path, said)
    except InputError as error:
        if not (path.is_file() and command.is_table(path)):
            raise
        expected = "the seconds of its step, where it is a configuration"
        raise InputError([*error.problems, Problem(str(path), "", "no --anchor-step", expected)]) from None
    if len(runs) > 1:
        named = ", ".join(run.id for run in runs[:_MOST_NAMED])
        raise InputError([Problem(str(path), "", f"{len(runs)} runs ({named}, …)", "a file of one measured run")])
    (run,) = runs
    seconds = run.measured.step_seconds
    if run.problem or run.model is None or run.recipe is None or seconds is None:
        raise InputError([Problem(str(path), run.id, run.problem or "no step time", "a run with its step time")])
    loaded = Loaded(
        model=run.model,
        recipe=run.recipe,
        gpus=run.gpus,
        framework=run.stack.framework,
        framework_date=run.stack.date,
        cluster=run.cluster or run.gpu,
        assumed=run.assumed,
    )
    return loaded, seconds
