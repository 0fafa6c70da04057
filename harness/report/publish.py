"""Writes a report folder: rows first, then the reports on them. File names and formats are decided here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import predictors
from harness.contracts import frame
from harness.contracts.results import BASELINE, Evaluation
from harness.report import files, html, latex, markdown, payload, pictures, post, provenance, view
from harness.report.pictures import Picture
from harness.report.plot import THEMES
from harness.report.plot_post import PLOTS
from harness.report.table import Report
from harness.report.verdict import main, verdict
from harness.score.gate import Check
from projector.errors import Problem, unknown
from projector.io.files import write_whole

#: The ends of titles of tables with one line a run.
ROW_BY_ROW = ("every row", "every refusal", "run by run (held out)")

#: The formats that :func:`write_reports` can write, with their files.
FORMATS = {
    "html": "report.html: everything, with charts, filters and every row",
    "md": "report.md: every table; post.md: an article",
    "post": "post.md with its plots, light and dark, as PNG and SVG",
    "csv": "results.csv: every row",
    "png": "plots for a screen",
    "svg": "the same plots for print",
    "tex": "accuracy.tex: tables for LaTeX",
}

# The ends of names of a predictor's plots. The other plots are of the post, which has one predictor.
_STEMS = ("measured", "models", "kinds", "parallelism", "memory", "steps")


def format_problems(words: Collection[str]) -> list[Problem]:
    """Returns a problem for each word that names none of :data:`FORMATS`."""
    return unknown("--format", words, tuple(FORMATS))


def usual(*, plots: bool) -> tuple[str, ...]:
    """Returns the formats of a run for which none is asked."""
    return ("html", "md", "png") if plots else ("html", "md")


def report_of(saved: files.Saved, checks: Sequence[Check], title: str) -> Report:
    report = view.build(saved.evaluation, checks, title)
    return replace(report, provenance=provenance.flat(saved.provenance))


def brief(report: Report) -> Report:
    """Returns ``report`` without the tables that have a line for every run: the page's own list and the CSV hold those."""
    return replace(report, tables=tuple(t for t in report.tables if not t.title.endswith(ROW_BY_ROW)))


def page(report: Report, saved: files.Saved) -> str:
    """Returns the HTML page with charts, filters and every row (where there is one)."""
    evaluation = saved.evaluation
    if not evaluation.rows:
        return html.render(report)
    return html.render(brief(report), payload.build(evaluation, saved.provenance), verdict(evaluation))


def write_rows(folder: Path, saved: files.Saved) -> None:
    """Writes ``results.csv`` and ``results.json``, and removes plots of the rows that stood there before."""
    _remove_plots(folder, ("png", "svg"))
    write_whole(folder / "results.csv", files.csv_text(saved.evaluation.every))
    write_whole(folder / "results.json", files.json_text(saved))


def _remove_plots(folder: Path, kinds: Sequence[str]) -> None:
    """Removes plots of older rows, which would mislead beside new ones."""
    stems = [f"{name}-{stem}" for name in predictors.names() for stem in _STEMS]
    stems += [f"post-{name}{end}" for name in PLOTS for end in THEMES]
    for stem in stems:
        for kind in kinds:
            (folder / f"{stem}.{kind}").unlink(missing_ok=True)


def write_reports(folder: Path, report: Report, saved: files.Saved, formats: Collection[str], jobs: int = 1) -> None:
    """Writes the files of the formats asked for (keys of :data:`FORMATS`), and removes other plots of a kind that is
    written. ``jobs``: processes that draw."""
    evaluation = saved.evaluation
    whole = replace(report, provenance=provenance.whole(saved.provenance))
    plots = _pictures(folder, evaluation, formats, jobs)
    if "md" in formats:
        shown = {p.caption: p.file(p.kinds[0]) for p in plots if not p.dark}
        write_whole(folder / "report.md", markdown.render(brief(whole), shown))
    if "md" in formats or "post" in formats:
        write_whole(folder / "post.md", article(report, saved, plots))
    if "html" in formats:
        write_whole(folder / "report.html", page(whole, saved))
    if "csv" in formats:
        write_whole(folder / "results.csv", files.csv_text(evaluation.every))
    if "tex" in formats:
        write_whole(folder / "accuracy.tex", latex.render(post.tables(evaluation)))


def article(report: Report, saved: files.Saved, plots: Iterable[Picture]) -> str:
    """Returns the text of ``post.md`` with the light pictures."""
    known = {p.stem: p.file(p.kinds[0]) for p in plots if not p.dark}
    known.setdefault("post-hero", known.get(f"{main(saved.evaluation)}-measured", ""))  # which is the same picture
    shown = {name: known[f"post-{name}"] for name in PLOTS if known.get(f"post-{name}")}
    return post.render(saved.evaluation, report.title, report.gate, saved.provenance, shown)


def _pictures(folder: Path, evaluation: Evaluation, formats: Collection[str], jobs: int) -> list[Picture]:
    """Writes every plot in every kind asked for (two of each predictor, all of the first, none of the baseline), and
    returns the plots that have something to show."""
    kinds = tuple(kind for kind in ("png", "svg") if kind in formats)
    _remove_plots(folder, ("png", "svg") if "post" in formats else kinds)
    names = [n for n in evaluation.predictors if n != BASELINE] if kinds else []
    plots = [p for name in names for p in main_plots(evaluation, name)]
    plots += _detail_plots(evaluation, names[0]) if names else []
    asked = [replace(p, kinds=kinds) for p in plots]
    if "post" in formats:
        asked += [replace(p, kinds=("png", "svg")) for p in post_plots(evaluation)]
    elif kinds:
        asked += [replace(p, kinds=kinds) for p in post_plots(evaluation) if not p.dark]
    return pictures.written(folder, asked, evaluation.once, jobs)


def main_plots(evaluation: Evaluation, name: str) -> list[Picture]:
    """Returns the two plots that are drawn of every predictor."""
    from harness.report import plot_post

    held = frame.part(evaluation.once, predictor=name, fit="heldout")
    return [
        Picture(f"{name}-measured", f"{name}: error by GPU", partial(plot_post.hero, held)),
        Picture(f"{name}-models", f"{name}: error by model", partial(plot_post.models, held)),
    ]


def _detail_plots(evaluation: Evaluation, name: str) -> list[Picture]:
    from harness.report import plot_details as details

    held, raw = (frame.part(evaluation.once, predictor=name, fit=fit) for fit in ("heldout", "uncalibrated"))
    apart = partial(details.errors_by_parallelism, held, f"{name}, held out: parallelism")
    memory, steps = (
        partial(draw, raw, f"{name}: {title}")
        for draw, title in ((details.memory, "memory"), (details.steps, "where the projected step goes"))
    )
    return [
        Picture(f"{name}-parallelism", f"{name}: error by parallelism and framework", apart),
        Picture(f"{name}-memory", f"{name}: projected over measured memory", memory),
        Picture(f"{name}-steps", f"{name}: parts of the step by model", steps),
    ]


def post_plots(evaluation: Evaluation) -> list[Picture]:
    """Returns the plots of the post, light and dark."""
    from harness.report.plot_details import orders
    from harness.report.plot_post import hero, sources, what_if

    held = frame.part(evaluation.once, predictor=main(evaluation), fit="heldout")
    draw = {"hero": hero, "sources": sources, "what-if": what_if, "orders": orders}
    return [
        Picture(f"post-{name}{end}", f"{PLOTS[name]}{' (dark)' if end else ''}", partial(draw[name], held, theme))
        for end, theme in THEMES.items()
        for name in PLOTS
    ]
