"""Several runs in one file: starts that begin anew, at another speed, are runs of their own.

A job that starts again goes on from a checkpoint; one that begins anew under the same arguments (or none) is a repetition
when it is as fast as the one before, and otherwise another run whose arguments the file does not print.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from harness.evidence.ingest.logs.record import COLUMNS, Record

_LEAST = 10  # steps of a start whose level can be told
_WARM_UP = 5  # of them that do not count
_MOST = 64  # starts of a file that are told apart: more are a job that keeps crashing
_SAME = 0.05  # relative difference of two levels of one run


def apart(record: Record, memory: Mapping[int, Mapping[str, float]]) -> list[Record]:
    """The runs of a record: itself, where its starts are one run. ``memory``: peaks by start."""
    starts = np.unique(record.segment)
    if not 2 <= len(starts) <= _MOST or len(np.unique(record.config)) > 1:
        return [record]
    groups: list[list[int]] = [[int(starts[0])]]
    for start in map(int, starts[1:]):
        if _anew(record, groups[-1][0], start) and _differ(record, groups[-1][-1], start):
            groups.append([start])
        else:
            groups[-1].append(start)
    if len(groups) == 1:
        return [record]
    return [_only(record, group, memory, index) for index, group in enumerate(groups, start=1)]


def _anew(record: Record, first: int, start: int) -> bool:
    """Whether a start counts from where the run's first one did, or from one (a first step may go unprinted)."""
    begin, now = (int(record.iteration[record.segment == one][0]) for one in (first, start))
    return now <= max(begin, 1)


def _differ(record: Record, one: int, other: int) -> bool:
    levels = [record.value[record.segment == start] for start in (one, other)]
    if min(map(len, levels)) < _LEAST:
        return False
    first, second = (float(np.median(level[_WARM_UP:])) for level in levels)
    return abs(second / first - 1) > _SAME


def _only(record: Record, group: list[int], memory: Mapping[int, Mapping[str, float]], index: int) -> Record:
    mine: npt.NDArray[np.bool_] = np.isin(record.segment, group)
    peaks: dict[str, float] = {}
    for start in group:
        for kind, gib in memory.get(start, {}).items():
            peaks[kind] = max(peaks.get(kind, 0.0), gib)
    note = f"start {index} of several in one file, each at another speed: the file prints no arguments for it alone"
    columns = {name: getattr(record, name)[mine] for name in COLUMNS}
    columns["segment"] = columns["segment"] - columns["segment"][0]
    return replace(
        record,
        name=f"{record.name} start {index}".strip(),
        memory=peaks,
        memory_ratio=None,
        timers={},
        notes=[*record.notes, note],
        **columns,
    )
