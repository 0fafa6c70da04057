"""Tables and figures of a study as one HTML page that fetches nothing: figures as vectors, columns that sort by a click."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from projector.io.files import write_whole
from projector.io.table import Line, Table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1a1a1a, #e6e6e6); --faint: light-dark(#666, #a0a0a0);
  --line: light-dark(#ddd, #3a3a3a); --ground: light-dark(#fff, #161616); }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 76rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .4rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top }
th { cursor: pointer }
.n { text-align: right }
.note { color: var(--faint); font-size: .85rem }
figure { display: inline-block; max-width: 100%; margin: 1rem .6rem 0 0; padding: .6rem; background: #fff;
  border-radius: 6px; box-sizing: border-box }
svg { max-width: 100%; height: auto; display: block }
"""
_SCRIPT = """
const value = cell => {
  const text = cell.textContent, bare = text.replace(/[ ,%+]/g, '');
  return bare && !isNaN(bare) ? +bare : text;
};
document.querySelectorAll('th').forEach(th => th.onclick = () => {
  const body = th.closest('table').tBodies[0], at = th.cellIndex;
  const down = th.dataset.down = th.dataset.down ? '' : '1';
  [...body.rows].sort((a, b) => {
    const [x, y] = [value(a.cells[at]), value(b.cells[at])];
    return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
  }).forEach(row => body.append(row));
});
"""


def write(path: Path, title: str, blocks: Iterable[Line | Table], figures: Mapping[str, Any]) -> None:
    """Whole or not at all. ``figures``: of matplotlib, by name."""
    write_whole(path, "\n".join(_lines(title, blocks, figures)) + "\n")


def _lines(title: str, blocks: Iterable[Line | Table], figures: Mapping[str, Any]) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
    for block in blocks:
        if isinstance(block, Table):
            yield from _table(block)
        elif block.text and block.text != title:
            yield f"<p>{escape(block.text)}</p>"
    for place, (name, figure) in enumerate(figures.items()):
        yield f'<figure id="{escape(name)}">{_vector(figure, f"f{place}-")}</figure>'
    yield f"<script>{_SCRIPT}</script></body></html>"


def _table(table: Table) -> Iterator[str]:
    yield f'<h2>{escape(table.title)}</h2><div class="wide"><table><thead><tr>'
    yield "".join(f"<th{_side(column.numeric)}>{escape(column.title)}</th>" for column in table.columns)
    yield "</tr></thead><tbody>"
    sides = [_side(column.numeric) for column in table.columns]
    for row in table.rows:
        cells = "".join(f"<td{side}>{escape(cell)}</td>" for side, cell in zip(sides, row, strict=True))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="note">{escape(table.note)}</p>'


def _side(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


_NAMED = re.compile(r'(\bid="|url\(#|href="#)')


def _vector(figure: Any, prefix: str) -> str:
    """The figure as an SVG element; ``prefix`` makes its names its own on a page of several."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "page"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return _NAMED.sub(rf"\g<1>{prefix}", text[text.index("<svg") :])
