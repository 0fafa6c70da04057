"""Writes the headline tables as LaTeX, for a paper: booktabs rules, everything escaped, ``\\input`` as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.report.table import NONE, Table

#: Characters by the name of the command of text, or of mathematics, that prints them.
_TEXT = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
_MATHEMATICS = {"±": "pm", "×": "times", "·": "cdot", "≤": "le", "≥": "ge", "µ": "mu"}
_SPECIAL = str.maketrans(
    {"−": "$-$", "–": "--", "—": "---", "…": r"\ldots{}", '"': "{''}", "\u00a0": "~", "\u2009": r"\,"}
    | {character: rf"\{character}" for character in "{}$&%#_"}
    | {character: rf"\text{name}{{}}" for character, name in _TEXT.items()}
    | {character: rf"$\{name}$" for character, name in _MATHEMATICS.items()}
)
# A figure with its sign and unit: the minus is one of mathematics, the space before per cent a thin one.
_FIGURE = re.compile(r"^([+-])?(\d[\d.]*)( %)?$")


def render(tables: Sequence[Table], label: str = "accuracy") -> str:
    """Returns one ``table`` each, labelled ``tab:<label>-1`` and on; notes become captions' second sentences."""
    head = [r"% Needs \usepackage{booktabs}.", ""]
    return "\n".join([*head, *(line for i, t in enumerate(tables, 1) for line in _table(t, f"{label}-{i}"))])


def _table(table: Table, label: str) -> Iterator[str]:
    caption = escape(table.title) + "." + (f" {escape(table.note)}" if table.note else "")
    flush = "".join("r" if c.numeric else "l" for c in table.columns)
    yield from (r"\begin{table}[t]", r"\centering\small", rf"\caption{{{caption}}}", rf"\label{{tab:{label}}}")
    yield from (rf"\begin{{tabular}}{{@{{}}{flush}@{{}}}}", r"\toprule")
    yield from (_row([escape(c.title) for c in table.columns]), r"\midrule")
    for row in table.rows:
        yield _row([_cell(v, c.numeric) for v, c in zip(row, table.columns, strict=True)])
    yield from (r"\bottomrule", r"\end{tabular}", r"\end{table}", "")


def _row(cells: Sequence[str]) -> str:
    # A row that begins with a bracket or a star would be read as an argument of the line break before it.
    text = " & ".join(cells)
    return (r"\relax " if text.startswith(("[", "*")) else "") + text + r" \\"


def _cell(text: str, numeric: bool) -> str:
    match = _FIGURE.match(text) if numeric else None
    if match is None:
        return "--" if text == NONE else escape(text)
    sign, digits, unit = match.groups(default="")
    return (f"${sign}$" if sign else "") + digits + (r"\,\%" if unit else "")


def escape(text: str) -> str:
    """Returns ``text`` as LaTeX prints it literally; line breaks become spaces, other control characters vanish."""
    flat = "".join(c if c.isprintable() or c == "\u00a0" else " " if c in "\n\r\t" else "" for c in text)
    return flat.translate(_SPECIAL)
