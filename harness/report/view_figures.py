"""The figures that the project answers for, in one report: coverage, error, ranking, memory, and speed.

Goals are the project's own. A figure is of ``simulate`` unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from harness.calibrate import intervals
from harness.contracts.results import BASELINE, Evaluation, Row
from harness.evaluation.speed import Speed
from harness.report import view, view_causes, view_intervals, view_ranking, view_transfer
from harness.report.table import NONE, Column, Report, Table, number, percent, signed, without
from harness.score import accuracy, ranking

__all__ = ["MAIN", "build"]

MAIN = "simulate"

# Runs whose every switch and every rank's peak are published: the memory goal is about them. The memory model was
# written with them at hand, so their error is in-sample and the others' stands beside it.
MEMORY_SOURCE = "SimuMax"

Rows = Sequence[Row]


def build(
    evaluation: Evaluation, speed: Speed | None = None, suites: Mapping[str, Collection[str]] | None = None
) -> Report:
    """``evaluation``: all measured runs under :data:`MAIN`, the baseline and any other predictor. ``suites``: run ids by
    suite, for the order inside groups.
    """
    rows = evaluation.unique_rows
    names = list(dict.fromkeys(r.predictor for r in rows))
    tables = [
        _summary(evaluation, rows),
        _brief(view.headline(evaluation, rows, names)),
        _brief(view.orders(evaluation, rows, names)),
        view_ranking.by_suite(evaluation, rows, MAIN, suites),
        _by(evaluation, rows, "GPU", lambda r: r.gpu, baseline=True),
        _by(evaluation, rows, "model", lambda r: r.model),
        *view_transfer.of_evaluation(evaluation, MAIN),
        view_intervals.of_predictor(rows, MAIN),
        *view_causes.of_predictor(evaluation, rows, MAIN),
        _memory(evaluation, rows),
        *([_speed(speed)] if speed else []),
    ]
    return Report(title="Figures to report", tables=tuple(t for t in tables if t.rows))


def _brief(table: Table) -> Table:
    return without(table, *(i for i, column in enumerate(table.columns) if column.minor))


def _summary(evaluation: Evaluation, rows: Rows) -> Table:
    plain, _, held = view.fits_of(evaluation, rows, MAIN)
    groups = ranking.group_rankings(accuracy.select(rows, MAIN, "heldout"), evaluation.facts)
    order = ranking.summary(groups)
    beaten = [_beats(evaluation, members) for members in accuracy.by(rows, lambda r: r.gpu).values()]
    judged = [b for b in beaten if b is not None]
    memory, others = _memory_errors(evaluation, rows)
    coverage = f"{percent(held.coverage)} ({held.compared} of {held.eligible} rows)"
    made = (
        ("coverage of runs with a whole configuration", coverage, *_goal(held.coverage, 0.90, least=True)),
        ("MAPE of tokens/s/GPU, uncalibrated", _two(plain.macro_mape, plain.mape), "", ""),
        ("the same, held out", _two(held.macro_mape, held.mape), *_goal(held.macro_mape, 0.15)),
        (
            "GPUs where it beats constant MFU, held out",
            f"{sum(judged)} of {len(judged)}",
            "all",
            _met(bool(judged) and all(judged)),
        ),
        (
            "Kendall's tau-b, mean over groups, held out",
            _ranged(number(order.tau), order.tau_range, len(groups)),
            "",
            "",
        ),
        _covered(rows),
        (
            f"MAPE of peak memory, {MEMORY_SOURCE} runs (in-sample)",
            f"{percent(_mape(memory), 2)} ({len(memory)} rows)",
            *_goal(_mape(memory), 0.05),
        ),
        ("the same, all other runs", f"{percent(_mape(others))} ({len(others)} rows)", "", ""),
    )
    columns = (
        Column("figure", numeric=False),
        Column("value"),
        Column("goal"),
        Column("met", numeric=False),
    )
    note = (
        "Of simulate. MAPE: macro, and plain in brackets; memory: plain. In-sample: the memory model was written with"
        " these runs at hand. Held out is the calibration alone: several constants of the models were chosen on these"
        f" same runs, so expect more error on runs not among them.{_heaviest(evaluation, rows)}"
    )
    return Table(title="In short", columns=columns, rows=made, note=note)


def _heaviest(evaluation: Evaluation, rows: Rows) -> str:
    """A sentence on the cell that weighs most in the held-out macro error: one odd source can carry much of it."""
    compared = accuracy.comparable(accuracy.select(rows, MAIN, "heldout"))
    cells = accuracy.by((r for r in compared if evaluation.facts[r.run_id].complete), accuracy.cell)
    means = {cell: sum(abs(r.error or 0.0) for r in members) / len(members) for cell, members in cells.items()}
    if not means:
        return ""
    worst = max(means, key=lambda cell: means[cell])
    share = 100 * means[worst] / len(means)
    named = " × ".join(part or NONE for part in worst)
    return (
        f" Of the held-out macro figure, {share:.1f} points are one of its {len(means)} cells:"
        f" {named}, {percent(means[worst])} over {len(cells[worst])} rows."
    )


def _covered(rows: Rows) -> tuple[str, str, str, str]:
    found = intervals.coverage(accuracy.select(rows, MAIN, "heldout"))
    low, high = view_intervals.GOAL
    title = "measurements inside their 90 % interval, held out"
    goal = f"{percent(low, 0)} to {percent(high, 0)}"
    if found is None:
        return (title, NONE, goal, _met(False))
    return (title, _two(found.macro, found.inside), goal, _met(low <= found.macro <= high))


def _ranged(value: str, span: ranking.Range, groups: int) -> str:
    between = "" if span is None else f", {number(span[0])} to {number(span[1])}"
    return f"{value} ({groups} groups{between})"


def _two(macro: float | None, plain: float | None) -> str:
    return f"{percent(macro)} ({percent(plain)} plain)"


def _goal(value: float | None, bound: float, *, least: bool = False) -> tuple[str, str]:
    met = value is not None and (value >= bound if least else value <= bound)
    return f"{'≥' if least else '≤'} {percent(bound, 0)}", _met(met)


def _met(met: bool) -> str:
    return "yes" if met else "no"


def _beats(evaluation: Evaluation, rows: Rows) -> bool | None:
    """Whether the held-out macro MAPE is below the baseline's on the same rows; None where one of them has none."""
    mine = view.fits_of(evaluation, rows, MAIN)[2].macro_mape
    base = _baseline(evaluation, rows, "heldout")
    return None if mine is None or base is None else mine < base


