"""Variables, arguments, functions and written files of a shell at one moment."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from projector.dataclass import dataclass

if TYPE_CHECKING:
    from projector.intake.shell.syntax import Source

#: A variable: text, an indexed array, or an associative one.
Value = str | list[str] | dict[str, str]


@dataclass(slots=True)
class State:
    """What a subshell copies. ``missing``: sourced files that are not there, which may have set anything."""

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    positional: list[str] = field(default_factory=list)
    functions: dict[str, tuple[Source, Any]] = field(default_factory=dict)
    script: str = ""
    cwd: str = "."
    missing: list[str] = field(default_factory=list)
    options: set[str] = field(default_factory=set)
    local: list[dict[str, Value | None]] = field(default_factory=list)

    def child(self) -> State:
        """A subshell: everything, changed apart."""
        made = copy.copy(self)
        made.variables = {
            name: (value if isinstance(value, str) else copy.copy(value)) for name, value in self.variables.items()
        }
        made.exported, made.positional = set(self.exported), list(self.positional)
        made.functions, made.missing = dict(self.functions), list(self.missing)
        made.options, made.local = set(self.options), [dict(frame) for frame in self.local]
        return made

    def process(self, script: str, positional: Sequence[str], extra: Mapping[str, str] | None = None) -> State:
        """A new program: what is exported, and its own arguments."""
        kept: dict[str, Value] = {
            name: value for name, value in self.variables.items() if name in self.exported and isinstance(value, str)
        }
        kept |= extra or {}
        return State(variables=kept, exported=set(kept), positional=list(positional), script=script, cwd=self.cwd)

    def environment(self) -> dict[str, str]:
        """Exported variables."""
        return {
            name: value for name, value in self.variables.items() if name in self.exported and isinstance(value, str)
        }

    def set(self, name: str, value: Value) -> None:
        """Assigns; the text of an array's name is its first element."""
        before = self.variables.get(name)
        if isinstance(value, str) and isinstance(before, list):
            before[:1] = [value]
            return
        self.variables[name] = value
        if "allexport" in self.options:
            self.exported.add(name)

    def set_element(self, name: str, key: str, value: str, *, append: bool = False) -> None:
        """Assigns one element; indices of an indexed array beyond its end append."""
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
