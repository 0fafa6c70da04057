"""Calls the readers of suites and measured runs that other packages offer in the entry-point group ``projector.evidence``::

[project.entry-points."projector.evidence"]
workloads = "package.module:function"      # (paths of suites) -> workloads
measured = "package.module:function"       # (path, gpu, gpus, framework, config) -> Measured
score = "package.module:function"          # (log, config, gpu, gpus) -> a mapping for each run
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from projector.errors import InputError, Problem
from projector.intake.loaded import Loaded
from projector.workload.workload import Workload

#: Of a file: (name, configuration, seconds of a step) of each run that has all of these, and what is wrong with the others.
Measured: TypeAlias = tuple[Sequence[tuple[str, Loaded, float]], Sequence[Problem]]
GROUP = "projector.evidence"
#: The readers of this project's other package; found without its metadata too, as in a checkout that was never installed.
_OURS = {
    "workloads": "harness.evidence.offered",
    "measured": "harness.evidence.offered",
    "score": "harness.evaluation.judge",
}


def workloads(paths: Sequence[Path]) -> tuple[Workload, ...]:
    """Returns the workloads of all runs and cases of the suites ``paths``. Raises :class:`InputError`, also where no
    installed package reads suites."""
    return tuple(_reader("workloads", "--suite", paths[0])(paths))


def measured(
    flag: str, path: Path, gpu: str | None, gpus: int | None, framework: str | None, config: Path | None
) -> Measured:
    """Returns the measured runs of a log or a table that ``flag`` names; ``gpu``, ``gpus``, ``framework`` and
    ``config`` say what a log does not. Raises :class:`InputError`, also where no package reads logs."""
    runs: Measured = _reader("measured", flag, path)(path, gpu, gpus, framework, config)
    return runs


def scored(log: Path, config: Path | None, gpu: str | None, gpus: int | None) -> Sequence[Mapping[str, Any]]:
    """Returns the runs of a log, each with a verdict on its speed. Raises :class:`InputError`, also without a reader."""
    runs: Sequence[Mapping[str, Any]] = _reader("score", "log", log)(log, config, gpu, gpus)
    return runs


def _reader(name: str, flag: str, path: Path) -> Callable[..., Any]:
    from importlib import metadata

    ours = metadata.EntryPoint(name, f"{_OURS[name]}:{name}", GROUP)
    offered = next(iter(metadata.entry_points(group=GROUP, name=name)), ours)
    try:
        reader: Callable[..., Any] = offered.load()
    except ImportError:
        expected = f"a package that reads it (entry points {GROUP}): install this project, pip install -e ."
        raise InputError([Problem(flag, "", str(path), expected)]) from None
    return reader
