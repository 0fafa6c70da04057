"""A report as one self-contained HTML page: the tables sort on a click, the plots are embedded, nothing is fetched."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from html import escape

from harness.report.table import Report, Table

__all__ = ["render"]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #1a7f37; --bad: #c9302c; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 104rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .87rem; }
th, td { padding: .2rem .42rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
td.long { white-space: normal; min-width: 7rem; overflow-wrap: anywhere; }
th { position: sticky; top: 0; background: Canvas; } th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid; }
.n { text-align: right; } tbody tr:hover { background: var(--soft); }
th[aria-sort=ascending] button::after { content: " ▲"; } th[aria-sort=descending] button::after { content: " ▼"; }
.note { color: GrayText; max-width: 60rem; } .PASS b { color: var(--good); } .FAIL b { color: var(--bad); }
figure { margin: 1.5rem 0; } img { max-width: 100%; background: #fff; }
details > summary { cursor: pointer; margin: 2rem 0 .4rem; font-weight: 600; }
"""

SCRIPT = """
document.querySelectorAll('th button').forEach(b => b.addEventListener('click', () => {
  const th = b.closest('th'), table = th.closest('table'), body = table.tBodies[0];
  const i = [...th.parentNode.children].indexOf(th), up = th.getAttribute('aria-sort') !== 'ascending';
  const key = r => { const t = r.cells[i].textContent.trim(), v = parseFloat(t.replace('−', '-'));
                     return th.classList.contains('n') ? (isNaN(v) ? -Infinity : v) : t.toLowerCase(); };
  [...body.rows].map(r => [key(r), r]).sort((a, c) => (a[0] > c[0] ? 1 : a[0] < c[0] ? -1 : 0) * (up ? 1 : -1))
    .forEach(p => body.append(p[1]));
  table.querySelectorAll('th').forEach(h => h.removeAttribute('aria-sort'));
  th.setAttribute('aria-sort', up ? 'ascending' : 'descending');
}));
"""

LONG_TEXT = 36
HEADLINES = 2  # tables above the plots


def render(report: Report, plots: Mapping[str, bytes] | None = None) -> str:
    """The page; ``plots`` maps a caption to PNG bytes."""
    return "\n".join(_lines(report, plots or {})) + "\n"


def _lines(report: Report, plots: Mapping[str, bytes]) -> Iterator[str]:
    title = escape(report.title)
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
    yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in report.lines) + "</ul>"
    if report.gate:
        yield "<h2>Gate (held out)</h2><ul>" + "".join(_gate(line) for line in report.gate) + "</ul>"
    for table in report.tables[:HEADLINES]:
        yield _section(table)
    for caption, data in plots.items():
        encoded = base64.b64encode(data).decode()
        yield f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{encoded}"></figure>'
    for table in report.tables[HEADLINES:]:
        yield _section(table)
    if report.provenance:
        items = "".join(f"<li>{escape(name)}: <code>{escape(value)}</code></li>" for name, value in report.provenance)
        yield f"<details><summary>Inputs (SHA-256)</summary><ul>{items}</ul></details>"
    yield f"<script>{SCRIPT}</script></body></html>"


def _gate(line: str) -> str:
    word, _, rest = line.partition(" ")
    return f'<li class="{word}"><b>{word}</b> {escape(rest)}</li>'


def _section(table: Table) -> str:
    title = escape(table.title)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    body = f'<div class="wide">{_table(table)}</div>{note}'
    if table.detail:
        return f"<details><summary>{title} ({len(table.rows)})</summary>{body}</details>"
    return f"<h2>{title}</h2>{body}"


def _table(table: Table) -> str:
    head = "".join(
        f'<th{" class=n" if c.numeric else ""} title="{escape(c.help)}"><button>{escape(c.title)}</button></th>'
        for c in table.columns
    )
    body = "".join(f"<tr>{''.join(_cell(v, table, i) for i, v in enumerate(row))}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: str, table: Table, index: int) -> str:
    if table.columns[index].numeric:
        return f"<td class=n>{escape(value)}</td>"
    long = " class=long" if len(value) > LONG_TEXT else ""
    return f"<td{long}>{escape(value)}</td>"
