"""Measures the device at hand and writes a catalogue entry that every command takes as a cluster: ``projector probe``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from projector.cli import as_json
from projector.cli.live import first_rank_prints
from projector.cli.record import stopwatch, warn
from projector.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projector.benchmark.collectives import Swept
    from projector.benchmark.device import Device
    from projector.benchmark.entry import Entry
    from projector.benchmark.probe import Probed

_LARGEST = {"cuda": 2**28, "cpu": 2**24}  # bytes of the largest collective
_BUDGET = 1.0  # seconds for each size


@first_rank_prints()
def command(options: argparse.Namespace) -> None:
    from projector.benchmark import launcher
    from projector.benchmark.device import open_device, slug
    from projector.benchmark.entry import entry
    from projector.benchmark.entry_files import write
    from projector.benchmark.probe import probe
    from projector.benchmark.record import writable
    from projector.io.progress import progress

    device = open_device(options.device, options.threads)
    if not launcher.first():  # in collectives alone do others have a part
        if _times_collectives(device, options.collectives):
            _swept(device)
        return
    writable(Path(options.out))
    with progress("probing") as tell:
        watch = stopwatch(device, options)
        probed = probe(device, watch, options.largest, lambda what: tell(words=f"probing: {what}"))
    try:
        made = entry(probed, slug(options.name) if options.name else device.gpu)
    except ValueError as error:
        raise InputError([Problem("--device", "", device.title, f"a device that torch can time ({error})")]) from None
    # What joins the devices here; None where there is one, or nobody asks for that of CPUs
    from projector.benchmark import fabric

    line = fabric.fitted(_swept(device), made.gpu) if _times_collectives(device, options.collectives) else None
    files = write(made, Path(options.out), device.software(), line)
    with as_json.aside(options.json):
        _print_probed(probed, made)
        if line:
            print(
                f"  fabric     {line.bandwidth / 1e9:.4g} GB/s, {line.latency * 1e6:.3g} us between {line.ranks} "
                f"ranks; models with these figures {line.error:.0%} off over {line.times} collectives"
            )
        warn(device)
        print(f"written: {', '.join(str(path) for path in files)}")
        print(f"project on it: python -m projector performance --config FILE --cluster {files[-1]}")
    if options.json:
        parameters = {key: {"value": each.value, "kind": each.kind} for key, each in made.parameters.items()}
        content = {"command": "probe", "gpu": made.gpu.name, "title": made.gpu.title, "seconds": probed.seconds}
        as_json.write({**content, "parameters": parameters, "errors": made.errors, "written": [str(f) for f in files]})


def _times_collectives(device: Device, asked: bool | None) -> bool:
    from projector.benchmark import collectives

    return device.type == "cuda" and collectives.here(device) > 1 if asked is None else asked


def _swept(device: Device) -> Sequence[Swept]:
    """Times collectives between devices. Raises :class:`InputError` for several nodes: the fabric is that inside one."""
    from projector.benchmark import collectives, launcher

    job = launcher.launched()
    if job and job.nodes > 1:
        expected = "one: a probe describes a host; projector record --kinds collectives times several"
        raise InputError([Problem("--collectives", "nodes", job.nodes, expected)])
    return collectives.timed(device, _LARGEST[device.type], _BUDGET)


def _print_probed(probed: Probed, gpu_entry: Entry) -> None:
    gpu = gpu_entry.gpu
    print(f"{gpu.title} ({gpu.name}, {gpu.vendor} {gpu.arch}) probed in {probed.seconds:.0f} s")
    print("measured")
    for dtype, rate in gpu.peak.items():
        loop = gpu_entry.parameters[f"gemm.loop.{dtype}"]
        print(f"  {dtype:<5} peak {rate / 1e12:9.4g} TFLOP/s   loop {loop.value:.2f} ({loop.source})")
    print(f"  memory     {gpu.memory_bandwidth / 1e9:9.4g} GB/s, {gpu.usable_memory_bytes / 2**30:.1f} GiB usable")
    print(
        f"  launch     {probed.launch.median * 1e6:9.3g} us on the device, {probed.host_launch * 1e6:.3g} us on the host"
    )
    for key, parameter in gpu_entry.parameters.items():
        if key.startswith("stream.") and parameter.kind == "measured" and not key.endswith("_us"):
            print(f"  {key:<20} {parameter.value:.2f} of the memory rate ({parameter.source})")
    for key in ("attention.forward.loop", "attention.backward.loop"):
        if key in gpu_entry.parameters:
            print(f"  {key:<24} {gpu_entry.parameters[key].value:.2f} ({gpu_entry.parameters[key].source})")
    errors = ", ".join(f"{kind} {error:.1%}" for kind, error in gpu_entry.errors.items())
    print(f"median error of the kernel models with this entry, same shapes: {errors}")
    assumed = [f"{key} ({origin.source})" for key, origin in gpu_entry.origins.items() if origin.kind == "assumed"]
    print(f"assumed: {'; '.join(assumed)}; best product at 0.9 of the peak; the network of the cluster file")
    for reason in probed.skipped:
        print(f"skipped: {reason}")
