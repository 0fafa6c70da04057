"""Tables of a kernel score: goals, classes, sizes, transfer between GPUs, and rows that no model covers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.kernels.crossval import donor
from harness.kernels.schema import Row
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
from harness.kernels.table import Loaded
from harness.kernels.unmeasured import SuiteShare
from harness.report import markdown
from harness.report.spec import yes_no
from harness.report.table import NONE, Cell, Column, Report, Table, figure, listed, percent, ratio, signed, text
from projector.dataclass import dataclass
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


@dataclass(frozen=True)
class Goal:
    """Rows: of these kinds, GPUs and types (each: all where empty)."""

    title: str
    goal: float
    kind: str
    gpus: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    before: float | None = None
    measure: str = ""
    layouts: tuple[str, ...] = ()
    backward: bool | None = None


#: Of a GPU whose own figures entered no constant.
TRANSFER = 0.15

GOALS = (
    Goal("GEMM A100", 0.045, "gemm", ("a100_pcie_80gb", "a100_sxm_80gb"), (), 0.051, "cv"),
    Goal("GEMM H100", 0.05, "gemm", ("h100_sxm", "h100_pcie"), (), 0.052, "in-sample"),
    Goal("GEMM B200", 0.09, "gemm", ("b200",), (), 0.108, "cv"),
    Goal("GEMM MI300X fp8", 0.05, "gemm", ("mi300x",), ("fp8",), 0.07, "cv"),
    Goal("GEMM MI308X", 0.06, "gemm", ("mi308x",), (), 0.098, "cv"),
    Goal("GEMM MI355X bf16", 0.07, "gemm", ("mi355x",), ("bf16", "fp16"), 0.181, "cv"),
    Goal("GEMM MI355X fp8", 0.07, "gemm", ("mi355x",), ("fp8",), 0.128, "cv"),
    Goal("GEMM MI355X MXFP4", 0.08, "gemm", ("mi355x",), ("mxfp4",), 0.163, "cv"),
    Goal("attention MI355X forward", 0.05, "attention", ("mi355x",), (), 0.04, "in-sample", backward=False),
    Goal("attention MI355X backward", 0.05, "attention", ("mi355x",), (), 0.034, "in-sample", backward=True),
    Goal("attention MI300X forward", 0.05, "attention", ("mi300x",), (), 0.044, "in-sample", backward=False),
    Goal("attention MI300X backward", 0.05, "attention", ("mi300x",), (), 0.068, "in-sample", backward=True),
    Goal("attention H100 forward", 0.05, "attention", ("h100_sxm",), (), 0.047, "in-sample", backward=False),
    Goal("attention H100 backward", 0.05, "attention", ("h100_sxm",), (), None, "", backward=True),
    Goal("attention B200 forward", 0.05, "attention", ("b200",), (), 0.051, "in-sample", backward=False),
    Goal("attention B200 backward", 0.05, "attention", ("b200",), (), 0.034, "in-sample", backward=True),
    Goal("attention GB200", 0.05, "attention", ("gb200",)),
    Goal("attention GB300", 0.05, "attention", ("gb300",)),
    Goal("attention H200", 0.05, "attention", ("h200",)),
    Goal("attention A100", 0.05, "attention", ("a100_pcie_80gb",), (), 0.089, "in-sample"),
    Goal("grouped forward", 0.09, "grouped", (), (), 0.109, "in-sample", ("TN",)),
    Goal("grouped dgrad", 0.09, "grouped", (), (), 0.091, "in-sample", ("NN",)),
    Goal("grouped wgrad", 0.09, "grouped", (), (), 0.19, "in-sample", ("NT",)),
    Goal("streams", 0.10, "stream"),
)


def matches(goal: Goal, row: Row) -> bool:
    op = row.measured.op
    return (
        row.kind == goal.kind
        and (not goal.gpus or row.gpu in goal.gpus)
        and (not goal.dtypes or row.dtype in goal.dtypes)
        and (not goal.layouts or getattr(op, "layout", "") in goal.layouts)
        and (goal.backward is None or getattr(op, "backward", None) == goal.backward)
    )


TOO_FEW = "too few"
_HELP = (
    "Held out: refitted without the whole weight, (n, k) or (k, n), of the row (attention: lengths, heads and "
    "width; grouped: weight and experts). "
    "Shipped: the constants in the package, which saw the row where its source was fitted. Other GPUs: constants that no "
    "figure of this GPU entered. Roofline: three constants per GPU and type, cross-validated alike. 0.6/0.8: that share of "
    "peak and bandwidth for everything."
)


def build(score: Score, loaded: Loaded, title: str = "Kernel models against measured kernels") -> Report:
    """Headlines and all tables. Works on any rows, with or without cross-validation."""
    large = score.large
    tables = [
        _new_weights(score),
        goals(score),
        _classes("Training shapes (> 1e10 FLOP)", score, large),
        _sizes(score),
        _transfer(score),
        _classes("All shapes", score, np.ones(len(score.rows), dtype=np.bool_), detail=True),
        _skipped(loaded),
    ]
    return Report.of(title, tables, _lines(score, loaded))


def _lines(score: Score, loaded: Loaded) -> list[str]:
    gpus = len({row.gpu for row in score.rows})
    lines = [f"{len(score.rows)} rows of {gpus} GPUs modelled, {len(loaded.skipped)} left out"]
    new = of_new_weights(score, range(len(score.rows)))
    if new is not None:
        lines.append(
            f"A GEMM of a new (n, k) is off by {percent(new.mape)} (median {percent(new.median)}, p90 {percent(new.p90)}): "
            f"{new.n} weights, each counted once, none seen by the fit that judges it"
        )
    lines += _new_gpu(score)
    unseen = ~score.seen
    if unseen.any():
        found = errors(score.error("shipped")[unseen & score.large])
        if found is not None:
            lines.append(
                f"{int(unseen.sum())} rows come from sources that no shipped constant was fitted on, so the shipped column "
                f"is held out for them: MAPE {percent(found.mape)}, median {percent(found.median)} "
                f"over {found.n} training shapes"
            )
    if score.seen.any():
        lines.append(
            f"{int(score.seen.sum())} rows come from sources that the shipped constants were fitted on: their shipped "
            "column is in-sample, read the held-out one"
        )
    for word, meaning in (("general", "the general ones of its type"), ("prior", "priors, fitted on nothing")):
        few = sorted({r.measured.family for r, c in zip(score.rows, score.constants, strict=True) if c == word} - {""})
        if few:
            lines.append(f"Shipped constants of some classes of {', '.join(few)} are {meaning} (column constants)")
    return lines


def _new_gpu(score: Score) -> list[str]:
    """The headline of a device that nobody measured: each GPU counts once."""
    by_kind: dict[str, list[float]] = {}
    for each in _left_out(score):
        by_kind.setdefault(each["kind"], []).append(each["found"].mape)
    said = ", ".join(f"{kind} {percent(float(np.mean(off)))} ({len(off)})" for kind, off in by_kind.items())
    return [f"A GPU that nobody measured, from its data sheet, mean over GPUs: {said}"] if said else []


def _new_weights(score: Score) -> Table:
    """The headline: GEMMs whose weight no fit saw, by GPU and operands."""
    made = (
        text("GPU", "gpu"),
        text("operands", "operands"),
        figure("weights", "new.n"),
        figure("mean", "new.mape", percent),
        *(figure(word, f"new.{word}", percent) for word in ("median", "p90")),
        figure("bias", "new.bias", signed),
        figure("rows", "rows.n"),
        figure("by rows", "rows.mape", percent),
    )
    key: Callable[[Row], tuple[str, str]] = lambda row: (row.gpu, class_of(row).operands)  # noqa: E731
    gemms = np.array([row.kind == "gemm" for row in score.rows], dtype=np.bool_) & score.large
    found = []
    for (gpu, operands), where in score.members(key, gemms).items():
        new, rows = of_new_weights(score, where), errors(score.error("heldout")[where])
        if new is not None and rows is not None:
            found.append({"gpu": gpu, "operands": operands, "new": new, "rows": rows})
    note = (
        "Training shapes, refitted without every product of the weight, (n, k) or (k, n), whatever m and layout. Mean, "
        "median and p90 are over weights, each with the mean absolute error of its rows; the last column is over rows."
    )
    return listed("GEMM of a new (n, k)", found, made, note)


def goals(score: Score) -> Table:
    """Each goal that has rows beside what was reached, and the best figure known before."""
    made = (
        text("set", "goal.title"),
        figure("rows", lambda g: ratio(g["heldout"].n if g["heldout"] else 0, g["rows"])),
        figure("held out", "heldout.mape", percent),
        figure("median", "heldout.median", percent, minor=1),
        figure("goal", lambda g: _most(g["goal"].goal, 1 if g["goal"].goal < 0.05 else 0)),
        text("met", lambda g: yes_no(g["heldout"].mape <= g["goal"].goal) if g["heldout"] else ""),
        figure("before", "goal.before", percent),
        text("measured as", "goal.measure", minor=1),
        figure("shipped", "shipped.mape", percent),
        figure("roofline", "roofline.mape", percent, minor=1),
    )
    found = []
    for goal in GOALS:
        where = np.array(
            [i for i, row in enumerate(score.rows) if score.large[i] and matches(goal, row)], dtype=np.intp
        )
        if len(where):
            found.append({"goal": goal, "rows": len(where), **_errors(score, where)})
    note = (
        "Rows above 1e10 FLOP (streams: all). Rows whose class is too small to be cross-validated are left out of the "
        "held-out mean. Before: the best law known for the same tables."
    )
    return listed("Goals", found, made, note)


def _errors(score: Score, where: npt.NDArray[np.intp]) -> dict[str, Errors | None]:
    """Of every fit, over some rows."""
    return {fit: errors(score.error(fit)[where]) for fit in FITS}


def _most(bound: float, digits: int = 0) -> str:
    return f"≤ {percent(bound, digits)}"


def _classes(title: str, score: Score, which: npt.NDArray[np.bool_], detail: bool = False) -> Table:
    made = (
        *(text(word, f"key.{name}") for word, name in (("GPU", "gpu"), ("kind", "kind"))),
        *(text(word, f"key.{word}") for word in ("operands", "family")),
        figure("rows", "rows"),
        figure("held out", lambda c: percent(c["heldout"].mape) if c["heldout"] else c["why not"]),
        *_spread("heldout"),
        figure("shipped", "shipped.mape", percent),
        *_spread("shipped", minor=1),
        figure("other GPUs", "transfer.mape", percent),
        figure("roofline", "roofline.mape", percent),
        figure("0.6/0.8", "fixed.mape", percent),
        text("constants", "constants", minor=1),
        text("source", "origin", minor=1),
    )
    found = [_class(score, key, where) for key, where in score.members(class_of, which).items()]
    return listed(title, found, made, _HELP, detail=detail)


def _spread(fit: str, *, minor: int = 0) -> tuple[Cell, ...]:
    return (
        figure("median", f"{fit}.median", percent, minor=minor),
        figure("p90", f"{fit}.p90", percent, minor=minor),
        figure("bias", f"{fit}.bias", signed, minor=1),
    )


def _class(score: Score, key: Class, members: npt.NDArray[np.intp]) -> dict[str, object]:
    return {
        "key": key,
        "rows": len(members),
        **_errors(score, members),
        "why not": TOO_FEW if any(score.how[i] == TOO_FEW for i in members) else NONE,
        "constants": ", ".join(sorted({score.constants[i] for i in members})),
        "origin": "fitted" if score.seen[members].all() else "unseen" if not score.seen[members].any() else "both",
    }


def _sizes(score: Score) -> Table:
    """Held-out MAPE (shipped where nothing was held out) by FLOP, pooled over families."""
    fit = "heldout" if np.isfinite(score.seconds["heldout"]).any() else "shipped"
    wrong = score.error(fit)
    columns = (
        *(Column(name, numeric=False) for name in ("GPU", "kind", "operands")),
        *(Column(part) for name, _, _ in CLASSES for part in (f"{name}", "rows")),
    )
    key: Callable[[Row], tuple[str, str, str]] = lambda row: (row.gpu, row.kind, class_of(row).operands)  # noqa: E731
    made = []
    for named, where in score.members(key).items():
        if named[1] == "stream":
            continue
        cells: list[str] = []
        for _, least, most in CLASSES:
            some = where[(score.flops[where] >= least) & (score.flops[where] < most)]
            found = errors(wrong[some])
            cells += [percent(found.mape if found else None), str(len(some)) if len(some) else ""]
        made.append((*named, *cells))
    title = f"MAPE by size in FLOP ({'held out' if fit == 'heldout' else 'shipped constants'})"
    return Table(title=title, columns=columns, rows=tuple(made))


def _transfer(score: Score) -> Table:
    made = (
        text("GPU", "gpu"),
        text("kind", "kind"),
        figure("rows", "found.n"),
        figure("MAPE", "found.mape", percent),
        figure("median", "found.median", percent),
        figure("p90", "found.p90", percent),
        figure("bias", "found.bias", signed),
        figure("goal", lambda _: _most(TRANSFER)),
        text("met", lambda each: yes_no(each["found"].mape <= TRANSFER)),
        text("learned from", lambda each: donor(each["gpu"])),
    )
    note = (
        "Training shapes. The GPU keeps its data sheet alone: no file of its own, and none of its architecture where that "
        "was fitted on it. Constants are those of the architecture named last, its clocks moved by power: what a user "
        "gets for a device that nobody measured."
    )
    return listed("A GPU left out wholly", _left_out(score), made, note)


def _left_out(score: Score) -> list[dict[str, Any]]:
    wrong = score.error("transfer")
    return [
        {"gpu": gpu, "kind": kind, "found": found}
        for (gpu, kind), where in score.members(lambda row: (row.gpu, row.kind), score.large).items()
        if (found := errors(wrong[where])) is not None
    ]


def _skipped(loaded: Loaded) -> Table:
    def operations(item: tuple[str, int]) -> str:
        ops: Sequence[str] = sorted({row.op for row in loaded.skipped if row.reason == item[0]})
        return ", ".join(ops[:4]) + (f" and {len(ops) - 4} more" if len(ops) > 4 else "")

    made = (text("why", lambda item: item[0]), figure("rows", lambda item: item[1]), text("operations", operations))
    return listed("Rows that are not modelled", skipped(loaded).items(), made)


def nothing(loaded: Loaded) -> Report:
    """The report of tables without a single row that a model covers."""
    line = f"no row can be modelled, {len(loaded.skipped)} were left out"
    return Report(title="Kernel models against measured kernels", lines=(line,), tables=(_skipped(loaded),))


def unmeasured(found: Sequence[SuiteShare]) -> Table:
    """The share of each suite's steps that no measured kernel table stands behind."""
    kinds = {"GEMM": "gemm", "grouped": "groupedgemm", "attention": "attention", "streams": "stream"}
    made = (
        text("suite", "suite"),
        text("GPU", "gpu"),
        figure("runs", "runs"),
        figure("with a table", "measured", percent),
        figure("without", "unmeasured", percent),
        *(figure(title, partial(_of_kind, kind), percent) for title, kind in kinds.items()),
    )
    note = (
        "Mean share of the projected step in device time of kernels whose class (family, operand type, scale scheme; "
        "pass of attention; kind of stream) has, or has not, a measured table on that GPU; the last four columns split "
        "the latter. The rest of the step is communication, waiting, host and optimizer."
    )
    return listed("Share of each step in kernels without a measured table", found, made, note)


def _of_kind(kind: str, share: SuiteShare) -> float:
    return share.by_kind.get(kind, 0.0)
