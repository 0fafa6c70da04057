"""Workloads of suite files. Suites are read by whoever offers a reader in the entry-point group ``projector.suites``::

[project.entry-points."projector.suites"]
suite = "package.module:function"          # (paths) -> workloads
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from projector.errors import InputError, Problem
from projector.workload.workload import Workload

GROUP = "projector.suites"
#: The reader of this project's other package; found without its metadata too, as in a checkout that was never installed.
_OURS = metadata.EntryPoint("suite", "harness.evidence.suite_workloads:workloads", GROUP)


def workloads(paths: Sequence[Path]) -> tuple[Workload, ...]:
    """Workloads of all runs and cases of ``paths``. Raises :class:`InputError`, also where nothing reads suites."""
    found = (*metadata.entry_points(group=GROUP), _OURS)
    try:
        read: Callable[[Sequence[Path]], tuple[Workload, ...]] = found[0].load()
    except ImportError:
        expected = f"a package that reads suites (entry points {GROUP}): install this project, pip install -e ."
        raise InputError([Problem("--suite", "", str(paths[0]), expected)]) from None
    return tuple(read(paths))
