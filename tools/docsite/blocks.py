"""Generated parts of hand-written pages: between two markers, ``<!-- name:begin -->`` and ``<!-- name:end -->``.

The README and the documentation hold no typed figure: a tool puts tables of ``reports/`` between the markers, and a check
fails where they are no longer what the reports give. Pure functions of text.
"""

from __future__ import annotations

import re

from projector.errors import InputError, Problem

_MARKER = re.compile(r"^<!-- (\S+):begin -->$", flags=re.MULTILINE)
_NUMBER = re.compile(r"[+\-−<>≤≥\\ ]*\d[\d.,/]*( ?%|x| (ms|s|GiB|MiB))?( \(|$)")


def sections(text: str) -> dict[str, str]:
    """The parts of a Markdown page by their heading of the second level, without the heading."""
    parts = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return {name.strip(): body.strip() for name, body in parts}


def markers(page: str) -> tuple[str, ...]:
    """Names of the generated parts of ``page``, in order."""
    return tuple(_MARKER.findall(page))


def replaced(page: str, name: str, content: str, where: str) -> str:
    """``page`` with ``content`` between the two markers of ``name``.

    Raises :class:`projector.errors.InputError` (named ``where``) unless each marker stands there once, in this order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed) or page.count(begin) != 1 or page.count(end) != 1:
        raise InputError([Problem(where, name, "not one pair of markers", f"{begin} … {end}, once")])
    return f"{before}{begin}\n{content}\n{end}{after}"


def cells(body: str) -> list[list[str]]:
    """Head and rows of the first Markdown table in ``body``; the rule between them is left out. Pipes stay escaped."""
    lines = [line for line in body.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    return [row for i, row in enumerate(rows) if i != 1]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a column stands on the right where one of its cells begins like a number."""
    numbers = [any(_NUMBER.match(row[i]) for row in rows) for i in range(len(head))]
    rule = ["---:" if number else "---" for number in numbers]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
