"""Times collectives over sizes by processes started here or by a launcher, into ``measured/collectives``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from projector.benchmark import launcher, processes
from projector.benchmark.device import Device
from projector.benchmark.job import unheard
from projector.benchmark.timings import CollectiveWanted, Seconds
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.io import csv_file
from projector.io.files import write_whole, writing

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
#: Columns of a table (``measured/collectives/README.md``).
COLUMNS = ("kind", "gpus", "nodes", "bytes", "nodes_bytes", "time_us", "algorithm", "sms", "condition", "source")
_CONDITION = "torch.distributed"
_LIVE = "live: "
_LEAST, _STEP = 1024, 4  # bytes, and from one size to the next
_TASK = "projector.benchmark.collectives:sweep"
_START, _EACH = 120.0, 4.0  # seconds to start processes, and for one size at most (times the budget)


@dataclass(frozen=True, slots=True)
class Swept:
    """One collective and its time; ``nodes``: the number of nodes that its ranks are on."""

    asked: CollectiveWanted
    time: Seconds
    nodes: int = 1


def sizes(largest: int) -> tuple[int, ...]:
    """Returns the bytes from a kibibyte to ``largest``, each four times the one before."""
    steps = [_LEAST]
    while steps[-1] * _STEP <= largest:
        steps.append(steps[-1] * _STEP)
    return tuple(steps)


def here(device: Device) -> int:
    """Returns the ranks that collectives can be timed with: those of the launcher, else one a device."""
    job = launcher.launched()
    return job.size if job else processes.available(device)


def timed(
    device: Device,
    largest: int,
    budget: float,
    skip: frozenset[tuple[str, int, int, int]] = frozenset(),
    ranks: int | None = None,
) -> tuple[Swept, ...]:
    """Times all :data:`KINDS` among all ranks here (messages between two). ``skip``: (kind, ranks, nodes, bytes) that are
    known; ``ranks``: at most so many of those that would be started here.

    Raises :class:`InputError` where fewer than two ranks are here, or they cannot talk to each other.
    """
    ranks = min(here(device), ranks or here(device))
    if ranks < 2:
        expected = "two devices, or cores, at least: collectives join ranks"
        raise InputError([Problem("--kinds", "collectives", f"{ranks} at hand", expected)])
    wanted = []
    for kind in KINDS:
        size = 2 if kind == "send_recv" else ranks
        unit = 4 * size
        wanted += [
            CollectiveWanted(kind, "world", size, max(unit, nbytes // unit * unit), 4) for nbytes in sizes(largest)
        ]
    job = launcher.launched()
    nodes = job.nodes if job else 1
    wanted = [each for each in wanted if (each.kind, each.size, _nodes(each, nodes), each.bytes) not in skip]
    if not wanted:
        return ()
    payload = (tuple(wanted), budget)
    if job is not None:
        processes.joined(device)
        times = sweep(payload, device)
    else:
        limit = _START + _EACH * max(budget, 1.0) * len(wanted)
        threads = processes.threads_of(device, ranks)
        times = processes.launch(processes.JobFile(_TASK, payload, device.place, threads, ranks, limit))
    return tuple(Swept(each, Seconds.read(time), _nodes(each, nodes)) for each, time in zip(wanted, times, strict=True))


def _nodes(collective: CollectiveWanted, nodes: int) -> int:
    """Returns the nodes of a collective's group; a message between neighbouring ranks stays on one."""
    return 1 if collective.kind == "send_recv" else nodes


def sweep(
    payload: tuple[tuple[CollectiveWanted, ...], float],
    device: Device,
    kept: Callable[[object], None] = unheard,  # noqa: ARG001
) -> list[dict[str, Any]]:
    """Returns the times of each collective in turn; every rank runs it."""
    from projector.benchmark.exchange import run_collective
    from projector.benchmark.layers_parallel import Ranks

    wanted, budget = payload
    return [run_collective(each, Ranks(), device, budget) for each in wanted]


def known(path: Path) -> frozenset[tuple[str, int, int, int]]:
    """Returns the (kind, ranks, nodes, bytes) that an earlier sweep has put into the table."""
    rows = [row for row in _read(path) if row.get("source", "").startswith(_LIVE)]
    return frozenset((row["kind"], int(row["gpus"]), int(row["nodes"]), round(float(row["bytes"]))) for row in rows)


def add_rows(path: Path, swept: Sequence[Swept], software: str) -> int:
    """Adds rows to a table, all or none, and returns how many it has. Raises :class:`InputError` for another file."""
    rows = [*_read(path), *(_row(each, software) for each in swept)]
    with writing(path):
        write_whole(path, csv_file.text(COLUMNS, *(map(row.get, COLUMNS) for row in rows)))
    return len(rows)


def _row(swept: Swept, software: str) -> Mapping[str, Any]:
    source = f"{_LIVE}{software}; median of {swept.time.samples}, spread {swept.time.spread:.0%}"
    shape = {"kind": swept.asked.kind, "gpus": swept.asked.size, "nodes": swept.nodes, "bytes": swept.asked.bytes}
    words = {"time_us": f"{swept.time.median * 1e6:.6g}", "condition": _CONDITION, "source": source}
    return {**shape, **words}


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    columns, rows = csv_file.read(path, "a table that can be added to")
    if columns != COLUMNS:
        raise InputError([Problem(str(path), "columns", ", ".join(columns), ", ".join(COLUMNS))])
    return rows
