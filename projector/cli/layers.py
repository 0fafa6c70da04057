"""``projector layers``: FLOP, bytes, intensity, time of every operator of every kind of layer, and what binds it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from projector.cli.options import add_selection
from projector.cli.parser import Parser, add_command, add_json

if TYPE_CHECKING:
    from projector.io.table import Line, Table
    from projector.step.work import BlockWork, Work

_TITLES = {"forward": "fwd", "recompute": "again", "input": "dgrad", "weight": "wgrad", "sharding": "shard"}


def register(parser: Parser) -> None:
    add_command(
        parser,
        _run,
        examples=(
            "--model llama3.1_8b --gpu h100 --gpus 64 --tp 2 --mbs 1 --gbs 512 --seq-length 8192",
            "--config examples/deepseek_v3_h100.yaml --modules",
        ),
    )
    add_selection(parser)
    group = parser.add_argument_group("what comes out")
    group.add_argument("--modules", action="store_true", help="operators of one module as one row")
    group.add_argument("--csv", metavar="FILE", help="every operator as a line: seconds, bytes and FLOP")
    add_json(group)


def _run(options: argparse.Namespace) -> None:
    from projector.cli import as_json
    from projector.cli.inputs import blamed, read_case
    from projector.hardware.efficiency import of
    from projector.io.terminal import show
    from projector.settle.workload import settle
    from projector.step.work import works

    case = read_case(options)
    with blamed(options):
        resolved = settle(case.workload, case.cluster)
        found = works(resolved, case.cluster, of(case.cluster.gpu), "simulate", case.settings)
    if options.csv:
        _write(options.csv, found)
    if options.json:
        blocks = [_block(each) for each in found]
        as_json.write({"schema_version": 1, "command": "layers", "model": case.workload.model.name,
                        "cluster": case.cluster.name, "blocks": blocks})  # fmt: skip
    else:
        show(_page(f"{case.workload.model.name} on {case.cluster.name}", found, options.modules))


def _write(path: str, found: Sequence[BlockWork]) -> None:
    from pathlib import Path

    from projector.io import csv_file
    from projector.io.files import write_whole

    rows = [{"block": each["name"], **row} for each in map(_block, found) for row in each["operators"]]
    write_whole(Path(path), csv_file.text(rows[0], *(row.values() for row in rows)))


def _block(found: BlockWork) -> dict[str, Any]:
    from projector.io.table import values

    operator = "module operator phase collective flops bytes intensity seconds hidden host bound"
    times = "forward_seconds=time.forward.seconds backward_seconds=time.backward.seconds"
    return {
        **values(found, f"name number recomputed ridge {times}"),
        "operators": [values(work, operator) for work in found.works],
    }


def _page(title: str, found: Sequence[BlockWork], modules: bool) -> Iterator[Line | Table]:
    from projector.io.table import Line

    yield Line(f"{title}: one rank, one micro-batch", "title")
    yield Line(f"Products of fewer than {found[0].ridge:.0f} FLOP a byte cannot reach the peak in bf16.")
    for each in found:
        yield _table(each, modules)


def _table(found: BlockWork, modules: bool) -> Table:
    from projector.io.table import NONE, Column, Table

    columns = (
        Column("module" if modules else "operator", numeric=False),
        Column("phase", numeric=False),
        Column("GFLOP", minor=1),
        Column("MB", minor=2),
        Column("FLOP/B"),
        Column("us"),
        Column("hidden us", minor=4),
        Column("host us", minor=3),
        Column("bound by", numeric=False),
    )
    rows = []
    groups = _grouped(found.works, modules)
    for name, phase, those in (*groups, ("all", "", found.works)):
        flops, moved = sum(one.flops for one in those), sum(one.bytes for one in those if not one.collective)
        sizes = moved or sum(one.bytes for one in those)
        rows.append(
            (
                name,
                _TITLES.get(phase, phase),
                f"{flops / 1e9:.1f}" if flops else NONE,
                f"{sizes / 1e6:.1f}" if sizes else NONE,
                f"{flops / moved:.0f}" if flops and moved else NONE,
                *(f"{1e6 * sum(getattr(one, key) for one in those):.0f}" for key in ("seconds", "hidden", "host")),
                _bounds(those),
            )
        )
    time = found.time
    forward, backward = 1e3 * time.forward.seconds, 1e3 * time.backward.seconds
    note = f"In the step: forward {forward:.3f} ms, backward {backward:.3f} ms, with host and overlap."
    again = ", recomputed" if found.recomputed else ""
    title = f"{found.name}{again}, {found.number} in the model"
    return Table(title=title, columns=columns, rows=tuple(rows), total=True, note=note)


def _grouped(works: Sequence[Work], modules: bool) -> list[tuple[str, str, list[Work]]]:
    """Operators by themselves, or those of one module and phase together."""
    found: dict[tuple[str, str, int], list[Work]] = {}
    for place, work in enumerate(works):
        key = (work.module, work.phase, 0) if modules else (work.operator, work.phase, place)
        found.setdefault(key, []).append(work)
    return [(name, phase, those) for (name, phase, _), those in found.items()]


def _bounds(those: Sequence[Work]) -> str:
    """What binds most of their time; nothing where there are none: an embedding that is given (a vision transformer's
    patches), a layer without modules (Llama-Nemotron's)."""
    time: dict[str, float] = {}
    for one in those:
        time[one.bound] = time.get(one.bound, 0.0) + one.seconds + (one.host if one.bound == "host" else 0.0)
    return max(time, key=lambda name: time[name], default="–")
