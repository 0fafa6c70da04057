"""Writes a timeline as a Chrome trace, for chrome://tracing and ui.perfetto.dev.

One process per pipeline rank with a track of compute, tracks of the messages that it receives, one per kind of extra
work (gradient reduction, optimizer, …), and counters. Events are sorted by time; those of one track never overlap.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.io.files import write_whole
from projector.io.table import values
from projector.pipeline.residency import resident
from projector.pipeline.timeline import Timeline
from projector.pipeline.types import KINDS

CATEGORIES = {"F": "forward", "B": "backward", "W": "weight-gradient"}
COMPUTE = "compute"
MICRO = 1e6
ROUNDING = 1e-6  # microseconds: sums of times rounded to nanoseconds


@dataclass(frozen=True, slots=True)
class Span:
    """Work of a rank beside its actions, in seconds from the start of the step. ``track``: where it is drawn; spans of
    one track that overlap are given tracks of their own."""

    rank: int
    track: str
    name: str
    start: float
    end: float


def events(
    timeline: Timeline,
    spans: Iterable[Span] = (),
    bytes_per_stage: ArrayLike | None = None,
    static: ArrayLike | None = None,
) -> list[dict[str, Any]]:
    """Returns trace events sorted by ``ts``: one complete event (``"ph": "X"``) per action, message and span, counters
    (``"C"``) of chunks alive and, with ``bytes_per_stage`` ``[stages]`` (kept per micro-batch) over ``static``
    ``[pp]``, of memory.

    ``ts`` and ``dur`` are in microseconds. Format: "Trace Event Format" of the Chromium project. Raises
    :class:`InputError` for a batch (take one with ``at``).
    """
    if timeline.end.ndim != 1:
        raise InputError([Problem("pipeline", "timeline", timeline.end.shape, "one evaluation: timeline.at(row)")])
    rows: list[tuple[int, str, dict[str, Any]]] = [*_actions(timeline), *_messages(timeline)]
    rows += [(s.rank, s.track, _event(s.name, s.track, s.rank, s.start, s.end)) for s in spans]
    named, placed = _tracks(rows, timeline.compiled.schedule.pp)
    placed += _counters(timeline, bytes_per_stage, static)
    placed.sort(key=lambda event: (event["ts"], event["pid"], event.get("tid", -1)))
    return named + placed


def write(
    timeline: Timeline,
    path: Path | str,
    spans: Iterable[Span] = (),
    bytes_per_stage: ArrayLike | None = None,
    static: ArrayLike | None = None,
) -> Path:
    """Writes the trace to ``path``, whole or not at all. Raises :class:`InputError` when the folder does not exist."""
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError([Problem(str(target), "", str(target.parent), "an existing folder")])
    about = values(timeline.compiled.schedule, "schedule=name pp vpp microbatches")
    shown = events(timeline, spans, bytes_per_stage, static)
    content = {"traceEvents": shown, "displayTimeUnit": "ms", "otherData": about}
    write_whole(target, json.dumps(content, separators=(",", ":"), allow_nan=False))
    return target


def _event(name: str, category: str, rank: int, start: float, end: float, **arguments: int) -> dict[str, Any]:
    """Returns an event whose ``dur`` is made from the rounded ends, so that neighbours touch in the file (nanoseconds
    are kept)."""
    begin, stop = round(start * MICRO, 3), round(end * MICRO, 3)
    return {"name": name, "cat": category, "ph": "X", "pid": rank, "ts": begin, "dur": round(stop - begin, 3),
            "args": arguments}  # fmt: skip


def _actions(timeline: Timeline) -> Iterator[tuple[int, str, dict[str, Any]]]:
    plan = timeline.compiled
    columns = (plan.rank, plan.chunk, plan.stage, plan.kind, plan.microbatch, *timeline.shown)
    for rank, chunk, stage, kind, microbatch, start, end in zip(*(column.tolist() for column in columns), strict=True):
        name = KINDS[kind]
        place = {"microbatch": microbatch, "chunk": chunk, "virtual_stage": stage}
        yield rank, COMPUTE, _event(f"{name}{microbatch}", CATEGORIES[name], rank, start, end, **place)


def _messages(timeline: Timeline) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yields the messages that a rank receives: beside compute from the end of the sender on, or before the action that
    waits."""
    plan = timeline.compiled
    forward, backward = plan.pairs
    begins = timeline.start.copy()
    begins[backward] = begins[forward]  # a pair waits for the inputs of both
    waiting = np.array(np.broadcast_to(timeline.blocked, (plan.size,)) > 0)
    waiting[backward] = waiting[forward]
    for number in np.flatnonzero((plan.boundary >= 0) & (timeline.transfer > 0)).tolist():
        lasts = float(timeline.transfer[number])
        end = float(begins[number])
        if not waiting[number]:
            end = float(timeline.end[plan.source[number]]) + lasts
        rank, microbatch = int(plan.rank[number]), int(plan.microbatch[number])
        what = "activation" if plan.kind[number] == 0 else "gradient"
        event = _event(f"recv {what} {microbatch}", "p2p", rank, end - lasts, end, microbatch=microbatch,
                       sender=int(plan.rank[plan.source[number]]))  # fmt: skip
        yield rank, f"receive {what}s", event


