"""The workloads of suites, offered to the projector's ``record`` through the entry points ``projector.suites``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.evidence.suite import load_all
from projector.workload.workload import Workload


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
