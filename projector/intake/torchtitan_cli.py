"""Reads torchtitan's command line: a TOML file, or a function of a registry in Python (``config_registry.py``), and words
``--section.key value`` over it. :mod:`projector.intake.torchtitan` reads the file itself.

Registries: pytorch/torchtitan@b5bcd76c torchtitan/config/manager.py, trainer.py, models/*/config_registry.py; the
program is read, not run. What its names mean: the table ``registry`` of ``dialects/torchtitan.yaml``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, raise_all
from projector.intake import torchtitan
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.named_models import flat
from projector.intake.script_files import options
from projector.intake.shell.unknown import Unknowns, is_known
from projector.intake.values import literal, program
from projector.workload.model import Model

_WORDS = dialect("torchtitan").tables["registry"]
_REGISTRY = re.compile(r"\bTrainer\.Config\b[\s\S]*\bmodel_registry\(")


def is_registry(text: str) -> bool:
    """Returns whether ``text`` is Python that builds configurations of torchtitan's trainer."""
    return "def " in text and _REGISTRY.search(text) is not None


def stated_by(text: str, name: str, where: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Returns the settings of function ``name`` of a registry by dotted keys, as a job's file has them, and unread parts.

    Raises :class:`InputError` for a text that is no Python, a function that is not there, and a converter nobody knows.
    """
    tree = program(text, where)
    candidates = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.args.args]
    functions = {node.name: node for node in candidates if node.returns and "Config" in ast.unparse(node.returns)}
    if name not in functions:
        raise InputError([Problem(where, "--config", name or "nothing", f"one of {', '.join(sorted(functions))}")])
    reading = _Reading(functions)
    try:
        stated = flat(reading.returned(name))
    except RecursionError:
        raise InputError([Problem(where, name, "expressions too deep to read", "settings that are literals")]) from None
    return _as_of_file(stated, reading.told, where), tuple(dict.fromkeys(reading.told))


class _Reading:
    """Reads functions of a registry statement by statement; ``told``: source texts that were not understood."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self.told: list[str] = []
        self._functions, self._open, self._calls = functions, set[str](), 0

    def returned(self, name: str) -> dict[str, Any]:
        """Returns the nested settings that function ``name`` returns; empty for recursion or after a thousand calls."""
        self._calls += 1
        if name in self._open or self._calls > 1000:
            self.told.append(f"{name}()")
            return {}
        self._open.add(name)
        known: dict[str, Any] = {}
        settings: object = {}
        for each in self._functions[name].body:
            if isinstance(each, ast.Return) and each.value is not None:
                settings = self._value(each.value, known, "")
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
        return settings if isinstance(settings, dict) else {}

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
    settings: dict[str, object] = {"activation_checkpoint.selective_ac_option": "op"}  # the only one since 2026
    for key, value in stated.items():
        section, _, last = key.rpartition(".")
        if last in ("converters", "model_converters") and isinstance(value, list):
            settings |= _converters(value, _WORDS["converters"], where)
        elif last == "":
            if section == "activation_checkpoint" and value != "ActivationCheckpointConfig":
                settings["activation_checkpoint.mode"] = _WORDS["checkpoints"].get(value, value)
            elif section in ("loss", "optimizer", "dataloader") and value not in _WORDS["plain"]:
                told.append(f"{section} = {value}")
        elif value is None:
            if key == "activation_checkpoint":
                settings["activation_checkpoint.mode"] = "none"
        else:
            renamed = _WORDS["names"].get(key) or key.replace("model_spec.", "model.", 1)
            settings[renamed] = value
    return settings


def _converters(converters: list[Any], known: Mapping[str, str], where: str) -> dict[str, object]:
    settings: dict[str, object] = {"model.converters": []}
    for each in converters:
        name = each.get("", "") if isinstance(each, dict) else ""
        if name not in known:
            raise InputError([Problem(where, "converters", name or each, f"one of {', '.join(known)}")])
        settings["model.converters"] = [*settings["model.converters"], known[name]]  # type: ignore[misc]
        settings |= {f"{known[name]}.{key}": value for key, value in each.items() if key and value is not None}
        if "grouped_mm" in known[name]:
            settings.setdefault(f"{known[name]}.fqns", ["experts"])
    return settings


def _short(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:80]


CONFIG_FILE = "job.config_file"


def is_torchtitan(program: str, words: Sequence[str]) -> bool:
    """Returns whether a launch starts torchtitan, by its program or its options."""
    return "torchtitan" in program or any(word.partition("=")[0] == f"--{CONFIG_FILE}" for word in words)


def load(
    words: Sequence[str],
    unknowns: Unknowns,
    where: str,
    *,
    text: str | None,
    gpus: int | None,
    model: Model | None,
    registry: str | None = None,
) -> Loaded:
    """Returns the workload of a command line whose TOML file holds ``text``, or whose Python registry holds ``registry``
    (None: not at hand).

    Raises :class:`InputError` with everything that does not fit or is not known.
    """
    stated = _options(words)
    program = _model_of_registry(stated) if text is None else None
    if text is None and program is None and registry is None:
        found = unknowns.shown(str(stated.get(CONFIG_FILE) or "no --job.config_file"))
        expected = "that TOML file beside the script, or --module NAME --config NAME_FLAVOR of a registry in Python"
        raise InputError([Problem(where, "the job's configuration", found, expected)])
    content = program if text is None else torchtitan.parse(text, where, str(stated.get(CONFIG_FILE)))
    told = tuple(f"{word} (behind --{name})" for name, values in options(words).items() for word in values[1:])
    if text is None and registry is not None:
        registered, unread = stated_by(registry, str(stated.get("config", "")), where)
        program = content = {"model.name": str(stated.get("module", "")).rpartition(".")[2], **registered}
        told += unread
    settings = {**flat(content or {}), **stated}
    open_ = {key: value for key, value in settings.items() if isinstance(value, str) and not is_known(value)}
    problems = [
        Problem(where, key, "; ".join(str(item) for item in unknowns.within(value)), "--env or --args for it")
        for key, value in open_.items()
        if re.match(r"training\.(local_|global_)?(batch|seq)|parallelism|model\.|activation|compile", key)
    ]
    raise_all(problems)
    known = {key: value for key, value in settings.items() if key not in open_}
    if not program:
        loaded = torchtitan.load(known, where, gpus=gpus, model=model)
        return replace(loaded, unmodelled=(*told, *loaded.unmodelled))
    known.pop("module"), known.pop("config")
    loaded = torchtitan.load(known, where, gpus=gpus, model=model)
    if registry is None:
        told += (f"what --config {stated['config']} states in Python beside the line (torchtitan's defaults stand in)",)
    return replace(loaded, unmodelled=(*told, *loaded.unmodelled))


def registries(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the paths at which the registry of ``--module`` may lie: in torchtitan's tree, or beside the script."""
    module = str(_options(words).get("module", "")).replace(".", "/")
    folders = (module, f"torchtitan/models/{module}", f"torchtitan/experiments/{module}", ".") if module else ()
    return tuple(f"{folder}/config_registry.py" for folder in folders)


def of_registry(text: str, file: Path, args: Sequence[str], gpus: int | None, model: Model | None) -> Loaded:
    """Returns the workload of the registry function that ``args`` name (``--config NAME --section.key value``). Raises as
    :func:`load`."""
    if "config" not in _options(args):
        stated_by(text, "", str(file))
    words = ("--module", file.resolve().parent.name, *args)
    return load(words, Unknowns(), str(file), text=None, gpus=gpus, model=model, registry=text)


def _model_of_registry(stated: Mapping[str, object]) -> dict[str, object] | None:
    """Returns the model and flavor in the name of a registry's function: ``--module torchtitan.models.deepseek_v3 --config
    deepseek_v3_671b`` (pytorch/torchtitan torchtitan/config/manager.py: ``MODULE.config_registry.CONFIG``); None without
    a function."""
    module, config = str(stated.get("module", "")).rpartition(".")[2], str(stated.get("config", ""))
    flavor = config.removeprefix(f"{module}_")
    if not module or flavor == config:
        return None
    return {"model.name": module, "model.flavor": flavor.upper() if flavor[:1].isdigit() else flavor}


def _options(words: Sequence[str]) -> dict[str, object]:
    named = {name.replace("-", "_"): values for name, values in options(words).items()}
    return {
        name: True if not values else literal(values[0]) if is_known(values[0]) else values[0]
        for name, values in named.items()
    }
