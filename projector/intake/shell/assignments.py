"""Evaluates ``x=…``, ``x+=…``, arrays, and ``export``, ``local``, ``declare``, ``readonly``."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from projector.intake.shell.control import Unreadable
from projector.intake.shell.state import State, Value
from projector.intake.shell.syntax import Source, adjacent, text_of
from projector.intake.shell.unknown import MARK, is_known

if TYPE_CHECKING:
    from tree_sitter import Node

    from projector.intake.shell.conditions import Verdict
    from projector.intake.shell.machine import Machine

_HEAD = re.compile(r"([A-Za-z_]\w*)(\[(?:[^\[\]]|\[[^\]]*\])*\])?(\+?=)", re.DOTALL)


def assign(machine: Machine, source: Source, node: Node, state: State) -> Verdict:
    """Evaluates one assignment node of the syntax tree; its status is that of the last ``$(…)`` in it."""
    machine.substituted = True
    array = next((child for child in node.children if child.type == "array"), None)
    text = text_of(source, node)
    head = _HEAD.match(text)
    if head is None:
        return True
    if array is None:
        assign_text(machine, text, state)
        return machine.substituted
    items = [child for child in array.children[1:-1] if child.type not in ("comment", "\n")]
    _assign_array(machine, head[1], head[3] == "+=", adjacent(source, items), state)
    return machine.substituted


def assign_text(machine: Machine, text: str, state: State) -> None:
    """Evaluates ``name=value``, ``name+=value`` or ``name[key]=value``; the value is one unexpanded word of the script."""
    head = _HEAD.match(text)
    if head is None:
        return
    name, subscript, append = head[1], head[2], head[3] == "+="
    value = machine.single(text[head.end() :], state)
    if subscript:
        key = machine.single(subscript[1:-1], state)
        if not isinstance(state.variables.get(name), dict):
            key = machine.parameters(state).arithmetic(key) or "0"
        state.set_element(name, key, value, append=append)
        return
    if not is_known(value):
        value = _caller_value(machine, name, value, state)
    before = state.variables.get(name, "")
    if append and isinstance(before, str):
        added = machine.parameters(state).arithmetic(f"({before or 0})+({value})") or value
        value = added if f"integer {name}" in state.options else before + value
    elif append and isinstance(before, list):
        value = (before[0] if before else "") + value
    elif f"integer {name}" in state.options:
        value = machine.parameters(state).arithmetic(value) or value
    state.set(name, value)


def _caller_value(machine: Machine, name: str, value: str, state: State) -> str:
    """Replaces a value that only a run knows by the caller's for ``name``, else by a mark which ``--env name=…`` settles."""
    items = machine.unknowns.within(value)
    if MARK.sub("", value) or any(item.unset or item.settle or item.plain for item in items):
        return value
    given = state.variables.get(name)
    if name in machine.given and isinstance(given, str) and is_known(given):
        return given
    return machine.unknowns.mark(*(dataclasses.replace(item, settle=f"--env {name}=…") for item in items))


def _assign_array(machine: Machine, name: str, append: bool, texts: list[str], state: State) -> None:
    before = state.variables.get(name)
    keyed = isinstance(before, dict)
    items: list[str] = []
    pairs: dict[str, str] = {}
    for text in texts:
        match = re.match(r"\[(.+?)\]=", text, re.DOTALL)
        if match:
            pairs[machine.single(match[1], state)] = machine.single(text[match.end() :], state)
        else:
            items += machine.fields(text, state)
    if keyed or (pairs and not all(key.isdigit() for key in pairs)):
        state.variables[name] = {**(before if append and isinstance(before, dict) else {}), **pairs}
        return
    old = list(before) if isinstance(before, list) else [before] if isinstance(before, str) else []
    elements: Value = [*(old if append else []), *items]
    state.variables[name] = elements
    for key, value in pairs.items():
        state.set_element(name, key, value)


def declare(machine: Machine, source: Source, node: Node, state: State) -> bool:
    """Evaluates ``export``, ``local``, ``declare``, ``typeset`` and ``readonly``, with or without values."""
    kind = node.children[0].type
    flags = ""
    for child in node.children[1:]:
        text = text_of(source, child)
        if child.type == "variable_assignment":
            name = text_of(source, child.children[0]).partition("[")[0]
            if "n" in flags and kind != "export":
                _refer(machine, source, node, name, text.partition("=")[2], state)
                continue
            _apply_flags(kind, flags, name, state)
            assign(machine, source, child, state)
            _export(kind, flags, name, state)
        elif text.startswith("-") and child.type in ("word", "number"):
            flags += text
        elif child.type not in ("comment", ";"):
            for word in machine.fields(text, state):
                if "n" in flags and kind != "export":
                    name, _, target = word.partition("=")
                    _refer(machine, source, node, name, target, state)
                else:
                    _declare_word(kind, flags, word, state)
    return True


def _refer(machine: Machine, source: Source, node: Node, name: str, text: str, state: State) -> None:
    """Makes ``name`` another name of the variable that ``text`` names, until the function returns that says so."""
    target = machine.single(text, state)
    if not re.fullmatch(r"[A-Za-z_]\w*", target) or state.variables.target(target) == name:
        raise Unreadable(source.where, source.line(node), text_of(source, node), "the variable by its own name")
    state.variables.references[name] = target


def _declare_word(kind: str, flags: str, word: str, state: State) -> None:
    name, equals, value = word.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        return
    _apply_flags(kind, flags, name, state)
    if equals:
        state.set(name, value)
    elif kind in ("local", "declare", "typeset") and "A" in flags:
        state.variables[name] = {}
    elif kind in ("local", "declare", "typeset") and "a" in flags:
        state.variables[name] = []
    elif kind == "local":
        state.variables[name] = ""
    _export(kind, flags, name, state)


def _apply_flags(kind: str, flags: str, name: str, state: State) -> None:
    if kind in ("local", "declare", "typeset") and state.local and "g" not in flags:
        state.local[-1].setdefault(name, state.variables.get(name))
        if kind == "local" or "A" in flags:
            state.variables.pop(name, None)
    if "A" in flags and not isinstance(state.variables.get(name), dict):
        state.variables[name] = {}
    if "i" in flags:
        state.options.add(f"integer {name}")


def _export(kind: str, flags: str, name: str, state: State) -> None:
    if kind == "export" or "x" in flags:
        if "n" in flags:
            state.exported.discard(name)
        else:
            state.exported.add(name)
