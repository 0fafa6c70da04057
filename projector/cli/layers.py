"""Shows FLOP, bytes, time of every operator of every kind of layer, and what binds it: ``projector layers``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from projector.io.table import Line, Table
    from projector.step.work import BlockWork, Work

_Group: TypeAlias = "tuple[str, str, Sequence[Work]]"  # name, phase, operators
_TITLES = {"forward": "fwd", "recompute": "again", "input": "dgrad", "weight": "wgrad", "sharding": "shard"}


def command(options: argparse.Namespace) -> None:
    from pathlib import Path

    from projector.cli import as_json
    from projector.cli.inputs import naming_the_flag, read_case
    from projector.hardware.efficiency import of
    from projector.io import csv_file
    from projector.io.files import write_whole
    from projector.settle.workload import settle
    from projector.step.work import works

    case = read_case(options)
    with naming_the_flag(options):
        resolved = settle(case.workload, case.cluster)
        blocks = works(resolved, case.cluster, of(case.cluster.gpu), "simulate", case.settings)
    documents = [_document(each) for each in blocks]
    if options.csv:
        rows = [{"block": each["name"], **row} for each in documents for row in each["operators"]]
        write_whole(Path(options.csv), csv_file.text(rows[0], *(row.values() for row in rows)))
    subject = {"model": case.workload.model.name, "cluster": case.cluster.name}
    as_json.tell(
        options.json,
        lambda: {"schema_version": 1, "command": "layers", **subject, "blocks": documents},
        lambda: _lines("{model} on {cluster}".format(**subject), blocks, options.modules),
    )


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
    from projector.cli.tables import tabled

    def summed(key: str, unit: float = 1.0) -> Callable[[_Group], float]:
        return lambda row: sum(getattr(work, key) for work in row[2]) * unit

    def moved(row: _Group) -> float:
        return sum(work.bytes for work in row[2] if not work.collective)

    flops, size, time = summed("flops"), summed("bytes"), block.time
    return tabled(
        "operators",
        [*_grouped(block.works, modules), ("all", "", block.works)],
        title=f"{block.name}{', recomputed' if block.recomputed else ''}, {block.number} in the model",
        forward=1e3 * time.forward.seconds,
        backward=1e3 * time.backward.seconds,
        unit="module" if modules else "operator",
        brief=lambda phase: _TITLES.get(phase, phase),
        gflop=lambda row: flops(row) / 1e9 or None,
        mb=lambda row: (moved(row) or size(row)) / 1e6 or None,
        intensity=lambda row: flops(row) / moved(row) if flops(row) and moved(row) else None,
        us=summed("seconds", 1e6),
        hidden=summed("hidden", 1e6),
        host=summed("host", 1e6),
        bound=_bound_of,
    )


def _grouped(works: Sequence[Work], modules: bool) -> list[_Group]:
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
