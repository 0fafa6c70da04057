"""Evaluates ``[ … ]``, ``test`` and ``[[ … ]]``: to true, to false, or to what decides the condition.

Bash reference manual, "Bash Conditional Expressions". A variable that is not set counts as empty, as in a shell; files
are known only where the script wrote them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from projector.intake.shell import patterns, words
from projector.intake.shell.state import State
from projector.intake.shell.syntax import Source, text_of
from projector.intake.shell.unknown import is_known

if TYPE_CHECKING:
    from tree_sitter import Node

    from projector.intake.shell.machine import Machine


class Undecided:
    """A condition that only a run settles. ``text`` shows it to people, and conditions of one text are decided alike;
    ``files``: it depends on files alone; ``opposite``: the condition stands negated."""

    def __init__(self, text: str, *, files: bool = False, opposite: bool = False) -> None:
        self.text, self.files, self.opposite = text, files, opposite


Verdict = bool | Undecided

_FILE_TESTS = frozenset(("-f", "-d", "-e", "-s", "-r", "-w", "-x", "-L", "-h", "-b", "-c", "-p", "-S", "-t"))
_NUMBER_TESTS: dict[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_COMPOUND = ("binary_expression", "unary_expression", "parenthesized_expression", "test_command", "negated_command")
_COMPARE = ("=", "==", "!=", "=~", "<", ">", *_NUMBER_TESTS, "-nt", "-ot", "-ef")


def negated(verdict: Verdict) -> Verdict:
    if isinstance(verdict, Undecided):
        return Undecided(verdict.text, files=verdict.files, opposite=not verdict.opposite)
    return not verdict


class _Test:
    """Parses the expanded words of one test by recursive descent. ``double``: of ``[[``, where right sides are patterns."""

    def __init__(self, machine: Machine, items: list[str], state: State, double: bool) -> None:
        self.machine, self.items, self.state, self.double = machine, items, state, double
        self.unknowns, self.at = machine.unknowns, 0

    def _peek(self, ahead: int = 0) -> str:
        position = self.at + ahead
        return self.items[position] if position < len(self.items) else ""

    def either(self) -> Verdict:
        return self._joined("||" if self.double else "-o", self.both, any_=True)

    def both(self) -> Verdict:
        return self._joined("&&" if self.double else "-a", self.one, any_=False)

    def _joined(self, sign: str, part: Callable[[], Verdict], *, any_: bool) -> Verdict:
        verdict = part()
        while self._peek() == sign:
            self.at += 1
            verdict = combined(verdict, part(), any_=any_)
        return verdict

    def one(self) -> Verdict:
        word = self._peek()
        if self.at >= len(self.items):
            return False
        if self._peek(1) in _COMPARE and self.at + 2 < len(self.items):
            sign, right = self._peek(1), self._peek(2)
            self.at += 3
            return self._compare(word, sign, right)
        if word == "!" and self.at + 1 < len(self.items):
            self.at += 1
            return negated(self.one())
        if word == "(" and self.at + 1 < len(self.items):
            self.at += 1
            verdict = self.either()
            self.at += 1
            return verdict
        if re.fullmatch(r"-[a-zA-Z]", word) and self.at + 1 < len(self.items):
            self.at += 2
            return self._unary(word, self.items[self.at - 1])
        self.at += 1
        return self._nonempty(word)

    def _nonempty(self, text: str) -> Verdict:
        text = self.unknowns.as_shell(text)
        if text and not is_known(text) and not re.sub("\ue000\\d+\ue001", "", text):
            if any(item.filled for item in self.unknowns.within(text)):
                return True
            return self._undecided(f"-n {text}")
        return bool(text)

    def _unary(self, operator: str, text: str) -> Verdict:
        if operator == "-n":
            return self._nonempty(text)
        if operator == "-z":
            return negated(self._nonempty(text))
        if operator == "-v":
            return self.machine.parameters(self.state).is_set(self.unknowns.as_shell(text))
        if operator in _FILE_TESTS:
            if not self.unknowns.as_shell(text):
                return False
            files = self.machine.files
            if is_known(text) and (files.wrote(text, self.state) or files.find(text, self.state)):
                return True
            return Undecided(self.unknowns.shown(f"{operator} {text}"), files=True)
        return self._undecided(f"{operator} {text}")

    def _compare(self, left: str, operator: str, right: str) -> Verdict:
        shown = f"{left} {operator} {right}"
        left, right = self.unknowns.judge(left), self.unknowns.judge(right)
        if operator in _NUMBER_TESTS:
            return self._compare_numbers(left, operator, right, shown)
        if operator in ("-nt", "-ot", "-ef"):
            return Undecided(self.unknowns.shown(shown), files=True)
        if not is_known(left) or not is_known(right):
            if operator == "!=":
                return negated(self._undecided(f"{left} == {right}"))
            return self._undecided(f"{left} {'==' if operator == '=' else operator} {right}")
        if operator == "=~":
            groups = _regex_groups(right, left)
            self.state.set("BASH_REMATCH", groups)
            return bool(groups)
        if operator in ("<", ">"):
            return left < right if operator == "<" else left > right
        plain = re.sub(r"\\(.)", r"\1", right) if not self.double else right
        same = patterns.matches(left, right) if self.double else left == plain
        return same if operator != "!=" else not same

    def _compare_numbers(self, left: str, operator: str, right: str, shown: str) -> Verdict:
        values = []
        for text in (left, right):
            bare = text.strip()
            if not is_known(bare):
                return self._undecided(shown)
            if re.fullmatch(r"[-+]?\d{1,30}", bare):
                values.append(int(bare))
            elif self.double:
                number = self.machine.parameters(self.state).arithmetic(bare) if bare else "0"
                if number is None or not re.fullmatch(r"-?\d+", number):
                    return self._undecided(shown)
                values.append(int(number))
            else:
                return False  # "integer expression expected": an error is not true
        return _NUMBER_TESTS[operator](*values)

    def _undecided(self, text: str) -> Undecided:
        return Undecided(self.unknowns.shown(text))


def combined(left: Verdict, right: Verdict, *, any_: bool) -> Verdict:
    """Returns ``left || right`` (``any_``) or ``left && right``, where either may be undecided."""
    for verdict, other in ((left, right), (right, left)):
        if isinstance(verdict, bool):
            return verdict if verdict == any_ else other
    assert isinstance(left, Undecided)
    assert isinstance(right, Undecided)
    texts = [("! " if item.opposite else "") + item.text for item in (left, right)]
    return Undecided(f" {'||' if any_ else '&&'} ".join(texts), files=left.files and right.files)


def _regex_groups(pattern: str, text: str) -> list[str]:
    """Returns the match of ``pattern`` in ``text`` and its groups, as ``BASH_REMATCH`` holds them; empty without a match."""
    try:
        match = patterns.searchable(patterns.classes(pattern), len(text)).search(text)
    except re.error:
        return []
    return [match[0], *(group or "" for group in match.groups())] if match else []


def tested(machine: Machine, items: list[str], state: State, *, double: bool) -> Verdict:
    """Returns the verdict of the expanded words between the brackets; ``double``: the brackets are ``[[``."""
    if not double and len(items) == 1:
        items = ["-n", items[0]]
    elif not double and len(items) == 2 and items[0] == "!":
        items = ["-z", items[1]]
    test = _Test(machine, items, state, double)
    verdict = test.either()
    if test.at < len(test.items):
        return Undecided(machine.unknowns.shown(" ".join(items)))
    return verdict


def bracketed(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    """Evaluates a ``[ … ]``, ``[[ … ]]`` or ``(( … ))`` node of the syntax tree."""
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
            pieces = words.lex(text.replace("\\", "\\\\"), machine.parameters(state))
            escaped = (re.escape(piece.text) if piece.quoted and piece.text != "\\" else piece.text for piece in pieces)
            items.append("".join(escaped))
        elif double:
            items.append(machine.single(text, state))
        else:
            items += machine.fields(text, state) or ([""] if text.startswith('"') else [])
    return tested(machine, items, state, double=double)


def _leaves(node: Node) -> list[Node]:
    leaves: list[Node] = []
    for child in node.children:
        leaves += _leaves(child) if child.type in _COMPOUND else [child]
    return [leaf for leaf in leaves if leaf.end_byte > leaf.start_byte]
