"""Writing a report folder: rows first, then what is made of them. File names are decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness import accuracy, predictors
from harness.gate import Check
from harness.report import files, html, markdown, provenance, view
from harness.report.table import Report
from harness.results import BASELINE, Row

__all__ = ["ROW_BY_ROW", "drawn", "report_of", "write_reports", "write_rows"]

#: How the titles of tables with one line a run end.
ROW_BY_ROW = ("every row", "every refusal", "run by run (held out)")

_PLOTS = tuple(f"{name}-{kind}.png" for name in predictors.names() for kind in ("measured", "models"))


def report_of(saved: files.Saved, checks: Sequence[Check], title: str) -> Report:
    made = view.build(saved.evaluation, checks, title)
    return replace(made, provenance=provenance.flat(saved.provenance))


def write_rows(folder: Path, saved: files.Saved) -> None:
    """``results.csv`` and ``results.json``."""
    files.write_atomic(folder / "results.csv", files.csv_text(saved.evaluation.rows))
    files.write_atomic(folder / "results.json", files.json_text(saved))


def write_reports(folder: Path, report: Report, rows: Sequence[Row], *, plots: bool) -> None:
    """``report.md`` and ``report.html``; with ``plots`` also the PNG files, embedded in the page."""
    images = drawn(rows) if plots else {}
    for name in _PLOTS:
        if name not in images:
            (folder / name).unlink(missing_ok=True)  # of earlier rows: beside these it would mislead
    for name, (_, data) in images.items():
        files.write_atomic(folder / name, data)
    files.write_atomic(
        folder / "report.md", markdown.render(report, {caption: name for name, (caption, _) in images.items()})
    )
    files.write_atomic(folder / "report.html", html.render(report, dict(images.values())))


def drawn(rows: Sequence[Row], fit: str = "heldout") -> Mapping[str, tuple[str, bytes]]:
    """File name → (caption, PNG) of every plot of every predictor but the baseline."""
    from harness.report import plot

    made: dict[str, tuple[str, bytes]] = {}
    for name in dict.fromkeys(r.predictor for r in rows if r.predictor != BASELINE):
        mine = accuracy.select(rows, name, fit)
        for stem, figure, caption in (
            ("measured", plot.measured_projected(mine, f"{name}, held out"), f"{name}: projected over measured"),
            ("models", plot.errors_by_model(mine, f"{name}, held out: error by model"), f"{name}: error by model"),
        ):
            if figure is not None:
                made[f"{name}-{stem}.png"] = (caption, plot.png(figure))
    return made
