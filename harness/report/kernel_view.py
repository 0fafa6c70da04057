"""Tabulates a kernel score: goals, classes, sizes, transfer between GPUs, and rows that no model covers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.kernels.crossval import donor
from harness.kernels.schema import Loaded, Row
from harness.kernels.score import (
    CLASSES,
    FITS,
    Class,
    Errors,
    Score,
    class_of,
    csv_text,
    errors,
    json_text,
    of_new_weights,
    skipped,
)
from harness.kernels.table_coverage import Share
from harness.report import markdown, spec
from harness.report.said import said
from harness.report.spec import tabled, yes_no
from harness.report.table import NONE, Report, Table, percent, ratio
from projector.io.files import write_whole
from projector.io.rows import grouped

PLOTS = "kernels"
_KINDS = ("gemm", "gemm_step", "attention", "grouped", "stream")


def write(
    folder: Path, report: Report, score: Score, loaded: Loaded, formats: Collection[str], *, curves: bool = False
) -> None:
    """Writes ``kernels.md``, ``.csv``, ``.json``; in the folder ``kernels`` ``scatter-<kind>.png``, ``errors.png``, and
    with ``curves`` the rates of every GPU."""
    images = _drawn(score, curves) if "png" in formats else {}
    for name in (*(f"scatter-{kind}.png" for kind in _KINDS), "errors.png"):
        if "png" in formats and name not in images:
            (folder / PLOTS / name).unlink(missing_ok=True)  # a plot of earlier rows would mislead
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
    """Returns by file name each picture's caption and PNG."""
    from harness.report import kernel_plot
    from harness.report.plot import png

    fit = "heldout" if np.isfinite(score.seconds["heldout"]).any() else "shipped"
    pictures: dict[str, tuple[str, bytes]] = {}
    for kind in _KINDS:
        figure = kernel_plot.scatter(score, kind, fit)
        if figure is not None:
            pictures[f"scatter-{kind}.png"] = (f"{kernel_plot.TITLES[kind]}: modelled over measured", png(figure))
    figure = kernel_plot.histogram(score, fit)
    if figure is not None:
        pictures["errors.png"] = ("how errors are spread", png(figure))
    if curves:
        from harness.report import kernel_curves

        pictures |= kernel_curves.drawn(score.rows)
    return pictures


#: The goal for a GPU whose own figures entered no constant.
TRANSFER = 0.15


def matches(goal: Mapping[str, Any], row: Row) -> bool:
    """Tells whether a row is among those that a goal of ``tables.yaml`` is set for."""
    of_op = {name: getattr(row.measured.op, name, None) for name in ("layout", "backward")}
    known = {"kind": row.kind, "gpus": row.gpu, "dtypes": row.dtype, "layouts": of_op["layout"]} | of_op
    asked = {name: goal[name] for name in known if name in goal}
    return all(known[name] in (each if isinstance(each, list) else (each,)) for name, each in asked.items())


TOO_FEW = "too few"


def build(score: Score, loaded: Loaded, title: str = "Kernel models against measured kernels") -> Report:
    """Returns headlines and all tables of any rows, with or without cross-validation."""
    large = score.large
    tables = [
        _new_weights(score),
        goals(score),
        _classes("Training shapes (> 1e10 FLOP)", score, large),
        _sizes(score),
        tabled("transfer", _left_out(score), donor=donor),
        replace(_classes("All shapes", score, np.ones(len(score.rows), dtype=np.bool_)), detail=True),
        _skipped(loaded),
    ]
    return Report.of(title, tables, _lines(score, loaded))


def _lines(score: Score, loaded: Loaded) -> list[str]:
    gpus = len({row.gpu for row in score.rows})
    lines = [f"{len(score.rows)} rows of {gpus} GPUs modelled, {len(loaded.skipped)} left out"]
    new = of_new_weights(score, range(len(score.rows)))
    lines += said("kernels_new_weights", new) if new is not None else []
    lines += _new_gpu(score)
    shipped = errors(score.error("shipped")[~score.seen & score.large])
    if shipped is not None:
        lines += said("kernels_unseen", {"rows": int((~score.seen).sum()), "of": shipped})
    lines += said("kernels_seen", {"rows": int(score.seen.sum())}) if score.seen.any() else []
    for word, meaning in (("general", "the general ones of its type"), ("prior", "priors, fitted on nothing")):
        names = sorted(
            {r.measured.family for r, c in zip(score.rows, score.constants, strict=True) if c == word} - {""}
        )
        if names:
            lines.append(f"Shipped constants of some classes of {', '.join(names)} are {meaning} (column constants)")
    return lines


def _new_gpu(score: Score) -> list[str]:
    """Returns the headline of a device that nobody measured, in which each GPU counts once."""
    by_kind = grouped((left_out["kind"], left_out["found"].mape) for left_out in _left_out(score))
    by_gpus = ", ".join(f"{kind} {percent(float(np.mean(off)))} ({len(off)})" for kind, off in by_kind.items())
    return [f"A GPU that nobody measured, from its data sheet, mean over GPUs: {by_gpus}"] if by_gpus else []


