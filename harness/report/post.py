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
from harness.report.said import said
from harness.report.spec import SPECS, table, tabled, values
from harness.report.table import NONE, Table, main_columns, percent
from harness.report.verdict import main, verdict
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
    kinds = {key: rows[key][rows[key] != ""].nunique() for key in ("model", "family", "gpu", "framework")}
    item = {"of": of, "runs": len(rows), "sources": values(rows, "publisher").nunique(), "kinds": kinds}
    yield from _paragraph(*said("post_measured", item))


def _sources(evaluation: Evaluation, name: str) -> Table:
    whole = table(evaluation.once, SPECS["post_sources"], name)
    ordered = sorted(whole.rows, key=lambda row: (-int(row[2]), row[0]))[:_SOURCES]
    rest = len(whole.rows) - len(ordered)
    note = f"The {_SOURCES} with most compared rows; {rest} others have fewer. Held out." if rest else "Held out."
    return Table(title="Where the measurements come from", columns=whole.columns, rows=tuple(ordered), note=note)


def _good(of: Figures, gate: Sequence[str]) -> Iterator[str]:
    yield from _paragraph(*said("post_good", of))
    if gate:
        failed = [line for line in gate if not line.startswith("PASS")]
        held = f"Gate: {len(gate) - len(failed)} of {len(gate)} checks hold."
        yield from _paragraph(held, *(f"{line}." for line in failed))


def _order(of: Figures) -> Iterator[str]:
    gains = whatif.gains(of.fit("heldout"))
    item = {"of": of, "gains": gains, "pairs": len(gains.measured), "worst_group": of.order.worst_group or NONE}
    yield from _paragraph(*said("post_order", item))


def _bad(of: Figures) -> Iterator[str]:
    known = of.compared
    if known["cell"].nunique() < 2:
        return
    cells, ablated = causes.cells(known), causes.ablations(known)
    most, alone = cells[:3], cells[cells["rows"] == 1]
    points = {
        name: 100 * part["points"].sum()
        for name, part in (("worst_points", most), ("points", cells), ("alone_points", alone))
    }
    counts = {"worst": len(most), "cells": len(cells), "alone": len(alone)}
    yield from _paragraph(*said("post_bad", {**counts, **points, "left": ablated["error"].iloc[-1]}))


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
    note = f"{rest} rarer reason{' is' if rest == 1 else 's are'} in the report." if rest > 0 else ""
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
    versions = [f"{name} {version}" for name, version in dict(provenance.get("versions", {})).items()]
    revision = str(provenance.get("revision", ""))
    made = {
        "versions": ", ".join(versions),
        "revision": revision and revision[:12] + ("+changes" if revision.endswith("+changes") else ""),
        "inputs": len(provenance.get("inputs", ())) or None,
    }
    yield from _paragraph(*said("post_made_of", made))
    yield from _paragraph(*said("post_end", {}))
