"""Writes tables and figures as one HTML page that fetches nothing: vector figures, columns that sort by a click."""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from projector.io.files import folder, write_whole
from projector.io.table import Line, Table
from projector.search import figure_style
from projector.serve import PAGE
from projector.serve.html import body, head


def add_pictures(group: Any, drawn: str) -> None:
    """Adds the flags of pictures to ``group``; ``drawn``: help text that says which are drawn."""
    group.add_argument("--plots", metavar="DIR", help=drawn)
    group.add_argument("--page", metavar="FILE", help="all that is shown and the pictures, as one HTML page")


def pictures(
    options: argparse.Namespace, title: str, blocks: Iterable[Line | Table], made: Callable[[], Mapping[str, Any]]
) -> list[Path]:
    """Writes the files that ``--plots`` and ``--page`` ask for; returns their paths. ``made`` draws the figures where
    any is asked for."""
    if not options.plots and not options.page:
        return []
    figures = made()
    files = figure_style.save(figures, folder(options.plots, "--plots")) if options.plots else []
    if options.page:
        files.append(Path(options.page))
        write(files[-1], title, blocks, figures)
    return files


def write(path: Path, title: str, blocks: Iterable[Line | Table], figures: Mapping[str, Any]) -> None:
    """Writes the page whole or not at all. ``figures``: of matplotlib, by name."""
    write_whole(path, "\n".join(_lines(title, blocks, figures)) + "\n")


def _lines(title: str, blocks: Iterable[Line | Table], figures: Mapping[str, Any]) -> Iterator[str]:
    style, script = ((PAGE / name).read_text(encoding="utf-8") for name in ("page.css", "common.js"))
    yield head(title, style)
    command: list[str] = []
    for block in blocks:
        if isinstance(block, Table):
            yield f"<h2>{escape(block.title)}</h2>{body(block)}"
        elif block.text.endswith("\\"):
            command.append(block.text)
        elif command:
            yield f"<pre>{escape(chr(10).join([*command, block.text]))}</pre>"
            command = []
        elif block.text and block.text != title:
            yield f"<p>{escape(block.text)}</p>"
    for place, (name, figure) in enumerate(figures.items()):
        yield f'<figure class="wide" id="{escape(name)}">{_vector(figure, f"f{place}-")}</figure>'
    yield f"<script>{script}</script></body></html>"


_NAMED = re.compile(r'(\bid="|url\(#|href="#)')


def _vector(figure: Any, prefix: str) -> str:
    """Returns the figure as an SVG element, which scrolls where its letters would be less than half as large as drawn.
    ``prefix`` makes its ids differ from those of other figures of the page."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "page"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    least = f'<svg style="min-width:{36 * figure.get_figwidth():.0f}pt"'
    return least + _NAMED.sub(rf"\g<1>{prefix}", text[text.index("<svg") + 4 :])
