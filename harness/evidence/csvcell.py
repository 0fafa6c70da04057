"""Shields cells of a CSV that a spreadsheet must not compute: text that would be a formula gets a leading apostrophe.

What is a formula to Excel, LibreOffice and Google Sheets: a cell that begins with ``=``, ``+``, ``-`` or ``@``, or with a
tab or a carriage return before one (OWASP, "CSV injection"). Numbers are written as they are. :func:`shielded` and
:func:`plain` undo each other for every text.
"""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_SHIELDED = re.compile(r"'+[=+\-@\t\r]")


def shielded(value: object) -> object:
    """Returns a text as it is written to the CSV, any other value as it is."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def plain(text: str) -> str:
    """Returns the text that :func:`shielded` was given."""
    return text[1:] if text.startswith("'") and _SHIELDED.match(text) else text
