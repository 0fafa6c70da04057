"""Times taken on the device at hand, kept in a file or read from one: what ``benchmark`` and ``performance`` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.cli.options import quantity, whole
from projector.errors import InputError, Problem

if TYPE_CHECKING:
    from projector.benchmark.device import Device
    from projector.benchmark.measured import Measurement
    from projector.hardware.types import Cluster
    from projector.io.table import Table
    from projector.projection import Projection
    from projector.workload.workload import Workload

__all__ = ["add_live", "asked", "document", "measurement", "table"]

_BUDGET = 2.0


def add_live(parser: Any) -> None:
    """The flags that say whose layers are timed and where the times are kept."""
    files = parser.add_mutually_exclusive_group()
    files.add_argument(
        "--save-benchmark", metavar="FILE", help="time layers on the device at hand, and keep the times in FILE"
    )
    files.add_argument(
        "--load-benchmark",
        metavar="FILE",
        help="use the times of FILE; those of another workload, device, schema or major version of torch are refused",
    )
    parser.add_argument(
        "--benchmark-gpus",
        type=whole(1, 4096),
        metavar="N",
        help="devices that time layers at once, where they are timed; the run is shrunk to them; default: all at hand",
    )
    parser.add_argument(
        "--layers",
        default="auto",
        metavar="NAME",
        help="whose layers are timed: torch, megatron (Megatron-Core and Transformer Engine), auto, or "
        "package.module:function; default: auto, Megatron-Core's on a GPU where they are installed",
    )
    parser.add_argument(
        "--budget",
        type=quantity("s", 0.05, 3600),
        default=_BUDGET,
        metavar="S",
        help=f"seconds spent on each thing that is timed; default: {_BUDGET:g}",
    )


def asked(options: argparse.Namespace) -> bool:
    """Whether live times are wanted in place of tables."""
    if options.benchmark_gpus and not options.save_benchmark:
        expected = "--save-benchmark FILE: only that times layers on the devices at hand"
        raise InputError([Problem("--benchmark-gpus", "", options.benchmark_gpus, expected)])
    return bool(options.save_benchmark or options.load_benchmark)


def measurement(
    options: argparse.Namespace, workload: Workload, cluster: Cluster, device: Callable[[], Device]
) -> Measurement:
    """The times that ``options`` name: of a file, or taken now (and kept where they say so)."""
    from projector.benchmark import artifact, measured

    if options.load_benchmark:
        return measured.load(Path(options.load_benchmark), workload, cluster)
    here = device()
    found = measured.measure(
        workload, cluster, here, layers=options.layers, budget=options.budget, most=options.benchmark_gpus
    )
    if options.save_benchmark:
        artifact.save(Path(options.save_benchmark), found.timings, found.asked, found.notes, workload, here)
    return found


def table(found: Measurement, simulated: Projection, live: Projection, cluster: Cluster) -> Table:
    """Simulated against measured, by kind of layer and direction, and the step."""
    from projector.io.table import Column, Table

    rows = [
        (name, _ms(ours), _ms(theirs), "–" if spread is None else f"{spread:.0%}", f"{ours / theirs - 1.0:+.1%}")
        for name, ours, theirs, spread in _compared(found, simulated, live, cluster)
        if theirs > 0
    ]
    columns = (
        Column("part", numeric=False),
        *(Column(name) for name in ("simulated ms", "measured ms", "spread", "error")),
    )
    note = "One micro-batch of one rank, communication inside layers included. Spread: interquartile range over median."
    return Table(title="Simulated against measured", columns=columns, rows=tuple(rows), note=note)


def document(
    found: Measurement, simulated: Projection, live: Projection, cluster: Cluster
) -> list[Mapping[str, object]]:
    """The same as JSON values."""
    return [
        {"part": name, "simulated": ours, "measured": theirs, "spread": spread}
        for name, ours, theirs, spread in _compared(found, simulated, live, cluster)
    ]


def _compared(
    found: Measurement, simulated: Projection, live: Projection, cluster: Cluster
) -> list[tuple[str, float, float, float | None]]:
    from projector.benchmark.restored import compared

    rows: list[tuple[str, float, float, float | None]] = list(compared(found.timings, simulated, cluster))
    for key, name in (("optimizer_s", "update"), ("dp_s", "data parallelism, exposed"), ("bubble_s", "bubble")):
        rows.append((name, simulated.breakdown[key], live.breakdown[key], None))
    rows.append(("step", simulated.step_seconds, live.step_seconds, found.timings.step.spread))
    return rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
