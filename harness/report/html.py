"""Writes a report as one self-contained HTML page that fetches nothing: sortable tables, and the rows with charts and
filters. Style and script are the files of ``page/``; they are written into the page, which forbids itself every request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from harness.report import payload
from harness.report.table import Report, Table
from harness.report.verdict import Verdict
from projector.serve import PAGE as LOOK
from projector.serve.html import body, head

PAGE = Path(__file__).parent / "page"
STYLES = ("page.css", "charts.css")  # the first is that of every page of both packages
SCRIPTS = ("data.js", "charts.js", "heat.js", "hover.js", "rows.js", "drawer.js", "main.js")

# Marks a page whose script failed, for a reader's tools and for the tests.
CATCH = "addEventListener('error', e => { document.documentElement.dataset.error = e.message; });\n"


def render(report: Report, data: Mapping[str, Any] | None = None, said: Verdict | None = None) -> str:
    """Returns the page. ``data``: from :func:`harness.report.payload.build`; ``said`` stands above everything."""
    return "\n".join(_lines(report, data, said)) + "\n"


def _lines(report: Report, data: Mapping[str, Any] | None, said: Verdict | None) -> Iterator[str]:
    yield head(report.title, "".join(map(_file, STYLES)))
    yield from _navigation(report, data)
    yield '<section id="short">'
    if said is not None:
        yield from _verdict(said)
    else:
        yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in report.lines) + "</ul>"
    yield from _gate(report.gate)
    if data is not None:
        yield _file("first.html")
    yield "</section>"
    if data is not None:
        yield _file("explorer.html")
    yield from _tables(report.tables, folded=data is not None)
    if report.provenance:
        items = "".join(f"<li>{escape(name)}: <code>{escape(value)}</code></li>" for name, value in report.provenance)
        yield '<section id="provenance"><h2>Provenance</h2><p class="note">Inputs with their SHA-256.</p>'
        yield f"<ul>{items}</ul></section>"
    yield '<div id="tip" role="status" hidden></div>'
    yield from _script(data)
    yield "</body></html>"


def _navigation(report: Report, data: Mapping[str, Any] | None) -> Iterator[str]:
    if data is None:
        return
    places = {"short": "Verdict", "explore": "Rows", "where": "Error", "ranking": "Ranking", "parts-of": "Step"}
    places |= {"memory": "Memory", "refused": "Refusals", "tables": "Tables"}
    places |= {"provenance": "Provenance"} if report.provenance else {}
    yield "<nav>" + "".join(f'<a href="#{i}" data-to="{i}">{words}</a>' for i, words in places.items()) + "</nav>"


def _verdict(said: Verdict) -> Iterator[str]:
    yield f'<p class="verdict">{escape(said.headline)}</p>'
    if said.lines:
        yield f'<p class="note">{escape(" ".join(said.lines))}</p>'
    tiles = (
        f"<li><b>{escape(f.value)}</b><span>{escape(f.meaning)}</span><small>{escape(f.more)}</small></li>"
        for f in said.figures
    )
    yield f'<ul class="tiles">{"".join(tiles)}</ul>'


def _gate(lines: tuple[str, ...]) -> Iterator[str]:
    """Yields the gate with failures in sight; a gate that holds in full is one line that unfolds."""
    if not lines:
        return
    failed = [line for line in lines if not line.startswith("PASS")]
    items = ""
    for line in (*failed, *(line for line in lines if line.startswith("PASS"))):
        word, _, rest = line.partition(" ")
        items += f'<li class="{word}"><b>{word}</b> {escape(rest)}</li>'
    summary = f"{len(lines) - len(failed)} of {len(lines)} checks hold"
    word = "FAIL" if failed else "PASS"
    opened = " open" if failed else ""
    yield f'<details{opened} class="{word}"><summary>Gate, held out: <b>{summary}</b></summary><ul>{items}</ul></details>'


def _tables(tables: tuple[Table, ...], *, folded: bool) -> Iterator[str]:
    if tables and folded:
        yield '<section id="tables"><h2>Tables</h2><p class="note">Of all rows, whatever the filters above.</p>'
        yield from (*map(_folded, tables), "</section>")
    else:
        yield from (_folded(t) if t.detail else f"<h2>{escape(t.title)}</h2>{body(t)}" for t in tables)


def _folded(table: Table) -> str:
    return f"<details><summary>{escape(table.title)} ({len(table.rows)})</summary>{body(table)}</details>"


def _script(data: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields the script in a scope of its own; without rows, only what sorts the written tables."""
    if data is not None:
        yield f'<script type="application/json" id="data">{payload.dumps(data)}</script>'
    names = ("common.js", *SCRIPTS) if data is not None else ("common.js",)
    yield "<script>\n(() => {\n'use strict';\n" + CATCH + "\n".join(map(_file, names)) + "})();\n</script>"


@cache
def _file(name: str) -> str:
    folder = PAGE if (PAGE / name).is_file() else LOOK
    return (folder / name).read_text(encoding="utf-8")
