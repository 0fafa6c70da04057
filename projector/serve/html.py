"""The parts of every HTML page of both packages: a head with its style, and tables whose columns sort by a click."""

from __future__ import annotations

from html import escape

from projector.io.table import Column, Table

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_LONG = 24  # characters above which a cell may wrap


def head(title: str, style: str) -> str:
    """Returns the beginning of a page that forbids itself every request, up to and with its first heading."""
    text = escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text}</title><style>\n{style}</style></head>\n"
        f'<body><header><h1>{text}</h1><button type="button" class="plain" id="theme">light / dark</button></header>'
    )


def body(table: Table) -> str:
    """Returns a table without its title, inside an element that scrolls where the table is too wide, and its note."""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'<div class="wide">{_table(table)}</div>{note}'


def _table(table: Table) -> str:
    kinds = [_kind(c.numeric and "n", c.minor > 1 and "minor") for c in table.columns]
    titles = "".join(
        f'<th{kind} title="{escape(c.help)}"><button type="button">{escape(c.title)}</button></th>'
        for c, kind in zip(table.columns, kinds, strict=True)
    )
    rows = "".join(f"<tr>{''.join(map(_cell, row, table.columns))}</tr>" for row in table.rows)
    return f'<table class="written"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'


def _cell(value: str, column: Column) -> str:
    if column.numeric:
        # A minus sign is as wide as a plus.
        figure = "−" + value[1:] if value.startswith("-") else value
        return f"<td{_kind('n', column.minor > 1 and 'minor')}>{escape(figure)}</td>"
    long = len(value) > _LONG
    text = escape(value).replace("_", "_<wbr>") if long else escape(value)
    return f"<td{_kind(long and 'long', column.minor > 1 and 'minor')}>{text}</td>"


def _kind(*names: str | int) -> str:
    """Returns the class attribute of the names that hold, or an empty text."""
    held = " ".join(name for name in names if isinstance(name, str))
    return f' class="{held}"' if held else ""