def _baseline(evaluation: Evaluation, rows: Rows, fit: str) -> float | None:
    ids = {r.run_id for r in accuracy.comparable(accuracy.select(rows, MAIN, fit))}
    mine = [r for r in accuracy.select(rows, BASELINE, fit) if r.run_id in ids]
    return accuracy.summarise(mine, evaluation.facts).macro_mape


def _by(evaluation: Evaluation, rows: Rows, title: str, key: Callable[[Row], str], *, baseline: bool = False) -> Table:
    columns = [
        Column(title, numeric=False),
        Column("compared"),
        Column("coverage"),
        Column("uncalibrated", help="macro MAPE"),
        Column("plain", minor=True),
        Column("worst"),
        Column("held out", help="macro MAPE"),
        Column("plain", minor=True),
        Column("worst"),
    ]
    if baseline:
        columns.append(Column("constant MFU", help="held out, on the same rows"))
    made = []
    idle = []
    for value, members in sorted(accuracy.by(rows, key).items(), key=lambda item: item[0].lower()):
        u, _, h = view.fits_of(evaluation, members, MAIN)
        if not h.compared:
            idle.append(f"{value or view.NOT_STATED} ({h.rows})")
            continue
        line = (value, str(h.compared), percent(h.coverage))
        errors = tuple(cell for s in (u, h) for cell in (percent(s.macro_mape), percent(s.mape), signed(s.worst)))
        made.append((*line, *errors, *((percent(_baseline(evaluation, members, "heldout")),) if baseline else ())))
    note = "MAPE macro, then plain, then the worst row: uncalibrated first, held out second."
    if idle:
        note += f" Nothing to compare (rows): {', '.join(idle)}."
    return Table(title=f"By {title}", columns=tuple(columns), rows=tuple(made), note=note)


def _memory_errors(evaluation: Evaluation, rows: Rows) -> tuple[list[float], list[float]]:
    """|memory error| of the rows that the memory goal is about, and of all others."""
    found: tuple[list[float], list[float]] = ([], [])
    for row in accuracy.select(rows, MAIN, "uncalibrated"):
        if row.memory_error is not None:
            other = MEMORY_SOURCE not in evaluation.facts[row.run_id].source
            found[other].append(abs(row.memory_error))
    return found


def _mape(errors: Sequence[float]) -> float | None:
    return sum(errors) / len(errors) if errors else None


def _memory(evaluation: Evaluation, rows: Rows) -> Table:
    """By project that the figure comes from, and by what it counts."""
    columns = (
        Column("source", numeric=False),
        Column("counts", numeric=False),
        Column("GPU", numeric=False),
        Column("compared"),
        Column("MAPE"),
        Column("bias"),
        Column("worst"),
        Column("worst row", numeric=False, minor=True),
    )
    known = [r for r in accuracy.select(rows, MAIN, "uncalibrated") if r.memory_error is not None]
    made = []
    for (source, gpu), members in accuracy.by(
        known, lambda r: (_project(evaluation.facts[r.run_id].source), r.gpu)
    ).items():
        for m in accuracy.memory(members, evaluation.facts):
            figures = (percent(m.mape), signed(m.bias), signed(m.worst), m.worst_id)
            made.append((source, m.kind, gpu, str(m.compared), *figures))
    note = "Peak memory, plain. Allocated: live tensors; reserved: the allocator's; device: all of the process."
    return Table(title="Memory", columns=columns, rows=tuple(sorted(made)), note=note)


def _project(source: str) -> str:
    """The project in front of a source's title: up to its revision or its first path."""
    head = source.split(" @")[0].split(",")[0]
    words = head.split()
    if not words:
        return NONE
    return words[0] if "/" in words[0] else " ".join(words[:3]).strip('"')


def _speed(speed: Speed) -> Table:
    heavy = ", ".join(speed.heavy) or "none"
    rows = (
        ("one warm projection of DeepSeek-V3, PP16", _ms(speed.projection), "< 20 ms", _met(speed.projection < 0.02)),
        ("the same at a new sequence length", _ms(speed.fresh_projection), "", ""),
        (
            f"{speed.suite_name} suite, simulate, from a cold start",
            f"{speed.suite:.2f} s",
            "< 5 s",
            _met(speed.suite < 5),
        ),
        ("import projector", _ms(speed.import_bare), "< 150 ms", _met(speed.import_bare < 0.15)),
        ("import projector, and project behind it", _ms(speed.import_all), "", ""),
        ("of torch, scipy, matplotlib, pandas it loads", heavy, "none", _met(not speed.heavy)),
    )
    columns = (Column("what", numeric=False), Column("time"), Column("goal"), Column("met", numeric=False))
    note = "Medians of wall times on one core of the machine that made this report; they change from run to run."
    return Table(title="Speed", columns=columns, rows=rows, note=note)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
