"""Writing a report folder: rows first, then what is made of them. File names and formats are decided here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness import predictors
from harness.contracts.results import BASELINE, Evaluation, Row
from harness.report import files, html, latex, markdown, payload, post, provenance, view
from harness.report.table import Report
from harness.score import accuracy
from harness.score.gate import Check
from projector.io.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "ROW_BY_ROW", "brief", "drawn", "page", "report_of", "usual", "write_reports", "write_rows"]

#: How the titles of tables with one line a run end.
ROW_BY_ROW = ("every row", "every refusal", "run by run (held out)")

#: What :func:`write_reports` can write, with the files that come of it.
FORMATS = {
    "html": "report.html: everything, with charts, filters and every row",
    "md": "report.md: every table; post.md: the few for a post",
    "csv": "results.csv: every row",
    "png": "plots for a screen",
    "svg": "the same plots for print",
    "tex": "accuracy.tex: tables for LaTeX",
}

PNG_DOTS_PER_INCH = 150
_STEMS = ("measured", "models", "kinds", "parallelism", "memory", "steps", "orders")


def usual(*, plots: bool) -> tuple[str, ...]:
    """The formats of a run."""
    return ("html", "md", "png") if plots else ("html", "md")


def report_of(saved: files.Saved, checks: Sequence[Check], title: str) -> Report:
    made = view.build(saved.evaluation, checks, title)
    return replace(made, provenance=provenance.flat(saved.provenance))


def brief(report: Report) -> Report:
    """``report`` without the tables that have a line for every run: the page's own list and the CSV hold those."""
    return replace(report, tables=tuple(t for t in report.tables if not t.title.endswith(ROW_BY_ROW)))


def page(report: Report, evaluation: Evaluation) -> str:
    """The HTML page with charts, filters and every row (where there is one)."""
    return html.render(brief(report), data=payload.build(evaluation) if evaluation.rows else None)


def write_rows(folder: Path, saved: files.Saved) -> None:
    """``results.csv`` and ``results.json``. Plots of the rows that stood there before are removed."""
    _remove_plots(folder, ("png", "svg"))
    write_whole(folder / "results.csv", files.csv_text(saved.evaluation.rows))
    write_whole(folder / "results.json", files.json_text(saved))


def _remove_plots(folder: Path, kinds: Sequence[str]) -> None:
    """Beside new rows the plots of older ones would mislead."""
    for name in predictors.names():
        for stem in _STEMS:
            for kind in kinds:
                (folder / f"{name}-{stem}.{kind}").unlink(missing_ok=True)


def write_reports(folder: Path, report: Report, saved: files.Saved, formats: Collection[str]) -> None:
    """The files of the formats asked for (keys of :data:`FORMATS`). Other plots of a kind that is written are removed."""
    evaluation = saved.evaluation
    whole = replace(report, provenance=provenance.whole(saved.provenance))
    pictures = _pictures(folder, evaluation, [kind for kind in ("png", "svg") if kind in formats])
    if "md" in formats:
        shown = pictures.get("png") or pictures.get("svg") or {}
        write_whole(folder / "report.md", markdown.render(brief(whole), shown))
        write_whole(folder / "post.md", post.render(evaluation, report.title, report.gate, saved.provenance))
    if "html" in formats:
        write_whole(folder / "report.html", page(whole, evaluation))
    if "csv" in formats:
        write_whole(folder / "results.csv", files.csv_text(evaluation.rows))
    if "tex" in formats:
        write_whole(folder / "accuracy.tex", latex.render(post.tables(evaluation)))


def _pictures(folder: Path, evaluation: Evaluation, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
    """Writes every plot in every kind; by kind, caption → file name."""
    _remove_plots(folder, kinds)
    made: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
    if not kinds:
        return made
    from harness.report import plot

    writers: dict[str, Callable[[Figure], bytes]] = {"png": lambda f: plot.png(f, PNG_DOTS_PER_INCH), "svg": plot.svg}
    for stem, caption, figure in _figures(evaluation):
        for kind in kinds:
            write_whole(folder / f"{stem}.{kind}", writers[kind](figure))
            made[kind][caption] = f"{stem}.{kind}"
    return made


def _figures(evaluation: Evaluation) -> list[tuple[str, str, Figure]]:
    """File stem, caption and figure of every plot: two of each predictor, all of the first; none of the baseline."""
    rows = evaluation.unique_rows
    names = [n for n in dict.fromkeys(r.predictor for r in rows) if n != BASELINE]
    made = [plot for name in names for plot in _main_plots(rows, name)]
    made[2:2] = _detail_plots(evaluation, rows, names[0]) if names else []
    return [(stem, caption, figure) for stem, caption, figure in made if figure is not None]


Drawn = list[tuple[str, str, "Figure | None"]]


def _main_plots(rows: Sequence[Row], name: str, fit: str = "heldout") -> Drawn:
    from harness.report import plot

    mine = accuracy.select(rows, name, fit)
    measured = plot.measured_projected(mine, f"{name}, held out")
    models = plot.errors_by_model(mine, f"{name}, held out: error by model")
    return [
        (f"{name}-measured", f"{name}: projected over measured", measured),
        (f"{name}-models", f"{name}: error by model", models),
    ]


def _detail_plots(evaluation: Evaluation, rows: Sequence[Row], name: str) -> Drawn:
    from harness.report import plot_details as details

    facts, title = evaluation.facts, f"{name}, held out"
    held, raw = accuracy.select(rows, name, "heldout"), accuracy.select(rows, name, "uncalibrated")
    drawn = (
        ("kinds", "error by GPU and framework", details.errors_by_kind(held, f"{title}: error by GPU and framework")),
        ("parallelism", "error by parallelism", details.errors_by_parallelism(held, facts, f"{title}: parallelism")),
        ("memory", "projected over measured memory", details.memory(raw, facts, f"{name}: memory")),
        ("steps", "parts of the step by model", details.steps(raw, f"{name}: where the projected step goes")),
        ("orders", "order in the largest groups", details.orders(held, facts, title)),
    )
    return [(f"{name}-{stem}", f"{name}: {caption}", figure) for stem, caption, figure in drawn]


def drawn(rows: Sequence[Row]) -> Mapping[str, tuple[str, bytes]]:
    """File name → (caption, PNG) of the two plots that are checked in, for every predictor but the baseline."""
    from harness.report import plot

    names = [n for n in dict.fromkeys(r.predictor for r in rows) if n != BASELINE]
    made = [figure for name in names for figure in _main_plots(rows, name)]
    return {f"{stem}.png": (caption, plot.png(figure)) for stem, caption, figure in made if figure is not None}
