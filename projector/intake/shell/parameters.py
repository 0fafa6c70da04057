"""Expands ``$x`` and ``${x…}``. Source: Bash reference manual, "Shell Parameter Expansion"."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from projector.intake.shell import patterns, words
from projector.intake.shell.arithmetic import Arithmetic, NotANumber
from projector.intake.shell.state import State, Value
from projector.intake.shell.unknown import MARK, Unknown, Unknowns, is_known, listed
from projector.intake.shell.words import Piece

if TYPE_CHECKING:
    from projector.intake.shell.conditions import Verdict
    from projector.intake.shell.machine import Machine

_INNER = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?$!-])", re.DOTALL)
_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|/[/#%]?|\^\^?|,,?|:|@")
_MACHINE_VARIABLES = listed("machine")
#: The version of bash that is evaluated: scripts check whether it is new enough.
_BASH: Mapping[str, Value] = {"BASH_VERSION": "5.2.15(1)-release", "BASH_VERSINFO": ["5", "2", "15", "1", "release"]}


class Parameters:
    """Expands parameters against the ``state`` of one ``machine``."""

    def __init__(self, machine: Machine, state: State) -> None:
        self.machine, self.state = machine, state
        self.unknowns: Unknowns = machine.unknowns

    # what words.lex asks for

    def command(self, text: str) -> str:
        return self.machine.substitution(text, self.state)

    def arithmetic(self, text: str) -> str | None:
        """Returns the value of the arithmetic expression ``text`` as text; a mark where it is unknown or no expression."""
        expanded = words.joined(words.lex(text, self, inside=True))
        try:
            return str(self._arithmetic().value(expanded))
        except NotANumber:
            source = f"$(({self.unknowns.shown(expanded).strip()[:60]}))"
            return self.unknowns.mark(*self.unknowns.within(expanded), Unknown(source))

    def expand(self, inner: str, inside: bool) -> list[Piece]:
        """Returns the pieces into which ``${inner}`` expands; ``inside``: between double quotes."""
        prefix = ""
        if len(inner) > 1 and inner[0] in "#!" and _INNER.match(inner, 1):
            prefix, inner = inner[0], inner[1:]
        match = _INNER.match(inner)
        if match is None:
            return [Piece(self.unknowns.mark(Unknown("${" + inner[:40] + "}")), quoted=inside)]
        name, rest = match[0], inner[match.end() :]
        subscript = None
        if rest.startswith("[") and (name[0].isalpha() or name[0] == "_"):
            stop = words.closing(rest, 0)
            subscript, rest = rest[1:stop], rest[stop + 1 :]
        if prefix == "!":
            return self._indirect(name, subscript, rest, inside)
        values = self._values(name, subscript)
        if prefix == "#":
            return [Piece(self._length(name, subscript, values), quoted=inside)]
        many = subscript in ("@", "*") or (subscript is None and name in ("@", "*"))
        star = subscript == "*" or name == "*"
        return self._apply_operator(name, subscript, values, rest, inside=inside, many=many, star=star)

    # variables

    def text(self, name: str) -> str:
        """Returns the text of a variable, a mark when it is not set."""
        values = self._values(name, None)
        return values[0] if values else self.missing(name)

    def is_set(self, name: str) -> bool:
        return bool(self._values(name, None))

    def number(self, name: str) -> str:
        """Returns the text of the variable ``a`` or ``a[3]`` of an arithmetic expression; a mark when it is not set."""
        base, _, key = name.partition("[")
        values = self._values(base, key.rstrip("]") if key else None)
        return values[0] if values else self.missing(base)

    def missing(self, name: str) -> str:
        """Returns the mark for a variable that is not set, and remembers that the script read it."""
        if name in _MACHINE_VARIABLES:
            return self.unknowns.mark(Unknown(f"${name}", f"--env {name}=…", plain=True))
        self.machine.looked_for(name)
        if name.isdigit():
            return self.unknowns.mark(Unknown(f"${name}", "--args", unset=True))
        if self.state.missing and not name.startswith("SLURM_"):
            files = ", ".join(self.state.missing[-2:])
            return self.unknowns.mark(
                Unknown(f"${name}, perhaps set in {files}, which is not there", f"--env {name}=…")
            )
        return self.unknowns.mark(Unknown(f"${name}", f"--env {name}=…", unset=True))

    def _values(self, name: str, subscript: str | None) -> list[str]:
        """Returns the elements of an array, or the one value of a variable; nothing when it is not set."""
        state = self.state
        if name in ("@", "*"):
            return list(state.positional)
        if name.isdigit():
            number = int(name[:6])
            if number == 0:
                return [state.script]
            return state.positional[number - 1 : number]
        special = {"#": str(len(state.positional)), "$": "4242", "!": "4243", "-": "hB"}
        if name in special:
            return [special[name]]
        if name == "?":
            return [self._status(self.machine.status)]
        if name == "PWD" and name not in state.variables:
            return [state.cwd]
        if name in ("BASH_SOURCE", "FUNCNAME"):
            return [state.script]
        value = state.variables.get(name, _BASH.get(name))
        if name == "PIPESTATUS":
            value = [self._status(verdict) for verdict in self.machine.piped]
        if value is None:
            return []
        if subscript in ("@", "*"):
            return list(value.values()) if isinstance(value, dict) else [value] if isinstance(value, str) else value[:]
        if subscript is None:
            if isinstance(value, dict):
                return [value["0"]] if "0" in value else []
            return [value] if isinstance(value, str) else value[:1]
        if isinstance(value, dict):
            key = words.joined(words.lex(subscript, self))
            if not is_known(key) and self.unknowns.as_shell(key) != key:
                return [self.unknowns.mark(*self.unknowns.within(key))]
            return [value[key]] if key in value else []
        items = [value] if isinstance(value, str) else value
        index = self.arithmetic(subscript) or ""
        if not is_known(index):
            return [self.unknowns.mark(*self.unknowns.within(index))]
        number = int(index)
        number = number + len(items) if number < 0 else number
        return items[number : number + 1]

    def _status(self, verdict: Verdict) -> str:
        return "0" if (verdict if isinstance(verdict, bool) else self.machine.decided(verdict)) else "1"

    def _arithmetic(self) -> Arithmetic:
        return Arithmetic(self.number, self.machine.writer(self.state), self._merge_marks)

    def _merge_marks(self, text: str) -> str:
        return self.unknowns.mark(*self.unknowns.within(text))

    # operators

    def _length(self, name: str, subscript: str | None, values: list[str]) -> str:
        if subscript in ("@", "*") or name in ("@", "*"):
            return str(len(values))
        text = values[0] if values else ""
        text = self.unknowns.as_shell(text)
        return str(len(text)) if is_known(text) else self.unknowns.mark(*self.unknowns.within(text))

    def _indirect(self, name: str, subscript: str | None, rest: str, inside: bool) -> list[Piece]:
        value = self.state.variables.get(name)
        if subscript in ("@", "*"):
            keys = list(value) if isinstance(value, dict) else [str(i) for i in range(len(value or ()))]
            return self._pieces(keys, inside=inside, star=subscript == "*")
        if rest in ("@", "*"):
            return self._pieces(
                [key for key in self.state.variables if key.startswith(name)], inside=inside, star=False
            )
        if name in self.state.variables.references:
            return [Piece(self.state.variables.target(name), quoted=inside)]
        target = self.unknowns.as_shell(self.text(name)) if not subscript else ""
        if not re.fullmatch(r"[A-Za-z_]\w*(\[[\w@*]+\])?|\d+", target):
            marks = self.unknowns.within(self.text(name)) or (Unknown("${!" + name + "}"),)
            return [Piece(self.unknowns.mark(*marks), quoted=inside)]
        return self.expand(target + rest, inside)

    def _pieces(self, values: list[str], *, inside: bool, star: bool) -> list[Piece]:
        if star and inside:
            return [Piece(str(self.state.variables.get("IFS", " "))[:1].join(values), quoted=True)]
        pieces: list[Piece] = []
        for number, value in enumerate(values):
            if number:
                pieces.append(Piece("", ends=True))
            pieces.append(Piece(value, quoted=inside, split=not inside))
        return pieces or [Piece("")]

    def _apply_operator(
        self, name: str, subscript: str | None, values: list[str], rest: str, *, inside: bool, many: bool, star: bool
    ) -> list[Piece]:
        operator = _OPERATOR.match(rest)
        if not operator:
            if not values and not many:
                values = [self._unset(name)]
            return self._pieces(values, inside=inside, star=star)
        sign, argument = operator[0], rest[operator.end() :]
        if sign[-1] in "-=?+" and sign not in ("@",):
            return self._apply_default(name, subscript, values, sign, argument, inside=inside, many=many, star=star)
        if not values and not many:
            values = [self._unset(name)]
        if sign == ":":
            return self._pieces(self._sliced(values, argument, many), inside=inside, star=star)
        return self._pieces([self._transformed(value, sign, argument) for value in values], inside=inside, star=star)

    def _unset(self, name: str) -> str:
        if "nounset" in self.state.options and name not in _MACHINE_VARIABLES and not self.state.missing:
            return self._required(name, "")
        return self.missing(name)

    def _required(self, name: str, message: str) -> str:
        """Returns the mark for a variable that a caller must set lest the script end (``set -u``, ``${x:?…}``)."""
        settle = "--args" if name.isdigit() else f"--env {name}=…"
        settle += f" ({message.strip()[:60]})" if message.strip() else ""
        value = self.unknowns.mark(Unknown(f"${name}", settle, filled=True))
        if not name.isdigit():
            self.state.set(name, value)
        return value

    def _apply_default(
        self, name: str, subscript: str | None, values: list[str], sign: str, argument: str, *,
        inside: bool, many: bool, star: bool,
    ) -> list[Piece]:  # fmt: skip
        text = self.unknowns.as_shell("".join(values))
        present = bool(values) and (bool(text) or not sign.startswith(":"))
        if not values and (self.state.missing or name in _MACHINE_VARIABLES) and not name.isdigit() and not many:
            return [Piece(self.missing(name), quoted=inside)]
        if sign[-1] == "+":
            return words.lex(argument, self, inside=inside) if present else [Piece("", quoted=False)]
        if present:
            return self._pieces(values, inside=inside, star=star)
        if sign[-1] == "?":
            return [
                Piece(self._required(name, self.unknowns.shown(words.joined(words.lex(argument, self)))), quoted=inside)
            ]
        pieces = [
            piece if piece.quoted or piece.ends else Piece(piece.text, split=True)
            for piece in words.lex(argument, self, inside=inside)
        ]
        self.machine.looked_for(name)
        if sign[-1] == "=" and subscript is None:
            self.state.set(name, words.joined(pieces))
        return pieces

    def _sliced(self, values: list[str], argument: str, many: bool) -> list[str]:
        first, _, length = argument.partition(":")
        start = self.arithmetic(first.strip() or "0") or "0"
        size = self.arithmetic(length) if length.strip() else None
        marks = [text for text in (start, size or "") if not is_known(text)]
        if marks:
            return [self.unknowns.mark(*self.unknowns.within("".join(marks)))]
        begin, count = int(start), None if size is None else int(size)
        if many:
            begin = max(0, begin - 1) if values == self.state.positional and begin > 0 else begin
            return values[begin:] if count is None else values[begin : begin + max(0, count)]
        return [self._substring(value, begin, count) for value in values]

    def _substring(self, value: str, begin: int, count: int | None) -> str:
        value = self.unknowns.as_shell(value)
        if not is_known(value):
            return self.unknowns.mark(*self.unknowns.within(value))
        if begin + len(value) < 0:
            return ""
        begin = begin + len(value) if begin < 0 else begin
        stop = None if count is None else (len(value) + count if count < 0 else begin + count)
        return value[begin:stop]

    def _transformed(self, value: str, sign: str, argument: str) -> str:
        if sign in ("^", "^^", ",", ",,"):
            change = str.upper if sign[0] == "^" else str.lower
            return change(value) if len(sign) == 2 else change(value[:1]) + value[1:]
        if sign == "@":
            first = value[:1].upper() + value[1:]
            return {"U": value.upper(), "L": value.lower(), "u": first, "Q": shlex.quote(value)}.get(argument, value)
        if sign[0] == "/":
            pattern, replacement = self._split_replacement(argument)
            return patterns.replace_in(value, pattern, replacement, how=sign)
        pattern = self.pattern(argument)
        if not is_known(value) and MARK.fullmatch(value) and not self.unknowns.as_shell(value):
            return value
        return patterns.stripped(value, pattern, sign)

    def _split_replacement(self, argument: str) -> tuple[str, str]:
        at = 0
        while at < len(argument) and argument[at] != "/":
            char = argument[at]
            at = words.quoted_end(argument, at) if char == '"' else at + 1 if char == "\\" else at
            at = words.closing(argument, at + 1) if char == "$" and argument[at + 1 : at + 2] in ("{", "(") else at
            at += 1
        return self.pattern(argument[:at]), words.joined(words.lex(argument[at + 1 :], self))

    def pattern(self, text: str) -> str:
        """Expands a word to a pattern in which quoted characters stand for themselves."""
        return "".join(
            re.sub(r"([*?\[\]\\()|])", r"\\\1", piece.text) if piece.quoted else piece.text
            for piece in words.lex(text, self)
        )
