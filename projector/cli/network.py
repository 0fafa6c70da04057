"""Makes a cluster file from what nccl-tests, rccl-tests or Primus' preflight printed, and says how far the model was
off and which devices fall behind the rest: ``projector network``."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from projector.cli import as_json
from projector.cli.tables import tabled
from projector.errors import InputError, Problem
from projector.io.table import Line, Table, number1, values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from projector.collectives.measured_shares import Shares
    from projector.collectives.nccl_tests import CollectiveTest
    from projector.collectives.preflight import Straggler
    from projector.hardware.types import Cluster


def _hosts(text: str) -> tuple[int, int]:
    hosts, _, gpus = text.lower().partition("x")
    if not (hosts.isdecimal() and gpus.isdecimal() and int(hosts) * int(gpus) > 1):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected HOSTSxGPUS, such as 2x8")
    return int(hosts), int(gpus)


KNOWN = {"hosts": _hosts}


def command(options: argparse.Namespace) -> None:
    from projector.collectives import measured_shares, nccl_tests, preflight
    from projector.hardware import catalogue
    from projector.io.terminal import show

    tests, behind = preflight.read(options.files, options.on)
    like = options.cluster or nccl_tests.usual_cluster(tests)
    cluster = catalogue.cluster(like)
    shares = measured_shares.told(tests, cluster)
    errors = [_errors(swept, cluster, shares.cluster) for swept in tests]
    if options.out:
        _write(options, like, shares)
    if options.json:
        _document(options, like, shares, errors, behind)
        return
    show([_share_table(shares), _error_table(tests, errors, shares), *_laggards(behind)])
    if options.out:
        print(f"written: {options.out}")
        print(f"project on it: python -m projector performance --config FILE --cluster {options.out}")


Errors = dict[str, tuple[int, float | None, float | None]]


def _errors(swept: CollectiveTest, before: Cluster, after: Cluster) -> Errors:
    """Returns, by range of sizes, how many were timed and the median absolute error of the model without and with what
    was measured; None where one host thread launched on several devices: short messages wait for that thread, and the
    model's seconds are those of devices."""
    from projector.collectives.measured_shares import SHORTEST, modelled

    errors: Errors = {}
    for title, large in (("< 1 MiB", False), ("≥ 1 MiB", True)):
        timed = [each for each in swept.seconds if (each[0] >= SHORTEST) == large]
        known = timed and (large or not swept.one_thread)
        medians = [
            median(abs(modelled(swept, each, nbytes) / seconds - 1.0) for nbytes, seconds in timed) if known else None
            for each in (before, after)
        ]
        if timed:
            errors[title] = (len(timed), medians[0], medians[1])
    return errors


def _write(options: argparse.Namespace, like: str, shares: Shares) -> None:
    from projector.hardware.cluster_file import text
    from projector.io.files import write_whole, writing

    if not shares.told:
        raise InputError([Problem(str(options.files[0]), "", "; ".join(shares.notes), "a test that tells a bandwidth")])
    cluster = replace(shares.cluster, name=options.name or options.out.name.split(".")[0])
    rates = {each.name: f"{_busbw(each.swept):.4g} GB/s bus bandwidth" for each in shares.told}
    origins = [(e.name, f"{_longest_message(e.swept, shares.cluster)}: {rates[e.name]}") for e in shares.told]
    with writing(options.out, "--out", "a file to write"):
        write_whole(options.out, text(cluster, _gpu_name(like, cluster), f"cluster {like}", origins))


def _gpu_name(like: str, cluster: Cluster) -> str:
    """Returns how the new file names its GPU: a file of the user's own by its whole path."""
    from projector.hardware import user_files
    from projector.hardware.catalogue import is_path
    from projector.hardware.yaml_file import read_mapping

    if not is_path(like):
        return cluster.gpu.name
    name = str(read_mapping(Path(like))["gpu"]) if user_files.is_cluster(like) else Path(like).name
    file = user_files.beside(name, like)
    return str(Path(file).resolve()) if Path(file).is_file() else name


def _busbw(swept: CollectiveTest) -> float:
    from projector.collectives.nccl_tests import busbw

    nbytes, seconds = swept.longest
    return nbytes / seconds * busbw(swept.kind, swept.ranks) / 1e9


def _test_name(swept: CollectiveTest, cluster: Cluster) -> str:
    from projector.collectives.measured_shares import shape_of

    shape = shape_of(swept, cluster)
    return f"{swept.kind} on {shape.nodes} x {shape.most}"


def _longest_message(swept: CollectiveTest, cluster: Cluster) -> str:
    return f"{_test_name(swept, cluster)}, {swept.longest[0] / 2**20:.4g} MiB"


def _share_table(shares: Shares) -> Table:
    names = {
        "busbw": lambda swept: number1(_busbw(swept)),
        "message": partial(_longest_message, cluster=shares.cluster),
    }
    return tabled("shares", shares.told, notes="; ".join(shares.notes), **names)


def _error_table(tests: Sequence[CollectiveTest], errors: Sequence[Errors], shares: Shares) -> Table:
    pairs = zip(tests, errors, strict=True)
    rows = [(swept, title, *figures) for swept, by_size in pairs for title, figures in by_size.items()]
    threads = " Where one host thread launches on several devices (-g), short messages time the host."
    several = any(swept.one_thread for swept in tests)
    named = partial(_test_name, cluster=shares.cluster)
    return tabled("network_errors", rows, named=named, threads=threads if several else "")


def _laggards(behind: Sequence[Straggler]) -> Iterator[Table | Line]:
    """Yields what falls behind, the slowest first, and the flag that says what one slow rank costs a run."""
    slowest = sorted(behind, key=lambda each: each.share)
    if slowest:
        few = lambda ranks: ", ".join(map(str, ranks)) if len(ranks) < 9 else f"{len(ranks)}"  # noqa: E731
        yield tabled("laggards", slowest, few=few)
    for each in (each for each in slowest if len(each.ranks) == 1):
        flag = f"--slow-rank {each.ranks[0]}={1 / each.share:.2f}"
        yield Line(f"What it costs a run: projector performance --config FILE {flag}")
        return


def _document(
    options: argparse.Namespace, like: str, shares: Shares, errors: Sequence[Errors], behind: Sequence[Straggler]
) -> None:
    rows = {
        each.name: {**values(each, "share before"), "busbw_gbs": _busbw(each.swept),
                    "told_by": _longest_message(each.swept, shares.cluster), "where": each.swept.where}
        for each in shares.told
    }  # fmt: skip
    words = ("times", "before", "after")
    scores = [{size: dict(zip(words, scored, strict=True)) for size, scored in each.items()} for each in errors]
    content = {"command": "network", "like": like, "shares": rows, "notes": shares.notes, "errors": scores}
    content["behind"] = [asdict(each) for each in behind]
    as_json.write({**content, "written": str(options.out) if options.out else None})