def _tracks(
    rows: Sequence[tuple[int, str, dict[str, Any]]], pp: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the names of processes and tracks, and the events with their track: more tracks where events overlap."""
    named = [_name("process_name", rank, 0, f"pipeline rank {rank}") for rank in range(pp)]
    of_track: dict[tuple[int, str], list[dict[str, Any]]] = {(rank, COMPUTE): [] for rank in range(pp)}
    for rank, track, event in rows:
        of_track.setdefault((rank, track), []).append(event)
    placed: list[dict[str, Any]] = []
    used = [0] * pp
    for (rank, track), events_of_track in of_track.items():
        lanes = _lanes(events_of_track)
        number = used[rank]
        placed += [event | {"tid": number + lane} for event, lane in lanes]
        count = 1 + max((lane for _, lane in lanes), default=0)
        titles = [track, *(f"{track} ({lane + 1})" for lane in range(1, count))]
        named += [_name("thread_name", rank, number + lane, title) for lane, title in enumerate(titles)]
        used[rank] += count
    return named, placed


def _lanes(events_of_track: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Returns each event with a lane on which the one before has ended: as few lanes as there are events at once."""
    free: list[tuple[float, int]] = []  # (end of its last event, lane)
    placed = []
    for event in sorted(events_of_track, key=lambda event: event["ts"]):
        if free and free[0][0] <= event["ts"] + ROUNDING:
            lane = heapq.heappop(free)[1]
        else:
            lane = len(free)
        heapq.heappush(free, (event["ts"] + event["dur"], lane))
        placed.append((event, lane))
    return placed


def _counters(timeline: Timeline, kept: ArrayLike | None, static: ArrayLike | None) -> list[dict[str, Any]]:
    """Returns the chunks alive and the bytes on every rank: up when a forward starts, down when what releases it ends."""
    plan = timeline.compiled
    columns = {"chunks alive": (np.asarray(resident(plan, 1.0)), np.zeros(plan.schedule.pp), 1.0)}
    if kept is not None:
        base = np.zeros(plan.schedule.pp) if static is None else np.asarray(static, dtype=np.float64)
        columns["memory GiB"] = (np.asarray(resident(plan, np.asarray(kept, dtype=np.float64))), base, 2.0**30)
    counts = []
    for rank in range(plan.schedule.pp):
        actions, bounds = plan.own(rank), plan.schedule.flat.starts
        when = np.where(plan.kind[actions] == 0, timeline.start[actions], timeline.end[actions]) * MICRO
        for name, (level, base, unit) in columns.items():
            values = (level[bounds[rank] : bounds[rank + 1]] + base[rank]) / unit
            counts.append(_count(name, rank, 0.0, float(base[rank]) / unit))
            counts += [_count(name, rank, at, value) for at, value in zip(when.tolist(), values.tolist(), strict=True)]
    return counts


def _count(name: str, rank: int, at: float, value: float) -> dict[str, Any]:
    return {"name": name, "ph": "C", "pid": rank, "ts": round(at, 3), "args": {name: round(value, 6)}}


def _name(what: str, rank: int, track: int, text: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": track, "ts": 0, "args": {"name": text}}
