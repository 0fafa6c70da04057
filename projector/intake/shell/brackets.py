"""``[ … ]``, ``[[ … ]]`` and ``test`` of a script: their words, expanded as each of them does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from projector.intake.shell import conditions, words
from projector.intake.shell.conditions import Verdict
from projector.intake.shell.state import State
from projector.intake.shell.syntax import Source, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from projector.intake.shell.machine import Machine

_COMPOUND = ("binary_expression", "unary_expression", "parenthesized_expression", "test_command", "negated_command")


def _exists(machine: Machine, state: State) -> Callable[[str], bool | None]:
    return lambda path: True if machine.files.wrote(path, state) or machine.files.find(path, state) else None


def tested(machine: Machine, items: list[str], state: State, *, double: bool) -> Verdict:
    """The verdict of expanded words; ``double``: of ``[[``."""
    parameters = machine.parameters(state)
    return conditions.test_words(
        items,
        machine.unknowns,
        double=double,
        exists=_exists(machine, state),
        is_set=lambda name: parameters.is_set(machine.unknowns.as_shell(name)),
        number=parameters.arithmetic,
        matched=lambda groups: state.set("BASH_REMATCH", groups),
    )


def bracketed(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    """``[ … ]`` and ``[[ … ]]`` of the tree."""
    double = node.children[0].type == "[["
    if node.children[0].type == "((":
        return machine.arithmetic_test(text_of(source, node).strip()[2:-2], state)
    leaves: list[str] = []
    end = -1
    for leaf in _leaves(node):
        text = text_of(source, leaf)
        if leaf.start_byte == end and leaves and not text[:1].isspace() and text not in ("(", ")", "]]", "]"):
            leaves[-1] += text
        else:
            leaves.append(text.strip())
        end = leaf.end_byte if text not in ("(", ")", "!", "[[", "[") else -1
    inner = leaves[1:-1]
    items: list[str] = []
    for number, text in enumerate(inner):
        before = inner[number - 1] if number else ""
        if double and before in ("=", "==", "!="):
            items.append(machine.parameters(state).pattern(text))
        elif double and before == "=~":
            items.append("".join(_regex_piece(piece) for piece in words.lex(_spared(text), machine.parameters(state))))
        elif double:
            items.append(machine.single(text, state))
        else:
            items += machine.fields(text, state) or ([""] if text.startswith('"') else [])
    return tested(machine, items, state, double=double)


def _spared(text: str) -> str:
    return text.replace("\\", "\\\\")


def _regex_piece(piece: words.Piece) -> str:
    return re.escape(piece.text) if piece.quoted and piece.text != "\\" else piece.text


def _leaves(node: Node) -> list[Node]:
    found: list[Node] = []
    for child in node.children:
        found += _leaves(child) if child.type in _COMPOUND else [child]
    return [leaf for leaf in found if leaf.end_byte > leaf.start_byte]
