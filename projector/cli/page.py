"""What a command shows: headings, lines and tables; styled on a terminal, aligned plain text where it is piped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

__all__ = ["Column", "Line", "Table", "gib", "percent", "show"]

_GAP = "  "
NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """``text``: set flush left; figures stand flush right."""

    title: str
    text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``total``: the last row is the sum of those above it. ``note`` stands below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    total: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line by itself. ``style``: ``bold``, ``dim``, ``good``, ``bad`` or nothing."""

    text: str
    style: str = ""


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def gib(size: float) -> str:
    """Bytes in GiB, two digits."""
    return f"{size / 2**30:.2f}"


def show(blocks: Iterable[Line | Table], stream: TextIO | None = None) -> None:
    """Writes ``blocks`` in order, a blank line before each table."""
    out = stream or sys.stdout
    if out.isatty():
        _styled(blocks, out)
        return
    for block in blocks:
        if isinstance(block, Line):
            print(block.text, file=out)
        else:
            print(file=out)
            print("\n".join(_plain(block)), file=out)


def _plain(table: Table) -> list[str]:
    widths = [max(len(c.title), *(len(row[i]) for row in table.rows), 1) for i, c in enumerate(table.columns)]
    rule = _GAP.join("-" * width for width in widths)
    lines = [table.title] if table.title else []
    lines += [_row([c.title for c in table.columns], table, widths), rule]
    body = [_row(row, table, widths) for row in table.rows]
    lines += [*body[:-1], rule, body[-1]] if table.total and len(body) > 1 else body
    return [*lines, table.note] if table.note else lines


def _row(cells: Sequence[str], table: Table, widths: Sequence[int]) -> str:
    columns = zip(cells, table.columns, widths, strict=True)
    return _GAP.join(c.ljust(w) if column.text else c.rjust(w) for c, column, w in columns).rstrip()


_STYLES = {"bold": "bold", "dim": "dim", "good": "green", "bad": "bold red"}


def _styled(blocks: Iterable[Line | Table], out: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(file=out, highlight=False)
    for block in blocks:
        if isinstance(block, Line):
            console.print(Text(block.text, style=_STYLES.get(block.style, "")))
            continue
        title = Text(block.title, style="bold cyan")
        grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
        for column in block.columns:
            grid.add_column(Text(column.title), justify="left" if column.text else "right")
        for i, row in enumerate(block.rows):
            last = block.total and i == len(block.rows) - 1
            grid.add_row(
                *map(Text, row), style="bold" if last else "", end_section=block.total and i == len(block.rows) - 2
            )
        console.print(grid)
        if block.note:
            console.print(Text(block.note, style="dim"))
