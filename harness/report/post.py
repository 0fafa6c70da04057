"""An article on the rows, made to be posted: what was measured, how good the projection is, where it is bad and why, and
how to see it again. Every figure is computed; the tables also go into LaTeX."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.contracts import frame
from harness.contracts.results import BASELINE, Evaluation
from harness.report import markdown, payload, view_rows
from harness.report.plot_post import PLOTS
from harness.report.spec import SPECS, table, tabled, values
from harness.report.table import NONE, Table, main_columns, number, percent
from harness.report.verdict import main, many, verdict
from harness.score import accuracy, causes, whatif
from harness.score.figures import Figures

_CELLS = _ROWS = _REASONS = 5
_SOURCES = 12

_WHAT = {
    "simulate": "every kernel and collective priced by an analytical model",
    "benchmark": "kernel times from measured tables where there are any",
    BASELINE: "one share of the peak for each GPU and precision",
}


def tables(evaluation: Evaluation) -> tuple[Table, ...]:
    """Returns headline and ranking of every predictor, then error by GPU and by model of the first, its rows where they
    are few, and cases that nobody measured; main columns only."""
    rows = evaluation.once
    shown = [table(rows, SPECS["headline"]), table(rows, SPECS["orders"])]
    for name in [n for n in evaluation.predictors if n != BASELINE][:1]:
        shown += [table(rows, SPECS["by_gpu"], name), table(rows, SPECS["by_model"], name)]
        shown += [view_rows.few(evaluation, name), view_rows.unmeasured(evaluation, name)]
    return tuple(main_columns(t) for t in shown if t.rows)


def render(
    evaluation: Evaluation,
    title: str,
    gate: Sequence[str],
    provenance: Mapping[str, Any],
    pictures: Mapping[str, str] = {},
) -> str:
    """Returns the article as Markdown. ``pictures``: file names by plot, of :data:`harness.report.plot_post.PLOTS`."""
    return "\n".join(_lines(evaluation, title, gate, provenance, pictures)).rstrip() + "\n"


def _lines(
    evaluation: Evaluation, title: str, gate: Sequence[str], provenance: Mapping[str, Any], pictures: Mapping[str, str]
) -> Iterator[str]:
    def picture(name: str) -> Iterator[str]:
        if name in pictures:
            yield from (f"![{PLOTS[name]}]({pictures[name]})", "")

    name = main(evaluation)
    of = Figures.of(evaluation.once, name)
    judgement = verdict(evaluation)
    yield from (f"# {markdown.escape(title)}", "")
    yield from _paragraph(judgement.headline, *judgement.lines)
    yield from picture("hero")
    if of.rows.empty:
        return
    yield from _section("What was measured", _measured(of))
    yield from _table(_sources(evaluation, name))
    yield from picture("sources")
    yield from _section("How good it is", _good(of, gate))
    yield from _paragraph(*(f"{key}: {_WHAT[key]}." for key in evaluation.predictors if key in _WHAT))
    yield from _table(main_columns(table(evaluation.once, SPECS["headline"])))
    yield from _table(main_columns(table(evaluation.once, SPECS["by_gpu"], name)))
    if of.order.groups:
        yield from _section("Does it pick the right configuration?", _order(of))
        yield from picture("what-if")
        yield from picture("orders")
    yield from _section("Where it is bad, and why", _bad(of))
    for shown in (_cells(of), _worst(of), _refused(of)):
        yield from _table(shown)
    yield from _section("See it again", _how_to_repeat(of, provenance))


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    yield from (f"## {title}", "")
    yield from lines


def _paragraph(*sentences: str) -> Iterator[str]:
    words = " ".join(sentence for sentence in sentences if sentence)
    yield from (markdown.escape(words), "") if words else ()


def _table(made: Table) -> Iterator[str]:
    if made.rows:
        yield from (f"**{markdown.escape(made.title)}**", "", *markdown.table_lines(made), "")


def _measured(of: Figures) -> Iterator[str]:
    rows = of.fit("heldout")
    publishers = values(rows, "publisher")
    kinds = {key: rows[key][rows[key] != ""].nunique() for key in ("model", "family", "gpu", "framework")}
    held = of.held
    yield from _paragraph(
        f"{many(len(rows), 'run')} of {many(publishers.nunique(), 'source')}: {many(kinds['model'], 'model')} of"
        f" {kinds['family']} families, {many(kinds['gpu'], 'kind')} of GPU, {many(kinds['framework'], 'framework')}.",
        f"{held.eligible} of them state a throughput and a whole configuration; {held.compared} of these"
        f" ({percent(held.coverage)}) are projected and compared.",
    )


def _sources(evaluation: Evaluation, name: str) -> Table:
    whole = table(evaluation.once, SPECS["post_sources"], name)
    ordered = sorted(whole.rows, key=lambda row: (-int(row[2]), row[0]))[:_SOURCES]
    rest = len(whole.rows) - len(ordered)
    note = f"The {_SOURCES} with most compared rows; {rest} others have fewer. Held out." if rest else "Held out."
    return Table(title="Where the measurements come from", columns=whole.columns, rows=tuple(ordered), note=note)


def _good(of: Figures, gate: Sequence[str]) -> Iterator[str]:
    held, inside, memory = of.held, of.intervals, of.memory
    failed = [line for line in gate if not line.startswith("PASS")]
    yield from _paragraph(
        f"Where every run counts once the mean error of tokens/s/GPU is {percent(held.mape)}; where every kind of run (model"
        f" family × GPU × framework) counts once, it is {percent(held.macro_mape)}: a few odd kinds weigh as much there as"
        " hundreds of runs of one source.",
        f"With nothing fitted it is {percent(of.uncalibrated.mape)} and {percent(of.uncalibrated.macro_mape)}."
        if of.uncalibrated.mape is not None
        else "",
        f"{percent(inside.inside, 0)} of the measurements lie inside their 90 % interval ({percent(inside.macro, 0)} by"
        f" kind); half of the intervals are narrower than {percent(inside.width, 0)}."
        if inside is not None
        else "",
        f"Peak memory is off by {percent(memory.mape)} on average over {many(memory.compared, 'run')}."
        if memory is not None
        else "",
    )
    if gate:
        yield from _paragraph(
            f"Gate: {len(gate) - len(failed)} of {len(gate)} checks hold.", *(f"{line}." for line in failed)
        )


def _order(of: Figures) -> Iterator[str]:
    gains = whatif.gains(of.fit("heldout"))
    order, seen = of.order, of.order_seen
    yield from _paragraph(
        f"{many(order.groups, 'group')} hold runs of one job that differ in a few switches. Kendall's tau-b is"
        f" {number(order.tau)} on average; over the {seen.groups} groups that differ in something that a projector sees,"
        f" {number(seen.tau)}.",
        f"Running what the projection puts first costs {percent(order.regret)} of throughput on average, at worst"
        f" {percent(order.worst_regret)} ({order.worst_group or NONE}).",
        f"Over {many(len(gains.measured), 'pair')} of runs the projected gain of the faster one is off by"
        f" {percent(gains.typical_error)} in the median."
        if len(gains.measured)
        else "",
    )


def _bad(of: Figures) -> Iterator[str]:
    known = of.compared
    if known["cell"].nunique() < 2:
        return
    cells, ablated = causes.cells(known), causes.ablations(known)
    most, alone = cells[:3], cells[cells["rows"] == 1]
    yield from _paragraph(
        f"The {len(most)} worst of {many(len(cells), 'kind')} of run add {100 * most['points'].sum():.1f} of the"
        f" {100 * cells['points'].sum():.1f} points of the mean by kind; {many(len(alone), 'kind')} rest on a single run"
        f" ({100 * alone['points'].sum():.1f} points).",
        f"Were the typical error of every kind known in advance, {percent(ablated['error'].iloc[-1])} would be left: that is"
        " how much runs of one kind differ among themselves, and no correction by kind can take it away.",
    )


def _cells(of: Figures) -> Table:
    known = of.compared
    cells = causes.cells(known)[:_CELLS] if len(known) else known
    largest = lambda c: f"{c.largest_part} {percent(c.largest_share, 0)}"  # noqa: E731
    return tabled("post_cells", frame.lines(cells), largest=largest)


def _worst(of: Figures) -> Table:
    known = of.compared
    order = known["error"].abs().sort_values(ascending=False, kind="stable").index[:_ROWS]
    rate = lambda tgs: f"{tgs:,.4g}" if tgs < 1000 else f"{tgs:,.0f}"  # noqa: E731
    told = lambda row: "leaves something out" if row.assumed else "states everything"  # noqa: E731
    return tabled("post_worst", frame.lines(known.loc[order]), commas=rate, told=told)


def _refused(of: Figures) -> Table:
    reasons = accuracy.refusals(of.fit("heldout"))
    rest = len(reasons) - _REASONS
    note = f"{many(rest, 'rarer reason')} {'is' if rest == 1 else 'are'} in the report." if rest > 0 else ""
    return tabled("post_refused", reasons[:_REASONS], note=note)


def _how_to_repeat(of: Figures, provenance: Mapping[str, Any]) -> Iterator[str]:
    command = " ".join(["python -m", *map(str, provenance.get("command", ("harness", "figures", "--out", "reports")))])
    worst = of.held.worst_id or of.rows["run_id"].iloc[0]
    yield from (
        "```sh",
        f"{command}   # all of it",
        f"{payload.again(provenance)} {shlex.quote(worst)}   # one run",
        "```",
        "",
    )
    yield from _paragraph(*_made_of(provenance))
    yield from _paragraph(
        "Held out is the calibration alone: several constants of the models were chosen with these same runs at hand, so"
        " expect more error on runs that are not among them."
    )


def _made_of(provenance: Mapping[str, Any]) -> Iterator[str]:
    versions = [f"{name} {version}" for name, version in dict(provenance.get("versions", {})).items()]
    revision = str(provenance.get("revision", ""))
    if versions:
        yield f"Made with {', '.join(versions)}."
    if revision:
        yield f"Revision {revision[:12]}{'+changes' if revision.endswith('+changes') else ''}."
    if provenance.get("inputs"):
        yield f"{many(len(provenance['inputs']), 'input file')}, with their hashes in the report."
