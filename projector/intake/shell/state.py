"""Holds the variables, arguments, functions and options of a shell at one moment."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from projector.dataclass import dataclass

if TYPE_CHECKING:
    from projector.intake.shell.syntax import Source

#: A variable: text, an indexed array, or an associative one.
Value = str | list[str] | dict[str, str]


class Variables(dict[str, Value]):
    """Variables by name; ``references``: names that ``declare -n`` makes another's."""

    def __init__(self, given: Mapping[str, Value] | None = None, references: Mapping[str, str] | None = None) -> None:
        super().__init__(given or {})
        self.references = dict(references or {})

    def target(self, name: str) -> str:
        """Returns the name of the variable that ``name`` stands for: mostly itself."""
        for _ in self.references:
            name = self.references.get(name, name)
        return name

    def __getitem__(self, name: str) -> Value:
        return super().__getitem__(self.target(name))

    def __setitem__(self, name: str, value: Value) -> None:
        super().__setitem__(self.target(name), value)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(self.target(str(name)))

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of ``name``, ``default`` where it is not set."""
        return super().get(self.target(name), default)

    def pop(self, name: str, default: Any = None) -> Any:
        """Takes ``name`` away, and returns its value."""
        return super().pop(self.target(name), default)


@dataclass(slots=True)
class State:
    """The state of one shell. ``missing``: sourced files that are not there and may have set anything; ``local``: for each
    running function, the outer values of its local variables (None: not set)."""

    variables: Variables = field(default_factory=Variables)
    exported: set[str] = field(default_factory=set)
    positional: list[str] = field(default_factory=list)
    functions: dict[str, tuple[Source, Any]] = field(default_factory=dict)
    script: str = ""
    cwd: str = "."
    missing: list[str] = field(default_factory=list)
    options: set[str] = field(default_factory=set)
    local: list[dict[str, Value | None]] = field(default_factory=list)

    def child(self) -> State:
        """Returns a copy for a subshell, whose changes do not reach this state."""
        copied = copy.copy(self)
        held = {name: (value if isinstance(value, str) else copy.copy(value)) for name, value in self.variables.items()}
        copied.variables = Variables(held, self.variables.references)
        copied.exported, copied.positional = set(self.exported), list(self.positional)
        copied.functions, copied.missing = dict(self.functions), list(self.missing)
        copied.options, copied.local = set(self.options), [dict(frame) for frame in self.local]
        return copied

    def process(self, script: str, positional: Sequence[str], extra: Mapping[str, str] | None = None) -> State:
        """Returns the state of a new program ``script``: exported variables, ``extra`` ones, and its own arguments."""
        env: dict[str, Value] = {
            name: value for name, value in self.variables.items() if name in self.exported and isinstance(value, str)
        }
        env |= extra or {}
        functions = {name: body for name, body in self.functions.items() if name in self.exported}
        exported = {*env, *functions}
        return State(Variables(env), exported, list(positional), functions, script=script, cwd=self.cwd)

    def environment(self) -> dict[str, str]:
        """Returns the exported variables that hold text."""
        return {
            name: value for name, value in self.variables.items() if name in self.exported and isinstance(value, str)
        }

    def set(self, name: str, value: Value) -> None:
        """Assigns ``value`` to ``name``; a text assigned to an indexed array becomes its first element."""
        before = self.variables.get(name)
        if isinstance(value, str) and isinstance(before, list):
            before[:1] = [value]
            return
        self.variables[name] = value
        if "allexport" in self.options:
            self.exported.add(name)

    def export(self, name: str, value: Value) -> None:
        """Assigns ``value`` to ``name`` for the programs that the shell starts, too."""
        self.set(name, value)
        self.exported.add(name)

    def restore(self, before: Mapping[str, Value | None]) -> None:
        """Gives variables the values that they had ``before`` (None: not set)."""
        for name, value in before.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    def set_element(self, name: str, key: str, value: str, *, append: bool = False) -> None:
        """Assigns one element of an array; an indexed array grows to the index, and appends where ``key`` is no number."""
        before = self.variables.get(name)
        if isinstance(before, dict):
            before[key] = before.get(key, "") + value if append else value
            return
        items = before if isinstance(before, list) else [] if before is None else [before]
        index = int(key) if key.lstrip("-").isdigit() and len(key) < 6 else len(items)
        index = index + len(items) if index < 0 else index
        while len(items) <= index < 100_000:
            items.append("")
        items[index] = items[index] + value if append else value
        self.variables[name] = items

    def unset_element(self, name: str, key: str) -> None:
        """Takes one element out of an array; those behind it close up, as a loop over all of them sees it."""
        held = self.variables.get(name)
        if isinstance(held, dict):
            held.pop(key.strip("'\""), None)
        elif isinstance(held, list) and re.fullmatch(r"-?\d{1,5}", key) and -len(held) <= int(key) < len(held):
            del held[int(key)]
