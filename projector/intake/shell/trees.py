"""What the tree of a statement holds, in the order in which a shell reads it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from projector.intake.shell.syntax import Source, text_of

if TYPE_CHECKING:
    from tree_sitter import Node


def branches(node: Node) -> list[tuple[list[Node], list[Node]]]:
    """(condition, body) of every branch; an else has no condition."""
    found: list[tuple[list[Node], list[Node]]] = []
    condition: list[Node] = []
    body: list[Node] = []
    into = condition
    rest: list[Node] = []
    for child in node.children:
        if child.type in ("if", "elif", "else"):
            into = body if child.type == "else" else condition
        elif child.type == "then":
            into = body
        elif child.type in ("elif_clause", "else_clause"):
            rest.append(child)
        elif child.is_named and child.type != "comment":
            into.append(child)
    found.append((condition, body))
    for clause in rest:
        found += branches(clause)
    return found


def alternatives(source: Source, parts: list[Node]) -> list[str]:
    """Patterns of a case item, split at its bars."""
    found = [""]
    for part in parts:
        if part.type == "|":
            found.append("")
        elif part.type != "(":
            found[-1] += text_of(source, part).strip()
    return found


def adjacent(source: Source, parts: list[Node]) -> list[str]:
    """The words that ``parts`` are, those without a blank between them together."""
    found: list[str] = []
    end = -1
    for part in parts:
        if part.type in (";", "&", "do", "\n"):
            continue
        text = text_of(source, part)
        glued = part.start_byte == end and not text[:1].isspace()
        if glued:
            found[-1] += text
        else:
            found.append(text.strip() if text[:1].isspace() else text)
        end = part.end_byte
    return found


def newline_before_name(source: Source, parts: list[Node]) -> bool:
    """Whether assignments end in a new line: statements of their own, which the grammar takes for a command's."""
    for before, after in itertools.pairwise(parts):
        if before.type == "variable_assignment" and after.type != "variable_assignment":
            return b"\n" in source.data[before.end_byte : after.start_byte].replace(b"\\\n", b"")
    return False
