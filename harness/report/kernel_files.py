"""Writing what ``harness kernels --out`` promises: a report, rows, statistics and plots. File names are decided here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from harness.kernels.save import csv_text, json_text
from harness.kernels.score import Score
from harness.kernels.table import Loaded
from harness.report import markdown
from harness.report.table import Report
from projector.io.files import write_whole

PLOTS = "kernels"
_KINDS = ("gemm", "gemm_step", "attention", "grouped", "stream")


def write(
    folder: Path, report: Report, score: Score, loaded: Loaded, formats: Collection[str], *, curves: bool = False
) -> None:
    """``kernels.md``, ``.csv``, ``.json``; in the folder ``kernels`` ``scatter-<kind>.png``, ``errors.png``, and with
    ``curves`` the rates of every GPU.
    """
    images = _drawn(score, curves) if "png" in formats else {}
    for name in (*(f"scatter-{kind}.png" for kind in _KINDS), "errors.png"):
        if "png" in formats and name not in images:
            (folder / PLOTS / name).unlink(missing_ok=True)  # of earlier rows: beside these it would mislead
    for name, (_, data) in images.items():
        write_whole(folder / PLOTS / name, data)
    if "md" in formats:
        # the tables first: a score is what the reader came for
        plots = [f"![{caption}]({PLOTS}/{name})" for name, (caption, _) in images.items()]
        text = markdown.render(report) + ("\n## Plots\n\n" + "\n\n".join(plots) + "\n" if plots else "")
        write_whole(folder / "kernels.md", text)
    if "csv" in formats:
        write_whole(folder / "kernels.csv", csv_text(score))
    if "json" in formats:
        write_whole(folder / "kernels.json", json_text(score, loaded))


def _drawn(score: Score, curves: bool) -> Mapping[str, tuple[str, bytes]]:
    """File name → (caption, PNG)."""
    from harness.report import kernel_plot
    from harness.report.plot import png

    fit = "heldout" if np.isfinite(score.seconds["heldout"]).any() else "shipped"
    made: dict[str, tuple[str, bytes]] = {}
    for kind in _KINDS:
        figure = kernel_plot.scatter(score, kind, fit)
        if figure is not None:
            made[f"scatter-{kind}.png"] = (f"{kernel_plot.TITLES[kind]}: modelled over measured", png(figure))
    figure = kernel_plot.histogram(score, fit)
    if figure is not None:
        made["errors.png"] = ("how errors are spread", png(figure))
    if curves:
        from harness.report import kernel_curves

        made |= kernel_curves.drawn(score.rows)
    return made