def _new_weights(score: Score) -> Table:
    """Returns the headline table: GEMMs whose weight no fit saw, by GPU and operands."""
    gemms = np.array([row.kind == "gemm" for row in score.rows], dtype=np.bool_) & score.large
    lines = []
    for (gpu, operands), where in score.members(lambda row: (row.gpu, class_of(row).operands), gemms).items():
        new, rows = of_new_weights(score, where), errors(score.error("heldout")[where])
        if new is not None and rows is not None:
            lines.append({"gpu": gpu, "operands": operands, "new": new, "rows": rows})
    return tabled("new_weights", lines)


def goals(score: Score) -> Table:
    """Returns each goal that has rows beside the error that was reached, and the best figure known before."""
    lines = []
    for goal in spec.GOALS:
        where = np.array(
            [i for i, row in enumerate(score.rows) if score.large[i] and matches(goal, row)], dtype=np.intp
        )
        if len(where):
            fits = _errors(score, where)
            held, bound = fits["heldout"], _at_most(goal["goal"], 1 if goal["goal"] < 0.05 else 0)
            met = yes_no(held.mape <= goal["goal"]) if held else ""
            rows = ratio(held.n if held else 0, len(where))
            lines.append(
                {"goal": {"before": None, "measure": "", **goal}, "rows": rows, "bound": bound, "met": met, **fits}
            )
    return tabled("goals", lines)


def _errors(score: Score, where: npt.NDArray[np.intp]) -> dict[str, Errors | None]:
    """Returns the errors of every fit over the rows ``where``."""
    return {fit: errors(score.error(fit)[where]) for fit in FITS}


def _at_most(bound: float, digits: int = 0) -> str:
    return f"≤ {percent(bound, digits)}"


def _classes(title: str, score: Score, which: npt.NDArray[np.bool_]) -> Table:
    lines = [_class(score, key, where) for key, where in score.members(class_of, which).items()]
    return tabled("kernel_classes", lines, title=title)


def _class(score: Score, key: Class, members: npt.NDArray[np.intp]) -> dict[str, object]:
    fits = _errors(score, members)
    why_not = TOO_FEW if any(score.how[i] == TOO_FEW for i in members) else NONE
    return {
        "key": key,
        "rows": len(members),
        **fits,
        "held": percent(fits["heldout"].mape) if fits["heldout"] else why_not,
        "constants": ", ".join(sorted({score.constants[i] for i in members})),
        "origin": "fitted" if score.seen[members].all() else "unseen" if not score.seen[members].any() else "both",
    }


def _sizes(score: Score) -> Table:
    """Returns held-out MAPE (shipped where nothing was held out) by FLOP, pooled over families."""
    fit = "heldout" if np.isfinite(score.seconds["heldout"]).any() else "shipped"
    wrong, lines = score.error(fit), []
    for key, where in score.members(lambda row: (row.gpu, row.kind, class_of(row).operands)).items():
        if key[1] != "stream":
            parts = [where[(score.flops[where] >= least) & (score.flops[where] < most)] for _, least, most in CLASSES]
            by_size = [(errors(wrong[members]), len(members)) for members in parts]
            lines.append((*key, *(cell for error, n in by_size for cell in (error.mape if error else None, n))))
    return tabled("sizes", lines, what="held out" if fit == "heldout" else "shipped constants")


def _left_out(score: Score) -> list[dict[str, Any]]:
    wrong = score.error("transfer")
    return [
        {"gpu": gpu, "kind": kind, "found": statistics, "goal": _at_most(TRANSFER), "met": statistics.mape <= TRANSFER}
        for (gpu, kind), where in score.members(lambda row: (row.gpu, row.kind), score.large).items()
        if (statistics := errors(wrong[where])) is not None
    ]


def _skipped(loaded: Loaded) -> Table:
    def operations(reason: str) -> str:
        ops: Sequence[str] = sorted({row.op for row in loaded.skipped if row.reason == reason})
        return ", ".join(ops[:4]) + (f" and {len(ops) - 4} more" if len(ops) > 4 else "")

    return tabled("not_modelled", [(why, rows, operations(why)) for why, rows in skipped(loaded).items()])


def nothing(loaded: Loaded) -> Report:
    """Returns the report of tables without a single row that a model covers."""
    line = f"no row can be modelled, {len(loaded.skipped)} were left out"
    return Report(title="Kernel models against measured kernels", lines=(line,), tables=(_skipped(loaded),))


def unmeasured(found: Iterable[tuple[str, str, Sequence[Share]]]) -> Table:
    """Returns the mean share of the step time of each suite's runs on a GPU that no measured kernel table covers."""
    kinds = ("gemm", "groupedgemm", "attention", "stream")
    lines = []
    for suite, gpu, of_runs in found:
        by_kind = [fmean(share.by_kind.get(kind, 0.0) for share in of_runs) for kind in kinds]
        whole = (fmean(share.measured for share in of_runs), fmean(share.unmeasured for share in of_runs))
        lines.append((suite, gpu, len(of_runs), *whole, *by_kind))
    return tabled("without_table", lines)
