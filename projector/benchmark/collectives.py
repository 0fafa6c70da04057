"""Collectives swept over sizes by processes that are started here or by a launcher, into ``measured/collectives``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from projector.benchmark import launched, processes
from projector.benchmark.atomic import write_whole
from projector.benchmark.device import Device
from projector.benchmark.job import unheard
from projector.benchmark.timings import CollectiveWanted, Seconds, seconds
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.io import csv_file

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
    """One collective and its time; ``nodes``: that its ranks are on."""

    asked: CollectiveWanted
    time: Seconds
    nodes: int = 1


def sizes(largest: int) -> tuple[int, ...]:
    """Returns the bytes from a kibibyte to ``largest``, each four times the one before."""
    found = [_LEAST]
    while found[-1] * _STEP <= largest:
        found.append(found[-1] * _STEP)
    return tuple(found)


def here(device: Device) -> int:
    """Returns the ranks that collectives can be timed with: those of the launcher, else one a device."""
    joined = launched.launched()
    return joined.size if joined else processes.available(device)


def timed(
    device: Device,
    largest: int,
    budget: float,
    kinds: Sequence[str] = KINDS,
    skip: frozenset[tuple[str, int, int, int]] = frozenset(),
    ranks: int | None = None,
) -> tuple[Swept, ...]:
    """Times ``kinds`` among all ranks here (messages: between two). ``skip``: (kind, ranks, nodes, bytes) that are known.
    ``ranks``: of those that would be started here, so many.

    Raises :class:`InputError` where fewer than two ranks are here, or they cannot talk to each other.
    """
    ranks = min(here(device), ranks or here(device))
    if ranks < 2:
        expected = "two devices, or cores, at least: collectives join ranks"
        raise InputError([Problem("--kinds", "collectives", f"{ranks} at hand", expected)])
    wanted = [_wanted(kind, size, ranks) for kind in kinds for size in sizes(largest)]
    joined = launched.launched()
    nodes = joined.nodes if joined else 1
    wanted = [each for each in wanted if (each.kind, each.size, _nodes(each, nodes), each.bytes) not in skip]
    if not wanted:
        return ()
    payload = (tuple(wanted), budget)
    if joined is not None:
        processes.joined(device)
        found = sweep(payload, device)
    else:
        limit = _START + _EACH * max(budget, 1.0) * len(wanted)
        threads = processes.threads_of(device, ranks)
        found = processes.launch(processes.JobFile(_TASK, payload, device.place, threads, ranks, limit))
    return tuple(Swept(each, seconds(time), _nodes(each, nodes)) for each, time in zip(wanted, found, strict=True))


def _nodes(each: CollectiveWanted, nodes: int) -> int:
    """Nodes of its group: of a message between neighbouring ranks the one that both are on."""
    return 1 if each.kind == "send_recv" else nodes


def sweep(
    payload: tuple[tuple[CollectiveWanted, ...], float],
    device: Device,
    kept: Callable[[object], None] = unheard,  # noqa: ARG001
) -> list[list[float]]:
    """Returns what every rank runs: each collective in turn."""
    from projector.benchmark.exchange import run_collective
    from projector.benchmark.layers_parallel import Ranks

    wanted, budget = payload
    return [run_collective(each, Ranks(), device, budget) for each in wanted]


def _wanted(kind: str, nbytes: int, ranks: int) -> CollectiveWanted:
    size = 2 if kind == "send_recv" else ranks
    unit = 4 * size
    return CollectiveWanted(kind, "world", size, max(unit, nbytes // unit * unit), 4)


def known(path: Path) -> frozenset[tuple[str, int, int, int]]:
    """(kind, ranks, nodes, bytes) that an earlier sweep has put into the table."""
    rows = _read(path)
    return frozenset(
        (row["kind"], int(row["gpus"]), int(row["nodes"]), round(float(row["bytes"])))
        for row in rows
        if row.get("source", "").startswith(_LIVE)
    )


def add_rows(path: Path, swept: Sequence[Swept], software: str) -> int:
    """Adds rows to a table, never half of them; how many it has. Raises :class:`InputError` for one that is none."""
    rows = [*_read(path), *(_row(each, software) for each in swept)]
    write_whole(path, csv_file.text(COLUMNS, *(map(row.get, COLUMNS) for row in rows)))
    return len(rows)


def _row(each: Swept, software: str) -> Mapping[str, Any]:
    source = f"{_LIVE}{software}; median of {each.time.samples}, spread {each.time.spread:.0%}"
    found = {"kind": each.asked.kind, "gpus": each.asked.size, "nodes": each.nodes, "bytes": each.asked.bytes}
    shown = {"time_us": f"{each.time.median * 1e6:.6g}", "condition": _CONDITION, "source": source}
    return {**found, **shown}


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    found, rows = csv_file.read(path, "a table that can be added to")
    if found != COLUMNS:
        raise InputError([Problem(str(path), "columns", ", ".join(found), ", ".join(COLUMNS))])
    return rows
