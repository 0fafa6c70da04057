"""What a package beside this one reads of suites and measured runs, by the entry-point group ``projector.evidence``::

[project.entry-points."projector.evidence"]
workloads = "package.module:function"      # (paths of suites) -> workloads
measured = "package.module:function"       # (path, gpu, gpus, framework) -> (Loaded, seconds of a step)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem
from projector.intake.loaded import Loaded
from projector.workload.workload import Workload

GROUP = "projector.evidence"
#: The readers of this project's other package; found without its metadata too, as in a checkout that was never installed.
_OURS = "harness.evidence.offered"


def workloads(paths: Sequence[Path]) -> tuple[Workload, ...]:
    """Workloads of all runs and cases of the suites ``paths``. Raises :class:`InputError`, also where nothing reads
    suites."""
    return tuple(_reader("workloads", "--suite", paths[0])(paths))


def measured(path: Path, gpu: str | None, gpus: int | None, framework: str | None) -> tuple[Loaded, float]:
    """The one run of a log or a table, and the seconds of its step; ``gpu``, ``gpus`` and ``framework`` say what the log
    does not. Raises :class:`InputError`, also where nothing reads logs, and for several runs or none."""
    found: tuple[Loaded, float] = _reader("measured", "--anchor", path)(path, gpu, gpus, framework)
    return found


def _reader(name: str, flag: str, path: Path) -> Callable[..., Any]:
    ours = metadata.EntryPoint(name, f"{_OURS}:{name}", GROUP)
    offered = next(iter(metadata.entry_points(group=GROUP, name=name)), ours)
    try:
        reader: Callable[..., Any] = offered.load()
    except ImportError:
        expected = f"a package that reads it (entry points {GROUP}): install this project, pip install -e ."
        raise InputError([Problem(flag, "", str(path), expected)]) from None
    return reader
