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
from projector.serve import PAGE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def write(path: Path, title: str, blocks: Iterable[Line | Table], figures: Mapping[str, Any]) -> None:
    """Whole or not at all. ``figures``: of matplotlib, by name."""
    write_whole(path, "\n".join(_lines(title, blocks, figures)) + "\n")


def _lines(title: str, blocks: Iterable[Line | Table], figures: Mapping[str, Any]) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    style, script = ((PAGE / name).read_text(encoding="utf-8") for name in ("page.css", "common.js"))
    yield f"<title>{escape(title)}</title><style>{style}</style></head>"
    yield f'<body><header><h1>{escape(title)}</h1><button class="plain" id="theme">light / dark</button></header>'
    command: list[str] = []
    for block in blocks:
        if isinstance(block, Table):
            yield from _table(block)
        elif block.text.endswith("\\"):
            command.append(block.text)
        elif command:
            yield f"<pre>{escape(chr(10).join([*command, block.text]))}</pre>"
            command = []
        elif block.text and block.text != title:
            yield f"<p>{escape(block.text)}</p>"
    for place, (name, figure) in enumerate(figures.items()):
        yield f'<figure id="{escape(name)}">{_vector(figure, f"f{place}-")}</figure>'
    yield f"<script>{script}</script></body></html>"


def _table(table: Table) -> Iterator[str]:
    yield f'<h2>{escape(table.title)}</h2><div class="wide"><table class="written"><thead><tr>'
    yield "".join(
        f'<th{_side(column.numeric)}><button type="button">{escape(column.title)}</button></th>'
        for column in table.columns
    )
    yield "</tr></thead><tbody>"
    sides = [_side(column.numeric) for column in table.columns]
    for row in table.rows:
        cells = "".join(f"<td{side}>{escape(cell)}</td>" for side, cell in zip(sides, row, strict=True))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="note">{escape(table.note)}</p>'


def _side(numeric: bool) -> str:
    return f' class="{"n" if numeric else "long"}"'


_NAMED = re.compile(r'(\bid="|url\(#|href="#)')


def _vector(figure: Any, prefix: str) -> str:
    """The figure as an SVG element; ``prefix`` makes its names its own on a page of several."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "page"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return _NAMED.sub(rf"\g<1>{prefix}", text[text.index("<svg") :])
