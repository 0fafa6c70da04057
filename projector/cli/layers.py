"""Shows FLOP, bytes, time of every operator of every kind of layer, and what binds it: ``projector layers``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projector.io.table import Line, Table
    from projector.step.work import BlockWork, Work

_TITLES = {"forward": "fwd", "recompute": "again", "input": "dgrad", "weight": "wgrad", "sharding": "shard"}


def command(options: argparse.Namespace) -> None:
    from projector.cli import as_json
    from projector.cli.inputs import naming_the_flag, read_case
    from projector.hardware.efficiency import of
    from projector.io.terminal import show
    from projector.settle.workload import settle
    from projector.step.work import works

    case = read_case(options)
    with naming_the_flag(options):
        resolved = settle(case.workload, case.cluster)
        blocks = works(resolved, case.cluster, of(case.cluster.gpu), "simulate", case.settings)
    if options.csv:
        _write_csv(options.csv, blocks)
    if options.json:
        documents = [_document(each) for each in blocks]
        as_json.write({"schema_version": 1, "command": "layers", "model": case.workload.model.name,
                        "cluster": case.cluster.name, "blocks": documents})  # fmt: skip
    else:
        show(_lines(f"{case.workload.model.name} on {case.cluster.name}", blocks, options.modules))


def _write_csv(path: str, blocks: Sequence[BlockWork]) -> None:
    from pathlib import Path

    from projector.io import csv_file
    from projector.io.files import write_whole

    rows = [{"block": each["name"], **row} for each in map(_document, blocks) for row in each["operators"]]
    write_whole(Path(path), csv_file.text(rows[0], *(row.values() for row in rows)))


def _document(block: BlockWork) -> dict[str, Any]:
    from projector.io.table import values

    operator = "module operator phase collective flops bytes intensity seconds hidden host bound"
    times = "forward_seconds=time.forward.seconds backward_seconds=time.backward.seconds"
    return {
        **values(block, f"name number recomputed ridge {times}"),
        "operators": [values(work, operator) for work in block.works],
    }


def _lines(title: str, blocks: Sequence[BlockWork], modules: bool) -> Iterator[Line | Table]:
    from projector.io.table import Line

    yield Line(f"{title}: one rank, one micro-batch", "title")
    yield Line(f"Products of fewer than {blocks[0].ridge:.0f} FLOP a byte cannot reach the peak in bf16.")
    for each in blocks:
        yield _table(each, modules)


def _table(block: BlockWork, modules: bool) -> Table:
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
    groups = _grouped(block.works, modules)
    for name, phase, group in (*groups, ("all", "", block.works)):
        flops, moved = sum(work.flops for work in group), sum(work.bytes for work in group if not work.collective)
        sizes = moved or sum(work.bytes for work in group)
        rows.append(
            (
                name,
                _TITLES.get(phase, phase),
                f"{flops / 1e9:.1f}" if flops else NONE,
                f"{sizes / 1e6:.1f}" if sizes else NONE,
                f"{flops / moved:.0f}" if flops and moved else NONE,
                *(f"{1e6 * sum(getattr(work, key) for work in group):.0f}" for key in ("seconds", "hidden", "host")),
                _bound_of(group),
            )
        )
    time = block.time
    forward, backward = 1e3 * time.forward.seconds, 1e3 * time.backward.seconds
    note = f"In the step: forward {forward:.3f} ms, backward {backward:.3f} ms, with host and overlap."
    again = ", recomputed" if block.recomputed else ""
    title = f"{block.name}{again}, {block.number} in the model"
    return Table(title=title, columns=columns, rows=tuple(rows), total=True, note=note)


def _grouped(works: Sequence[Work], modules: bool) -> list[tuple[str, str, list[Work]]]:
    """Returns (name, phase, operators): one group for each operator, or with ``modules`` one for each module and phase."""
    groups: dict[tuple[str, str, int], list[Work]] = {}
    for place, work in enumerate(works):
        key = (work.module, work.phase, 0) if modules else (work.operator, work.phase, place)
        groups.setdefault(key, []).append(work)
    return [(name, phase, group) for (name, phase, _), group in groups.items()]


def _bound_of(operators: Sequence[Work]) -> str:
    """Returns what binds most of the operators' time; "–" for no operators: an embedding that is given (a vision
    transformer's patches), a layer without modules (Llama-Nemotron's)."""
    seconds: dict[str, float] = {}
    for work in operators:
        seconds[work.bound] = seconds.get(work.bound, 0.0) + work.seconds + (work.host if work.bound == "host" else 0.0)
    return max(seconds, key=lambda name: seconds[name], default="–")
