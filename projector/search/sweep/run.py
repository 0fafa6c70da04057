"""Runs the points of a grid that are not known yet: here, on all cores, or on a Dask cluster. The rows of a batch are
stored when it is done; a worker that dies loses nothing but time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from itertools import islice
from multiprocessing import get_context
from typing import Any, Protocol

from projector.errors import InputError, Problem
from projector.memo import collect_seldom
from projector.search.sweep.grid import Grid, key_of
from projector.search.sweep.points import rows

_PROJECTED, _SEARCHED = 16384, 1  # points of a batch: a few seconds of work, a part of a folder
_AHEAD = 4  # batches that wait for each worker

Batch = list[dict[str, Any]]
Rows = list[dict[str, Any]]


class Store(Protocol):
    known: set[str]

    def add(self, rows: Sequence[dict[str, Any]]) -> None: ...


def run(
    grid: Grid,
    store: Store,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> int:
    """Adds the rows of all new points to ``store``; returns how many there were. ``workers``: processes (1: this one);
    ``scheduler``: address of a Dask scheduler instead. Raises :class:`InputError` where there is no such scheduler."""
    done, batches = 0, _batches(grid, store.known, workers)
    with ExitStack() as stack:
        computed: Iterator[Rows] = map(rows, batches)
        if scheduler:
            pool, number = stack.enter_context(_dask(scheduler))
            computed = _computed(batches, pool, _AHEAD * max(1, number))
        elif workers > 1:
            spawned = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=collect_seldom)
            computed = _computed(batches, stack.enter_context(spawned), _AHEAD * workers)
        for rows_of_batch in computed:
            store.add(rows_of_batch)
            done += len(rows_of_batch)
            told(done)
    return done


def _batches(grid: Grid, known: set[str], workers: int) -> Iterator[Batch]:
    """Yields batches of new points, each with its ``key``; smaller ones for a small grid, so that no worker is idle."""
    share = -(-len(grid) // (_AHEAD * workers))
    size = min(_PROJECTED, max(256, share)) if grid.search is None else _SEARCHED
    new = ({"key": key, **point} for point in grid.points() if (key := key_of(point)) not in known)
    while batch := list(islice(new, size)):
        yield batch


def _computed(batches: Iterator[Batch], pool: Executor, width: int) -> Iterator[Rows]:
    """Yields the rows of each batch as they come, at most ``width`` batches under way."""
    waiting = {pool.submit(rows, batch) for batch in islice(batches, width)}
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        waiting |= {pool.submit(rows, batch) for batch in islice(batches, len(done))}
        for future in done:
            yield future.result()


@contextmanager
def _dask(address: str) -> Iterator[tuple[Executor, int]]:
    """Yields an executor on the workers of a Dask scheduler, and how many they are."""
    try:
        dask: Any = importlib.import_module("distributed")
    except ImportError:
        raise InputError([Problem("--scheduler", "", address, "Dask (the extra: sweep)")]) from None
    try:
        client = dask.Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        expected = f"the address of a Dask scheduler ({type(error).__name__})"
        raise InputError([Problem("--scheduler", "", address, expected)]) from None
    with client:
        yield client.get_executor(retries=3, pure=False), len(client.scheduler_info()["workers"])
