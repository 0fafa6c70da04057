"""Takes times on the device at hand, or reads kept ones: what ``benchmark`` and ``performance`` share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from projector.benchmark.launcher import first
from projector.cli.extra import Extra
from projector.errors import InputError, NoMeasurement, Problem, Unsupported

if TYPE_CHECKING:
    from projector.benchmark.device import Device
    from projector.benchmark.measured import Measurement
    from projector.benchmark.whole_step import Anchored, Compared
    from projector.cli.inputs import Case
    from projector.hardware.types import Cluster
    from projector.io.table import Line, Table
    from projector.projection import Projection
    from projector.workload.workload import Workload

_NOTHING = 1e-9  # seconds
_LEAST = 2.0**20 / 100  # bytes


@contextmanager
def first_rank_prints(timing: bool = True) -> Iterator[None]:
    """Lets only the first of the ranks that were started together print; another rank raises only a mistake of its own."""
    if not timing or first():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            yield
        except (InputError, Unsupported, NoMeasurement) as error:
            problems = [each for each in getattr(error, "problems", ()) if each.where.startswith("rank ")]
            raise (InputError(problems) if problems else SystemExit(2)) from None


def asked(options: argparse.Namespace) -> bool:
    """Returns whether live times are wanted in place of tables."""
    return bool(options.save_benchmark or options.load_benchmark)


@contextmanager
def kept(options: argparse.Namespace) -> Iterator[None]:
    """Gives ``--benchmark-gpus`` without a file a temporary one, so that its times live as long as the command."""
    if options.load_benchmark and options.benchmark_gpus:
        expected = "no --load-benchmark: it times nothing"
        raise InputError([Problem("--benchmark-gpus", "", options.benchmark_gpus, expected)])
    if not options.benchmark_gpus or options.save_benchmark:
        yield
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        options.save_benchmark = str(Path(folder) / "times.json")
        yield


def measurement(
    options: argparse.Namespace, workload: Workload, cluster: Cluster, device: Device | None = None
) -> Measurement:
    """Returns the times that ``options`` name: those of a file, or new ones (on ``device``; default: the one at hand),
    kept where a flag says so."""
    from projector.benchmark import measured
    from projector.benchmark.device import open_device

    file = options.load_benchmark or options.timed
    if file:
        return measured.load(Path(file), workload, cluster)
    path = Path(options.save_benchmark) if options.save_benchmark else None
    settings = {"layers": options.layers, "budget": options.budget, "most": options.benchmark_gpus}
    times = measured.measure(workload, cluster, device or open_device(), **settings, artifact=path)
    options.timed = options.save_benchmark  # a second question is asked of the same times
    return times


def table(times: Measurement, simulated: Projection, live: Projection, cluster: Cluster) -> Table:
    """Returns simulated, measured and, where the GPU has tables, recorded time, by kind of layer and of the step."""
    from projector.cli.tables import tabled
    from projector.io.table import NONE, without

    parts = [each for each in _compared(times, simulated, live, cluster) if each.measured > _NOTHING]
    known = any(each.recorded is not None for each in parts)
    comparison = tabled(
        "benchmark",
        parts,
        share=lambda each: None if each.recorded is None else each.tabled,
        error=lambda each: each.simulated / each.measured - 1.0,
        tables_error=lambda each: None if each.recorded is None else each.recorded / each.measured - 1.0,
        tabled=" Tabled: share of the kernels' time that tables stand behind." if known else "",
    )
    empty = (i for i in range(len(comparison.columns)) if all(row[i] == NONE for row in comparison.rows))
    return without(comparison, *empty)


def memory(peak: Anchored) -> tuple[Table | Line, ...]:
    """Returns activations as projected and as counted, and what the counted ones make of the peak of the whole run."""
    from projector.cli.tables import tabled
    from projector.io.table import Line, gib

    rows = [(key, ours, theirs) for key, (ours, theirs) in peak.parts.items()]
    error = lambda row: row[1] / row[2] - 1.0 if row[2] > _LEAST else None  # noqa: E731
    words = f"projected {gib(peak.projected)} GiB, with activations as counted {gib(peak.peak)} GiB"
    line = Line(f"Peak of the whole run: {words} of {gib(peak.usable)} GiB")
    return tabled("activations", rows, error=error), line


def counted(options: argparse.Namespace, case: Case, simulated: Projection) -> Extra:
    """Returns the memory with activations as counted while layers ran."""
    from projector.benchmark.whole_step import anchored

    times = measurement(options, case.workload, case.cluster)
    peak = anchored(times.asked, times.timings, simulated, case.cluster)
    return Extra(memory(peak), {"benchmark": asdict(peak)})


def document(
    times: Measurement, simulated: Projection, live: Projection, cluster: Cluster
) -> list[Mapping[str, object]]:
    """Returns the rows of :func:`table` as JSON values."""
    return [asdict(each) for each in _compared(times, simulated, live, cluster)]


def _compared(times: Measurement, simulated: Projection, live: Projection, cluster: Cluster) -> list[Compared]:
    from projector.benchmark.whole_step import Compared, compared

    rows = list(compared(times.asked, times.timings, simulated, cluster))
    for key, name in (("optimizer_s", "update"), ("dp_s", "data parallelism, exposed"), ("bubble_s", "bubble")):
        rows.append(Compared(name, simulated.breakdown[key], live.breakdown[key]))
    return [*rows, Compared("step", simulated.step_seconds, live.step_seconds, times.timings.step.spread)]
