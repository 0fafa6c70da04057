"""Evaluates a shell's arithmetic: whole numbers of 64 bits, C's operators, names that stand for variables.

Grammar: bash reference manual, "Shell Arithmetic".
"""

from __future__ import annotations

import operator as operators
import re
from collections.abc import Callable, Mapping

from projector.intake.shell.unknown import MARK

_TOKEN = re.compile(
    r"\s*(?:(?P<mark>(?:\d+#)?[\w]*(?:\ue000\d+\ue001\w*)+)|(?P<number>\d+#\w+|0[xX][0-9a-fA-F]+|\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator>\*\*=?|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[-+*/%<>=!&|^~?:(),\[\]]))"
)
_BINARY = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<=", ">=", "<", ">"),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=", "**=")
_SIMPLE: Mapping[str, Callable[[int, int], int]] = {
    "+": operators.add, "-": operators.sub, "*": operators.mul, "&": operators.and_, "|": operators.or_, "^": operators.xor,
    "==": operators.eq, "!=": operators.ne, "<": operators.lt, ">": operators.gt, "<=": operators.le, ">=": operators.ge,
    "&&": lambda left, right: bool(left and right), "||": lambda left, right: bool(left or right),
}  # fmt: skip
_DEEPEST = 40
_Value = int | str
"""A value is a number, or the text of the marks that decide it."""


class NotANumber(ValueError):
    """Is raised for text that is no arithmetic expression."""


class Arithmetic:
    """Evaluates expressions against variables: ``read(name)`` gives their text, ``write(name, text)`` changes them."""

    def __init__(self, read: Callable[[str], str], write: Callable[[str, str], None], join: Callable[[str], str]):
        self._read, self._write, self._join = read, write, join
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        self._depth = 0

    def value(self, text: str, depth: int = 0) -> _Value:
        """Returns the value of ``text``; marks where something unknown decides it. Raises :class:`NotANumber`."""
        if depth > _DEEPEST:
            raise NotANumber(text)
        saved = self._tokens, self._at, self._depth
        self._tokens, self._at, self._depth = _tokens(text), 0, depth
        try:
            if not self._tokens:
                return 0
            result = self._comma()
            if self._at != len(self._tokens):
                raise NotANumber(text)
            return result
        finally:
            self._tokens, self._at, self._depth = saved

    def _peek(self) -> str:
        kind, word = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        return word if kind == "operator" else ""

    def _take(self, *words: str) -> str:
        word = self._peek()
        if word and word in words:
            self._at += 1
            return word
        return ""

    def _comma(self) -> _Value:
        value = self._assignment()
        while self._take(","):
            value = self._assignment()
        return value

    def _assignment(self) -> _Value:
        if self._at + 1 < len(self._tokens) and self._tokens[self._at][0] == "name":
            kind, operator = self._tokens[self._at + 1]
            if kind == "operator" and operator in _ASSIGNMENTS:
                name = self._tokens[self._at][1]
                self._at += 2
                right = self._assignment()
                value = right if operator == "=" else self._combined(operator[:-1], self._variable(name), right)
                self._write(name, str(value))
                return value
        return self._ternary()

    def _ternary(self) -> _Value:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        yes = self._assignment()
        if not self._take(":"):
            raise NotANumber("?")
        no = self._assignment()
        if isinstance(condition, str):
            return yes if yes == no else self._join(f"{condition}{yes}{no}")
        return yes if condition else no

    def _binary(self, level: int) -> _Value:
        if level == len(_BINARY):
            return self._power()
        value = self._binary(level + 1)
        while operator := self._take(*_BINARY[level]):
            value = self._combined(operator, value, self._binary(level + 1))
        return value

    def _power(self) -> _Value:
        base = self._unary()
        return self._combined("**", base, self._power()) if self._take("**") else base

    def _unary(self) -> _Value:
        operator = self._take("-", "+", "!", "~", "++", "--")
        if not operator:
            return self._primary()
        if operator in ("++", "--"):
            kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            if kind != "name":
                return self._unary()
            self._at += 1
            return self._step_variable(name, operator)
        value = self._unary()
        if isinstance(value, str):
            return value
        return {"-": -value, "+": value, "!": int(not value), "~": ~value}[operator]

    def _primary(self) -> _Value:
        if self._take("("):
            value = self._comma()
            if not self._take(")"):
                raise NotANumber("(")
            return value
        if self._at >= len(self._tokens):
            raise NotANumber("nothing")
        kind, word = self._tokens[self._at]
        self._at += 1
        if kind == "mark":
            return self._join(word)
        if kind == "number":
            return _number(word)
        if kind != "name":
            raise NotANumber(word)
        if self._peek() == "[":
            self._at += 1
            index = self._comma()
            if not self._take("]"):
                raise NotANumber(word)
            return self._variable(f"{word}[{index}]")
        operator = self._take("++", "--")
        before = self._variable(word)
        if operator:
            self._step_variable(word, operator)
        return before

    def _step_variable(self, name: str, operator: str) -> _Value:
        value = self._combined(operator[0], self._variable(name), 1)
        self._write(name, str(value))
        return value

    def _variable(self, name: str) -> _Value:
        text = self._read(name).strip()
        return int(text) if re.fullmatch(r"-?[1-9]\d{0,18}|0", text) else self.value(text, self._depth + 1)

    def _combined(self, operator: str, left: _Value, right: _Value) -> _Value:
        if isinstance(left, str) or isinstance(right, str):
            return self._join(f"{left}{right}")
        return (_apply_operator(operator, left, right) + 2**63) % 2**64 - 2**63


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    bare = text.replace("\\\n", " ").replace('"', "").rstrip()
    while at < len(bare):
        match = _TOKEN.match(bare, at)
        if match is None or len(tokens) > 2000:
            raise NotANumber(MARK.sub("?", text)[:100])
        at = match.end()
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
    return tokens


def _number(word: str) -> int:
    try:
        base, hash_, digits = word.partition("#")
        if hash_:
            return int(digits, int(base))
        if word.lower().startswith("0x"):
            return int(word, 16)
        return int(word, 8) if len(word) > 1 and word[0] == "0" else int(word[:40])
    except ValueError:
        raise NotANumber(word) from None


def _apply_operator(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if right == 0:
            raise NotANumber("division by zero")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    if operator == "**":
        if right < 0:
            raise NotANumber("a negative exponent")
        return pow(left, right, 2**64) if right > 63 else left**right
    if operator in ("<<", ">>"):
        return left << (right & 63) if operator == "<<" else left >> (right & 63)
    return int(_SIMPLE[operator](left, right))
