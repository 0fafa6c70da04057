"""Times real layers of a configuration on the device at hand, beside their projection: ``projector benchmark``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from projector.cli.live import first_rank_prints
from projector.cli.record import warn
from projector.errors import InputError, Problem, raise_all

if TYPE_CHECKING:
    from projector.benchmark.measured import Measurement
    from projector.hardware.types import Cluster
    from projector.projection import Projection
    from projector.workload.workload import Workload


@first_rank_prints()
def command(options: argparse.Namespace) -> None:
    from pathlib import Path

    from projector.benchmark import artifact
    from projector.benchmark.device import open_device
    from projector.benchmark.measured import restore
    from projector.benchmark.whole_step import anchored
    from projector.cli import as_json, live
    from projector.cli.source import workload
    from projector.hardware import catalogue
    from projector.io.terminal import show
    from projector.projection import project
    from projector.workload.validate import problems

    work = workload(options.config)
    raise_all(problems(work))
    device = None if options.load_benchmark else open_device(options.device, options.threads)
    name = options.cluster  # the stated one, else that of the device on which times were or will be taken
    if device is None:
        name = name or str(artifact.read(Path(options.load_benchmark))["device"].get("gpu", ""))
    elif not name and not device.known:
        expected = "--cluster FILE of this device: python -m projector probe makes one"
        raise InputError([Problem("--cluster", "", device.title, expected)])
    else:
        name = name or device.gpu
    cluster = catalogue.cluster(name)
    measurement = live.measurement(options, work, cluster, device)
    simulated, restored = project(work, cluster), restore(measurement, work, cluster)
    counted = anchored(measurement.asked, measurement.timings, simulated, cluster)
    if options.json:
        taken_on = device.software() if device else f"as {options.load_benchmark} says"
        steps = {"simulated": simulated.step_seconds, "live": restored.step_seconds, "share": restored.measured_share}
        content = {"device": taken_on, "gpu": cluster.gpu.name, "layers": measurement.timings.source}
        rows = live.document(measurement, simulated, restored, cluster)
        as_json.write({**content, "step_seconds": steps, "step": rows, "memory": asdict(counted)})
        return
    if device:
        print(f"{device.title} as {cluster.gpu.name}; {device.software()}")
        warn(device)
    _print_step(work, cluster, measurement, simulated, restored)
    if options.memory:
        show(live.memory(counted))


def _print_step(
    work: Workload, cluster: Cluster, measurement: Measurement, simulated: Projection, restored: Projection
) -> None:
    from projector.benchmark.measured import INSTEAD
    from projector.cli import live
    from projector.io.table import Line
    from projector.io.terminal import show

    ranks, eager = measurement.asked.ranks, measurement.eager(simulated.resolved)
    rests = "on eager layers" if eager else "timed"
    notes = [*measurement.notes, *filter(None, [eager])]
    warnings = [note for note in notes if note.startswith(INSTEAD)]
    bad, plain = [Line(note, "bad") for note in warnings], [note for note in notes if note not in warnings]
    table = live.table(measurement, simulated, restored, cluster)
    show((*bad, table, *(Line(f"Note: {note}") for note in plain)))
    print(
        f"Timed in the steps of a shortened model, {ranks} rank{'s' if ranks > 1 else ''} at once, layers of "
        f"{measurement.timings.source}; artifacts keep every time with its spread (--save-benchmark)"
    )
    print(
        f"The whole run on {work.gpus} x {cluster.gpu.name}: simulated {simulated.step_seconds:.4g} s a step; with these "
        f"layers {restored.step_seconds:.4g} s ({restored.tgs:.1f} tokens/s/GPU), "
        f"{restored.measured_share:.0%} of it {rests}"
    )
