"""Times the kernels that workloads run on the device at hand, into tables for benchmark mode: ``projector record``."""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from projector.cli import as_json
from projector.cli.live import first_rank_prints
from projector.kernels.tables import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projector.benchmark.device import Device
    from projector.benchmark.record import Recorded
    from projector.benchmark.stopwatch import Stopwatch
    from projector.kernels.protocol import ComputeOp

COLLECTIVES = "collectives"
_BUDGET = 0.5  # seconds for each size of a collective
_ALL = (*KINDS, COLLECTIVES)
_HELP = "default: all kernels; collectives join the devices here, or as many processes as there are cores"
KNOWN = {"--kinds": {"choices": _ALL, "default": list(KINDS), "help": f"{', '.join(_ALL)}; {_HELP}"}}


def stopwatch(device: Device, options: argparse.Namespace) -> Stopwatch:
    """Returns the stopwatch that the flags ``+timing`` describe."""
    from projector.benchmark.stopwatch import Stopwatch

    flush = device.type == "cuda" if options.flush is None else options.flush
    return Stopwatch(device, options.samples, flush)


@first_rank_prints()
def command(options: argparse.Namespace) -> None:
    from projector.benchmark import launcher
    from projector.benchmark.device import open_device

    device = open_device(options.device, options.threads)
    content: dict[str, object] = {"command": "record", "device": device.title, "gpu": device.gpu}
    with as_json.aside(options.json):
        if COLLECTIVES in options.kinds:
            content[COLLECTIVES] = _collectives(device, options)
        kinds = [kind for kind in options.kinds if kind != COLLECTIVES and launcher.first()]
        content["kernels"] = _kernels(device, options, kinds) if kinds else {}
    if options.json:
        as_json.write(content)


def _kernels(device: Device, options: argparse.Namespace, kinds: Sequence[str]) -> dict[str, object]:
    from projector.benchmark import record
    from projector.io.progress import progress

    planned = record.plan(_operators(options, device), device, kinds, options.limit)
    folder = Path(options.out) if options.out else _folder(device)
    if options.dry_run:
        print(f"{device.title} ({device.gpu}, {device.place})")
        for kind, count in Counter(job.kind for job in planned.jobs).items():
            print(f"  {kind:<10} {count} kernels to time")
        _print_skipped(planned.skipped)
        return {"planned": Counter(job.kind for job in planned.jobs), "skipped": planned.skipped}
    numbers, watch = itertools.count(1), stopwatch(device, options)
    with progress("kernels", len(planned.jobs)) as tell:
        recorded = record.run(
            planned.jobs, watch, folder, longest=options.longest, told=lambda job: tell(next(numbers), words=job.kind)
        )
    recorded.skipped += planned.skipped
    _print_recorded(recorded, device)
    if recorded.interrupted:
        raise KeyboardInterrupt
    files = {kind: str(path) for kind, path in recorded.paths.items()}
    return {"timed": recorded.added, "there": recorded.kept, "files": files, "skipped": recorded.skipped}


def _collectives(device: Device, options: argparse.Namespace) -> dict[str, object]:
    """Times collectives into a table beside those of kernels, since they say of a cluster what those say of a GPU."""
    from projector.benchmark import collectives, launcher

    folder = Path(options.out) if options.out else _folder(device).parent.parent / "collectives"
    path = folder / f"{device.gpu}.csv"
    known_sizes = collectives.known(path)
    if options.dry_run:
        sizes = collectives.sizes(options.largest_message)
        planned = len(collectives.KINDS) * len(sizes)
        print(f"  {COLLECTIVES:<10} {planned} sizes among {collectives.here(device)} ranks")
        return {"planned": planned}
    swept = collectives.timed(device, options.largest_message, _BUDGET, skip=known_sizes)
    if swept and launcher.first():
        collectives.add_rows(path, swept, device.software())
    spreads = [each.time.spread for each in swept]
    spread = f", median spread {statistics.median(spreads):.0%}" if spreads else ""
    print(f"  {COLLECTIVES:<10} {len(swept)} timed, {len(known_sizes)} were there{spread}: {path}")
    return {"timed": len(swept), "there": len(known_sizes), "file": str(path)}


def _operators(options: argparse.Namespace, device: Device) -> Sequence[ComputeOp]:
    from projector.benchmark import shapes

    if options.shapes:
        return shapes.of_file(Path(options.shapes))
    if options.suite:
        from projector.cli.evidence import workloads

        runs = workloads([Path(path) for path in options.suite])
    elif options.config:
        from projector.cli.source import workload

        runs = (workload(options.config),)
    else:
        runs = shapes.usual()
    return shapes.of_workloads(runs, device.vendor, device.arch)


def _folder(device: Device) -> Path:
    """Returns a folder of the nearest ``measured/kernels`` at or above the working directory, where readers look first."""
    here = Path.cwd()
    for above in (here, *here.parents):
        if (above / "measured" / "kernels").is_dir():
            return above / "measured" / "kernels" / device.gpu
    return Path("measured") / "kernels" / device.gpu


def _print_recorded(recorded: Recorded, device: Device) -> None:
    print(f"{device.title} ({device.gpu}, {device.place}); {device.software()}")
    for kind, path in recorded.paths.items():
        known = f", {recorded.kept[kind]} were there" if recorded.kept[kind] else ""
        print(f"  {kind:<10} {recorded.added[kind]} timed{known}: {path}")
    warn(device)
    if recorded.spreads:
        print(f"  spread     median {statistics.median(recorded.spreads):.1%} (interquartile range over the median)")
    _print_skipped(recorded.skipped)
    if not device.known:
        print(f"  {device.gpu} is not in the catalogue: `projector probe` makes an entry and a cluster to project on")


def warn(device: Device) -> None:
    """Says on stderr that other processes use this CPU, where they do."""
    crowd = device.crowd()
    if crowd:
        print(crowd, file=sys.stderr)


def _print_skipped(skipped: Counter[str]) -> None:
    for reason, count in skipped.most_common():
        print(f"  skipped    {count} {reason}")
