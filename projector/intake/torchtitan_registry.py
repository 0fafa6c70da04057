"""torchtitan's registries of configurations in Python (``config_registry.py``), of which ``--config`` names a function.

How they are made: pytorch/torchtitan@b5bcd76c torchtitan/config/manager.py, trainer.py, models/*/config_registry.py; the
program is read, not run. What its names mean: the table ``registry`` of ``dialects/torchtitan.yaml``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from projector.errors import InputError, Problem
from projector.intake.dialect import dialect
from projector.intake.named_models import flat
from projector.intake.values import program

_WORDS = dialect("torchtitan").tables["registry"]
_REGISTRY = re.compile(r"\bTrainer\.Config\b[\s\S]*\bmodel_registry\(")


def is_registry(text: str) -> bool:
    """Whether a text is Python that makes configurations of torchtitan's trainer."""
    return "def " in text and _REGISTRY.search(text) is not None


def settings(text: str, name: str, where: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """What function ``name`` of a registry states, as a job's file would (dotted keys), and what of it stays unread.

    Raises :class:`InputError` for a text that is no Python, a function that is not there, and a converter nobody knows.
    """
    tree = program(text, where)
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.args.args]
    functions = {node.name: node for node in made if node.returns and "Config" in ast.unparse(node.returns)}
    if name not in functions:
        raise InputError([Problem(where, "--config", name or "nothing", f"one of {', '.join(sorted(functions))}")])
    reading = _Reading(functions)
    try:
        stated = flat(reading.returned(name))
    except RecursionError:
        raise InputError([Problem(where, name, "expressions too deep to read", "settings that are literals")]) from None
    return _as_of_file(stated, reading.told, where), tuple(dict.fromkeys(reading.told))


class _Reading:
    """Functions that are read statement by statement; ``told``: source texts that nothing is made of."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self.told: list[str] = []
        self._functions, self._open, self._calls = functions, set[str](), 0

    def returned(self, name: str) -> dict[str, Any]:
        """The settings that a function returns, nested; empty for one that asks for itself, or after a thousand calls."""
        self._calls += 1
        if name in self._open or self._calls > 1000:
            self.told.append(f"{name}()")
            return {}
        self._open.add(name)
        known: dict[str, Any] = {}
        found: object = {}
        for each in self._functions[name].body:
            if isinstance(each, ast.Return) and each.value is not None:
                found = self._value(each.value, known, "")
            elif isinstance(each, ast.Assign) and len(each.targets) == 1:
                first, *path = ast.unparse(each.targets[0]).split(".")
                value = self._value(each.value, known, ".".join(path or [first]))
                at: Any = known
                for key in [first, *path][:-1]:
                    at = at.setdefault(key, {}) if isinstance(at, dict) else None
                if isinstance(at, dict):
                    at[[first, *path][-1]] = value
                else:
                    self.told.append(_short(each))
            elif not isinstance(each, ast.Assert | ast.Import | ast.ImportFrom) and not (
                isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            ):
                self.told.append(_short(each))
        self._open.discard(name)
        return found if isinstance(found, dict) else {}

    def _value(self, node: ast.expr, known: Mapping[str, Any], key: str) -> Any:
        if isinstance(node, ast.Name) and node.id in known:
            return known[node.id]
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(each, known, key) for each in node.elts]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in self._functions and not node.args and not node.keywords:
                return self.returned(called)
            if called.endswith("Config") or called in ("model_registry", "default_adamw"):
                given = {"flavor": self._value(node.args[0], known, key)} if node.args else {}
                lost = [*node.args[1:], *(each.value for each in node.keywords if not each.arg)]
                self.told += [f"{key} = {_short(each)}" for each in lost]
                inside = {
                    each.arg: self._value(each.value, known, f"{key}.{each.arg}".lstrip("."))
                    for each in node.keywords
                    if each.arg
                }
                return {**given, **inside, "": called.removesuffix(".Config")}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = [self._value(side, known, key) for side in (node.left, node.right)]
            if all(type(side) is int and abs(side) < 2**40 for side in sides):
                return sides[0] * sides[1]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError):
            if key.partition(".")[0] not in _WORDS["calm"]:
                self.told.append(f"{key} = {_short(node)}")
            return None


def _as_of_file(stated: Mapping[str, Any], told: list[str], where: str) -> dict[str, object]:
    found: dict[str, object] = {"activation_checkpoint.selective_ac_option": "op"}  # the only one since 2026
    for key, value in stated.items():
        section, _, last = key.rpartition(".")
        if last in ("converters", "model_converters") and isinstance(value, list):
            found |= _converters(value, _WORDS["converters"], where)
        elif last == "":
            if section == "activation_checkpoint" and value != "ActivationCheckpointConfig":
                found["activation_checkpoint.mode"] = _WORDS["checkpoints"].get(value, value)
            elif section in ("loss", "optimizer", "dataloader") and value not in _WORDS["plain"]:
                told.append(f"{section} = {value}")
        elif value is None:
            if key == "activation_checkpoint":
                found["activation_checkpoint.mode"] = "none"
        else:
            renamed = _WORDS["names"].get(key) or key.replace("model_spec.", "model.", 1)
            found[renamed] = value
    return found


def _converters(made: list[Any], known: Mapping[str, str], where: str) -> dict[str, object]:
    found: dict[str, object] = {"model.converters": []}
    for each in made:
        name = each.get("", "") if isinstance(each, dict) else ""
        if name not in known:
            raise InputError([Problem(where, "converters", name or each, f"one of {', '.join(known)}")])
        found["model.converters"] = [*found["model.converters"], known[name]]  # type: ignore[misc]
        found |= {f"{known[name]}.{key}": value for key, value in each.items() if key and value is not None}
        if "grouped_mm" in known[name]:
            found.setdefault(f"{known[name]}.fqns", ["experts"])
    return found


def _short(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:80]
