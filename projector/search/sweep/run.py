"""Runs the points of a grid that are not known yet: here, on all cores, or on a Dask cluster. The rows of a batch are
stored when it is done; a worker that dies loses nothing but time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
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
    done = 0
    with _pool(workers, scheduler) as pool:
        for rows_of_batch in pool(_batches(grid, store.known, workers)):
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


@contextmanager
def _pool(workers: int, scheduler: str | None) -> Iterator[Callable[[Iterator[Batch]], Iterator[Rows]]]:
    if scheduler:
        with _dask(scheduler) as dask_pool:
            yield dask_pool
    elif workers == 1:
        yield lambda batches: map(rows, batches)
    else:
        from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
        from multiprocessing import get_context

        with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=collect_seldom) as pool:

            def spread(batches: Iterator[Batch]) -> Iterator[Rows]:
                waiting = {pool.submit(rows, batch) for batch in islice(batches, workers * _AHEAD)}
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    waiting |= {pool.submit(rows, batch) for batch in islice(batches, len(done))}
                    for each in done:
                        yield each.result()

            yield spread


@contextmanager
def _dask(address: str) -> Iterator[Callable[[Iterator[Batch]], Iterator[Rows]]]:
    try:
        dask: Any = importlib.import_module("distributed")
    except ImportError:
        raise InputError([Problem("--scheduler", "", address, "Dask (the extra: sweep)")]) from None
    try:
        client = dask.Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        expected = f"the address of a Dask scheduler ({type(error).__name__})"
        raise InputError([Problem("--scheduler", "", address, expected)]) from None

    def spread(batches: Iterator[Batch]) -> Iterator[Rows]:
        width = _AHEAD * max(1, len(client.scheduler_info()["workers"]))

        def submit(batch: Batch) -> Any:
            return client.submit(rows, batch, key=f"sweep-{batch[0]['key']}", retries=3)

        waiting = dask.as_completed([submit(batch) for batch in islice(batches, width)])
        for each in waiting:
            yield each.result()
            each.release()
            for batch in islice(batches, 1):
                waiting.add(submit(batch))

    try:
        yield spread
    finally:
        client.close()
