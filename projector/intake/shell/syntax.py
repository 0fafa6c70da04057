"""Parses shell text to a syntax tree (tree-sitter's grammar of bash), and answers what readers ask of the tree."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from projector.dataclass import dataclass
from projector.intake.shell.unknown import clean

if TYPE_CHECKING:
    from tree_sitter import Node

#: ``DATA=<path to your data>/x``: a place that a user fills in, which a shell reads as redirections.
_PLACEHOLDER = re.compile(
    r"^(\s*(?:export\s+)?[A-Za-z_]\w*=)([^\s<>\"'#;&|()]*<[^<>\n]*>[^\s;#&|]*)[ \t]*(?=$|#)", re.MULTILINE
)
_PLACE = re.compile(r"<[^<>\n]*>")
_ARGUMENT = re.compile(r"(?<=[\s=])(<[A-Za-z][\w /.,:'-]*>)(?=[\s/_.:\\]|$)", re.MULTILINE)
#: `` `# text` ``: a remark between arguments, whose end the grammar takes for a part of it.
_REMARK = re.compile(r"(?<=\s)`#[^`\n]*`(?=\s)")
#: How a place to fill in reads in values: brackets that mean nothing to a shell, and no blanks.
PLACEHOLDER = re.compile(r"⟨[^⟨⟩\n]*⟩")
#: ``10#$X``: a number of a stated base, whose sign the grammar takes for a comment's.
_BASE = re.compile(rb"(?<=\d)#(?=[$\"'])")
#: ``$/x``: a dollar before what begins no name is itself, where the grammar waits for the name.
_LONE_DOLLAR = re.compile(rb"\$(?=/)")
#: Characters beyond the first plane: the grammar's tables of letters end before some of them, and reading one there crashes.
_BEYOND_FIRST_PLANE = re.compile(rb"[\xf0-\xf4][\x80-\xbf]{3}")
_DEEPEST = 200


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed shell text. ``where`` names its file; ``data`` are the bytes that the nodes below ``root`` point into."""

    where: str
    data: bytes
    root: Node
    first_line: int = 1

    def line(self, node: Node) -> int:
        """Returns the line of ``node`` in its file, counted from 1."""
        return int(node.start_point[0]) + self.first_line


@cache
def _parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str, where: str, *, marked: bool = False, first_line: int = 1) -> Source:
    """Parses ``text``. ``marked``: the text holds values, whose marks stay; ``first_line``: of the text in its file."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    plain = plain if marked else clean(plain)
    plain = _REMARK.sub("", plain)
    plain = _PLACEHOLDER.sub(lambda match: match[1] + _PLACE.sub(lambda place: f"'{_word(place[0])}'", match[2]), plain)
    plain = _ARGUMENT.sub(lambda match: f"'{_word(match[1])}'", plain)
    data = (plain if plain.endswith("\n") else plain + "\n").encode("utf-8", errors="replace")
    root = _parser().parse(_BEYOND_FIRST_PLANE.sub(b"wwww", _LONE_DOLLAR.sub(b"w", _BASE.sub(b"+", data)))).root_node
    return Source(where=where, data=data, root=root, first_line=first_line)


def places(text: str) -> tuple[str, ...]:
    """Returns the places that the script ``text`` leaves to its user to fill in, as written: ``<path to data>``."""
    plain = re.sub(r"^\s*#.*$", "", clean(text), flags=re.MULTILINE)
    inside = [part for match in _PLACEHOLDER.finditer(plain) for part in _PLACE.findall(match[2])]
    return tuple(dict.fromkeys([*inside, *(match[1] for match in _ARGUMENT.finditer(plain))]))


def _word(text: str) -> str:
    """Turns a place to fill in into text that stays one word, also when it is evaluated again."""
    return text.replace("'", "").replace(" ", "\u00a0").replace("<", "⟨").replace(">", "⟩")


def text_of(source: Source, node: Node) -> str:
    """Returns the text of ``node``."""
    return source.data[node.start_byte : node.end_byte].decode("utf-8", errors="replace")


def named(node: Node) -> list[Node]:
    """Returns the children of ``node`` that are neither punctuation nor comments."""
    return [child for child in node.children if child.is_named and child.type != "comment"]


def deep(node: Node, depth: int = 0) -> Iterator[Node]:
    """Yields ``node`` and all nodes below it, in the order of the text."""
    yield node
    if depth < _DEEPEST:
        for child in node.children:
            yield from deep(child, depth + 1)


def branches(node: Node) -> list[tuple[list[Node], list[Node]]]:
    """Returns (condition, body) of every branch of an ``if``; the condition of an ``else`` is empty."""
    pairs: list[tuple[list[Node], list[Node]]] = []
    condition: list[Node] = []
    body: list[Node] = []
    target = condition
    clauses: list[Node] = []
    for child in node.children:
        if child.type in ("if", "elif", "else"):
            target = body if child.type == "else" else condition
        elif child.type == "then":
            target = body
        elif child.type in ("elif_clause", "else_clause"):
            clauses.append(child)
        elif child.is_named and child.type != "comment":
            target.append(child)
    pairs.append((condition, body))
    for clause in clauses:
        pairs += branches(clause)
    return pairs


def alternatives(source: Source, parts: list[Node]) -> list[str]:
    """Returns the patterns of a ``case`` item, split at the bars."""
    patterns = [""]
    for part in parts:
        if part.type == "|":
            patterns.append("")
        elif part.type != "(":
            patterns[-1] += text_of(source, part).strip()
    return patterns


def adjacent(source: Source, parts: list[Node]) -> list[str]:
    """Returns the texts of ``parts``, joined into one word where no blank stands between them."""
    texts: list[str] = []
    end = -1
    for part in parts:
        if part.type in (";", "&", "do", "\n"):
            continue
        text = text_of(source, part)
        glued = part.start_byte == end and not text[:1].isspace()
        if glued:
            texts[-1] += text
        else:
            texts.append(text.strip() if text[:1].isspace() else text)
        end = part.end_byte
    return texts


def newline_before_name(source: Source, parts: list[Node]) -> bool:
    """Says whether a line ends behind an assignment: the grammar takes such statements for a part of the next command."""
    for before, after in itertools.pairwise(parts):
        if before.type == "variable_assignment" and after.type != "variable_assignment":
            return b"\n" in source.data[before.end_byte : after.start_byte].replace(b"\\\n", b"")
    return False
