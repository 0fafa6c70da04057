"""Tables of a kernel score: goals, classes, sizes, transfer between GPUs, and rows that no model covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from harness.kernels.goals import GOALS, TRANSFER, Goal, matches
from harness.kernels.save import skipped
from harness.kernels.schema import Row
from harness.kernels.score import CLASSES, Class, Score, class_of, errors, of_new_weights
from harness.kernels.table import Loaded
from harness.kernels.transfer import donors
from harness.kernels.unmeasured import SuiteShare
from harness.report.kernel_weights import new_weights
from harness.report.table import NONE, Column, Report, Table, percent, ratio, signed

__all__ = ["build", "goals", "nothing", "unmeasured"]

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
        new_weights(score),
        _goals_where_any(score),
        _classes("Training shapes (> 1e10 FLOP)", score, large),
        _sizes(score),
        _transfer(score),
        _classes("All shapes", score, np.ones(len(score.rows), dtype=np.bool_), detail=True),
        _skipped(loaded),
    ]
    return Report(title=title, lines=tuple(_lines(score, loaded)), tables=tuple(t for t in tables if t.rows))


def _lines(score: Score, loaded: Loaded) -> list[str]:
    gpus = len({row.gpu for row in score.rows})
    lines = [f"{len(score.rows)} rows of {gpus} GPUs modelled, {len(loaded.skipped)} left out"]
    new = of_new_weights(score, range(len(score.rows)))
    if new is not None:
        lines.append(
            f"A GEMM of a new (n, k) is off by {percent(new.mape)} (median {percent(new.median)}, p90 {percent(new.p90)}): "
            f"{new.n} weights, each counted once, none seen by the fit that judges it"
        )
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


def _goals_where_any(score: Score) -> Table:
    return goals(score, only_present=True)


def goals(score: Score, only_present: bool = False) -> Table:
    """Each goal beside what was reached, and the best figure known before."""
    columns = (
        Column("set", numeric=False),
        Column("rows"),
        Column("held out"),
        Column("median", minor=True),
        Column("goal"),
        Column("met", numeric=False),
        Column("before"),
        Column("measured as", numeric=False, minor=True),
        Column("shipped"),
        Column("roofline", minor=True),
    )
    made = []
    for goal in GOALS:
        where = np.array(
            [i for i, row in enumerate(score.rows) if score.large[i] and matches(goal, row)], dtype=np.intp
        )
        if len(where) or not only_present:
            made.append(_goal(score, goal, where))
    note = (
        "Rows above 1e10 FLOP (streams: all). Rows whose class is too small to be cross-validated are left out of the "
        "held-out mean. Before: the best law known for the same tables."
    )
    return Table(title="Goals", columns=columns, rows=tuple(made), note=note)


def _goal(score: Score, goal: Goal, where: npt.NDArray[np.intp]) -> tuple[str, ...]:
    whole = where
    held, shipped = errors(score.error("heldout")[whole]), errors(score.error("shipped")[whole])
    line = errors(score.error("roofline")[whole])
    met = "" if held is None else "yes" if held.mape <= goal.goal else "no"
    count = ratio(held.n if held else 0, len(whole))
    return (
        goal.title,
        count,
        percent(held.mape if held else None),
        percent(held.median if held else None),
        f"≤ {percent(goal.goal, 1 if goal.goal < 0.05 else 0)}",
        met,
        percent(goal.before),
        goal.measure,
        percent(shipped.mape if shipped else None),
        percent(line.mape if line else None),
    )


def _classes(title: str, score: Score, which: npt.NDArray[np.bool_], detail: bool = False) -> Table:
    columns = (
        Column("GPU", numeric=False),
        Column("kind", numeric=False),
        Column("operands", numeric=False),
        Column("family", numeric=False),
        Column("rows"),
        Column("held out"),
        Column("median"),
        Column("p90"),
        Column("bias", minor=True),
        Column("shipped"),
        Column("median", minor=True),
        Column("p90", minor=True),
        Column("bias", minor=True),
        Column("other GPUs"),
        Column("roofline"),
        Column("0.6/0.8"),
        Column("constants", numeric=False, minor=True),
        Column("source", numeric=False, minor=True),
    )
    made = [_class(score, key, where) for key, where in score.members(class_of, which).items()]
    return Table(title=title, columns=columns, rows=tuple(made), note=_HELP, detail=detail)


def _class(score: Score, key: Class, members: npt.NDArray[np.intp]) -> tuple[str, ...]:
    held, shipped = errors(score.error("heldout")[members]), errors(score.error("shipped")[members])
    if held is not None:
        first = (percent(held.mape), percent(held.median), percent(held.p90), signed(held.bias))
    else:
        few = any(score.how[i] == TOO_FEW for i in members)
        first = (TOO_FEW if few else NONE, NONE, NONE, NONE)
    second = (
        (percent(shipped.mape), percent(shipped.median), percent(shipped.p90), signed(shipped.bias))
        if shipped
        else (NONE,) * 4
    )
    rest = [
        percent(e.mape if e else None)
        for e in (errors(score.error(f)[members]) for f in ("transfer", "roofline", "fixed"))
    ]
    words = sorted({score.constants[i] for i in members})
    origin = "fitted" if score.seen[members].all() else "unseen" if not score.seen[members].any() else "both"
    named = (key.gpu, key.kind, key.operands, key.family, str(len(members)))
    return (*named, *first, *second, *rest, ", ".join(words), origin)


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
    columns = (
        Column("GPU", numeric=False),
        Column("kind", numeric=False),
        Column("rows"),
        Column("MAPE"),
        Column("median"),
        Column("p90"),
        Column("bias"),
        Column("goal"),
        Column("met", numeric=False),
        Column("learned from", numeric=False),
    )
    wrong, made = score.error("transfer"), []
    for (gpu, kind), where in score.members(lambda row: (row.gpu, row.kind), score.large).items():
        found = errors(wrong[where])
        if found is not None:
            figures = (percent(found.mape), percent(found.median), percent(found.p90), signed(found.bias))
            met = "yes" if found.mape <= TRANSFER else "no"
            made.append(
                (gpu, kind, str(found.n), *figures, f"≤ {percent(TRANSFER, 0)}", met, ", ".join(donors(gpu, kind)))
            )
    note = (
        "Training shapes. The GPU keeps its data sheet and hand-written priors; all fitted constants are those of the GPUs "
        "named last (the geometric mean where several have one)."
    )
    return Table(title="A GPU left out wholly", columns=columns, rows=tuple(made), note=note)


def _skipped(loaded: Loaded) -> Table:
    columns = (Column("why", numeric=False), Column("rows"), Column("operations", numeric=False))
    made = []
    for reason, count in skipped(loaded).items():
        ops: Sequence[str] = sorted({row.op for row in loaded.skipped if row.reason == reason})
        shown = ", ".join(ops[:4]) + (f" and {len(ops) - 4} more" if len(ops) > 4 else "")
        made.append((reason, str(count), shown))
    return Table(title="Rows that are not modelled", columns=columns, rows=tuple(made))


def nothing(loaded: Loaded) -> Report:
    """The report of tables without a single row that a model covers."""
    line = f"no row can be modelled, {len(loaded.skipped)} were left out"
    return Report(title="Kernel models against measured kernels", lines=(line,), tables=(_skipped(loaded),))


def unmeasured(found: Sequence[SuiteShare]) -> Table:
    """The share of each suite's steps that no measured kernel table stands behind."""
    kinds = ("gemm", "groupedgemm", "attention", "stream")
    columns = (
        Column("suite", numeric=False),
        Column("GPU", numeric=False),
        Column("runs"),
        Column("with a table"),
        Column("without"),
        *(Column(title) for title in ("GEMM", "grouped", "attention", "streams")),
    )
    rows = tuple(
        (
            *(each.suite, each.gpu, str(each.runs), percent(each.measured), percent(each.unmeasured)),
            *(percent(each.by_kind.get(kind, 0.0)) for kind in kinds),
        )
        for each in found
    )
    note = (
        "Mean share of the projected step in device time of kernels whose class (family, operand type, scale scheme; "
        "pass of attention; kind of stream) has, or has not, a measured table on that GPU; the last four columns split "
        "the latter. The rest of the step is communication, waiting, host and optimizer."
    )
    return Table(title="Share of each step in kernels without a measured table", columns=columns, rows=rows, note=note)
