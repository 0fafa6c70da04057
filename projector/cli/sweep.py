"""Projects or searches every point of a grid, keeps each, and draws the figures of a study: ``projector sweep``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.cli import as_json, runs
from projector.errors import InputError, Problem
from projector.intake.values import literal
from projector.search.page import add_pictures, pictures
from projector.workload.fields import field_of

if TYPE_CHECKING:
    from projector.io.table import Line, Table
    from projector.plan.forecast import Figures
    from projector.plan.price import Price
    from projector.search.sweep.grid import Grid

Frame = Any  # of pandas: the types of its columns are those of a file


KNOWN = {**runs.FLAGS, "+pictures": partial(add_pictures, drawn="figures of what the grid has, as PNG")}


def command(options: argparse.Namespace) -> None:
    from projector.expectation import Knowledge
    from projector.io.progress import progress
    from projector.search.sweep import grid, plots, run, store, study

    points = _grid(options)
    runs.prepare(options)
    user_runs = runs.read_own(options)
    workers = (os.cpu_count() or 1) if options.all_cores else options.workers
    results = store.opened(Path(options.out))
    try:
        before = len(results.known)
        with progress(f"{len(points):,} points", len(points)) as show_progress:
            new = run.run(points, results, workers=workers, scheduler=options.scheduler, told=show_progress)
        frame = results.frame()
    finally:
        results.close()
    frame = frame[frame["key"].isin({grid.key_of(point) for point in points.points()})] if before else frame
    best = _with_whole_runs(study.best(frame, points, Knowledge(runs=user_runs.runs)), points, options.price)
    page = _page(frame, best, new, options.out, [])
    title = f"Sweep: {Path(options.file).stem if options.file else options.grid_model}"
    files = pictures(options, title, page, lambda: plots.figures(frame, best, points.tokens))
    as_json.tell(
        options.json,
        lambda: {**_document(frame, best, new, options.out, files), **runs.as_values(user_runs)},
        lambda: (*_page(frame, best, new, options.out, files), *runs.lines(user_runs)),
    )


def _grid(options: argparse.Namespace) -> Grid:
    """Returns the grid of the file with what flags put in its place, or that of the flags alone. Raises
    :class:`InputError` for what is wrong with either."""
    from projector import face
    from projector.io.files import read_yaml
    from projector.search.sweep import grid

    given = {name: text for name in ("model", "gpu", "gpus") if (text := getattr(options, f"grid_{name}"))}
    words = {name: [literal(each.strip()) for each in text.split(",")] for name, text in given.items()}
    fields = {}
    for text in options.grid_set:
        name, _, listed = text.partition("=")
        fields[name.strip()] = [literal(each.strip()) for each in listed.split(",")]
    if not (options.file or words):
        raise InputError([Problem("FILE", "", "nothing", "a grid, or --model, --gpu and --gpus")])
    if not options.file:
        single = {name: values if len(values) > 1 else values[0] for name, values in fields.items()}
        try:
            return face.sweep(**words, **single).grid
        except InputError as error:
            flags = ("model", "gpu", "gpus")
            raise InputError(
                replace(
                    each,
                    where=f"--{each.key}" if each.key in flags else "--set",
                    key="" if each.key in flags else each.key,
                )
                for each in error.problems
            ) from None
    path = Path(options.file)
    content = read_yaml(path)
    if (words or fields) and isinstance(content, dict):
        systems = ("system", "gpu", "cluster") if "gpu" in words else ()
        content = {name: value for name, value in content.items() if name not in systems} | words
        recipe = content.get("recipe") or {}
        named = {known.key if (known := field_of(name)) else name: values for name, values in fields.items()}
        content["recipe"] = recipe | named if isinstance(recipe, dict) else recipe
    return grid.parsed(content, options.file, path)


def _with_whole_runs(best: Frame, points: Grid, price: Price | None) -> Frame:
    """Returns ``best`` with days, MWh and, where there is a price, cost of the whole run (``run.days``, …): the middle
    values of ``projector plan``. Without tokens in the grid the run takes as many as in ``projector ask``."""
    from projector.hardware import catalogue
    from projector.plan.assumptions import ASSUMPTIONS, ends
    from projector.plan.forecast import Run, figures
    from projector.plan.usual import tokens_of_a_run
    from projector.workload import zoo

    def run_figures(row: Any) -> Figures:
        gpu = catalogue.cluster(str(row["system"])).gpu
        tokens = points.tokens or tokens_of_a_run(zoo.load(str(row["model"])))
        step = row["tgs"] * row["step_seconds"] * row["gpus"]
        assumptions = {**ASSUMPTIONS, **(price.at(gpu.name) if price else {})}
        values = {name: ends(each)[1] for name, each in assumptions.items()}
        run = Run(tokens=tokens, tokens_per_step=step, gpus=row["gpus"], watts=gpu.tdp_watts)
        return figures(run, {**values, "step_seconds": row["expected.middle"]})

    whole = [run_figures(row) for _, row in best.iterrows()]
    return best.assign(**{f"run.{name}": [getattr(each, name) for each in whole] for name in ("days", "mwh", "cost")})


def _page(frame: Frame, best: Frame, new: int, out: str, figures: list[Path]) -> Iterator[Line | Table]:
    from math import log

    from projector.cli.tables import tabled
    from projector.io.table import Line
    from projector.search.sweep.study import layout
    from projector.search.words import brief

    counts = frame["status"].value_counts().to_dict()
    status_words = ", ".join(f"{number:,} {status}" for status, number in counts.items())
    yield Line(f"{len(frame):,} points ({new:,} new): {status_words}", "title")
    scales = [name for name in frame if name.startswith("scale.")]
    models = list(best["model"].unique()) if len(best) else []

    def shown(row: Any) -> dict[str, Any]:
        scaled = "".join(f" {name[6:]} x{row[name]:g}" for name in scales if row[name] != 1)
        expected = {name: row[f"expected.{name}"] for name in ("middle", "tgs")}
        run = {name: row[f"run.{name}"] for name in ("days", "mwh", "cost")}
        reach = 0.5 * log(row["expected.high"] / row["expected.low"])
        place = Path(row["system"]).stem + scaled
        return {**row, **expected, **run, "place": place, "layout": brief(layout(row)), "reach": reach}

    places = dict.fromkeys(str(each if each.suffix == ".html" else each.parent) for each in figures)
    yield tabled(
        "sweep",
        (shown(row) for _, row in best.iterrows()),
        subject=f"{models[0]}: the fastest point of each" if len(models) == 1 else "The fastest point of each model,",
        out=out,
        figures=f"; figures: {', '.join(places)}" if places else "",
        several=len(models) > 1,
        gaps="gap" in best,
        verdicts="verdict" in best,
        priced=len(best) and best["run.cost"].notna().all(),
    )


def _document(frame: Frame, best: Frame, new: int, out: str, figures: list[Path]) -> dict[str, Any]:
    import json

    return {
        "schema_version": 1,
        "command": "sweep",
        "points": len(frame),
        "new": new,
        "status": {str(name): int(number) for name, number in frame["status"].value_counts().items()},
        "best": json.loads(best.to_json(orient="records")),
        "out": out,
        "plots": [str(each) for each in figures],
    }
