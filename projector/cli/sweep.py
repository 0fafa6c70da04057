"""``projector sweep``: every point of a grid, projected or searched, kept as it is made, with the figures of a study."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.cli.options import Subparsers, add_command, add_json, whole

if TYPE_CHECKING:
    from projector.io.table import Line, Table

__all__ = ["register"]

Frame = Any  # of pandas: the types of its columns are those of a file


def register(commands: Subparsers) -> None:
    parser = add_command(
        commands,
        "sweep",
        "every point of a grid of models, systems, GPUs and recipe fields, projected or searched; goes on where it stopped",
        _run,
        examples=(
            "examples/sweep/llama3_8b.yaml --out results.jsonl --plots figures",
            "examples/sweep/llama3_8b.yaml --out results.jsonl --all-cores --json",
        ),
    )
    parser.add_argument(
        "file", metavar="FILE", help="the grid: models, systems, GPUs, recipe fields (docs: start/sweep)"
    )
    parser.add_argument(
        "--out",
        default="sweep.jsonl",
        metavar="FILE",
        help="results, kept as they are made: NAME.jsonl, or NAME.parquet (a folder; needs pyarrow); default: sweep.jsonl",
    )
    parser.add_argument("--workers", type=whole(1, 1024), default=1, metavar="N", help="processes; default: 1")
    parser.add_argument("--all-cores", action="store_true", help="as many processes as there are cores")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler (tcp://…) in place of processes here")
    parser.add_argument("--plots", metavar="DIR", help="figures of what the grid has, as PNG")
    add_json(parser)


def _run(options: argparse.Namespace) -> None:
    from projector.io.progress import progress
    from projector.io.terminal import show
    from projector.search.sweep import grid, run, store

    made = grid.read(Path(options.file))
    workers = (os.cpu_count() or 1) if options.all_cores else options.workers
    kept = store.opened(Path(options.out))
    try:
        before = len(kept.known)
        with progress(f"{len(made):,} points", len(made)) as told:
            new = run.run(made, kept, workers=workers, scheduler=options.scheduler, told=told)
        frame = kept.frame()
    finally:
        kept.close()
    frame = frame[frame["key"].isin({grid.key_of(point) for point in made.points()})] if before else frame
    if options.plots:
        from projector.io.files import folder
        from projector.search.sweep.plots import save

        figures = save(frame, made.tokens, folder(options.plots, "--plots"))
    else:
        figures = []
    if options.json:
        from projector.cli import document

        document.write(_document(frame, new, options.out, figures))
    else:
        show(_page(frame, new, options.out, figures))


def _best(frame: Frame) -> Frame:
    """The fastest point of each model, system and number of GPUs."""
    fine = frame[frame["status"] == "ok"]
    by = ["model", "system", *(name for name in frame if name.startswith("scale.")), "gpus"]
    return fine.loc[fine.groupby(by, sort=False)["tgs"].idxmax()]


def _said(row: Frame) -> str:
    """The layout of a point in a few words."""
    prefix = "best." if "best.tp" in row else "recipe."
    words = []
    for name, short in (
        ("tp", "tp"),
        ("pp", "pp"),
        ("vpp", "vpp"),
        ("cp", "cp"),
        ("ep", "ep"),
        ("micro_batch_size", "mbs "),
    ):
        value = row.get(prefix + name)
        if value is not None and value == value and (value > 1 or name == "micro_batch_size"):
            words.append(f"{short}{int(value)}")
    return " ".join(words) or "data parallel"


def _page(frame: Frame, new: int, out: str, figures: list[Path]) -> Iterator[Line | Table]:
    from projector.io.table import Column, Line, Table

    counts = frame["status"].value_counts().to_dict()
    told = ", ".join(f"{number:,} {status}" for status, number in counts.items())
    yield Line(f"{len(frame):,} points ({new:,} new): {told}", "title")
    columns = (
        Column("model", numeric=False),
        Column("system", numeric=False),
        Column("GPUs"),
        Column("tokens/s/GPU"),
        Column("step (s)", minor=1),
        Column("GB", minor=2),
        Column("layout", numeric=False, minor=3),
    )
    scales = [name for name in frame if name.startswith("scale.")]
    rows = tuple(
        (
            row["model"],
            Path(row["system"]).stem + "".join(f" {name[6:]} x{row[name]:g}" for name in scales if row[name] != 1),
            f"{row['gpus']}",
            f"{row['tgs']:.1f}",
            f"{row['step_seconds']:.3f}",
            f"{row['memory'] / 1e9:.1f}",
            _said(row),
        )
        for _, row in _best(frame).iterrows()
    )
    note = f"all points: {out}" + (f"; {len(figures)} figures: {figures[0].parent}" if figures else "")
    yield Table(
        title="The fastest point of each model, system and number of GPUs", columns=columns, rows=rows, note=note
    )


def _document(frame: Frame, new: int, out: str, figures: list[Path]) -> dict[str, Any]:
    import json

    return {
        "schema_version": 1,
        "command": "sweep",
        "points": len(frame),
        "new": new,
        "status": {str(name): int(number) for name, number in frame["status"].value_counts().items()},
        "best": json.loads(_best(frame).to_json(orient="records")),
        "out": out,
        "plots": [str(each) for each in figures],
    }
