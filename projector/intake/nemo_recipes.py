"""Reads NeMo 2 recipes by the name of their factory: ``nemo llm pretrain --factory NAME`` with settings behind it, or Python
that calls ``llm.NAME.pretrain_recipe(…)`` and changes it. Contents of recipes: ``tables/nemo_recipes.yaml``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from projector.errors import InputError, Problem, Unsupported
from projector.intake.assemble import Origin, assemble
from projector.intake.config_cli import put, stated_words
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.settings import Settings
from projector.intake.shell.launch import Launch, Way
from projector.intake.tables import table
from projector.intake.values import program
from projector.workload import zoo
from projector.workload.model import Model

_table = partial(table, "nemo_recipes")
_RECIPE = re.compile(r"\b\w+\.(?:pretrain|finetune)_recipe\(")
_CALLED = ("pretrain_recipe", "finetune_recipe")


def arguments_of(factory: str) -> dict[str, Any]:
    """Returns the Megatron-LM arguments of a factory's pretraining recipe, hosts as ``nodes``; empty without a recipe."""
    if factory not in _table("pretrain"):
        return {}
    sizes = dict(zip(_table("columns").split(), _table("pretrain")[factory], strict=True))
    experts = _table("experts") if zoo.load(model_of(factory)).moe else {}
    return {**_table("common"), **experts, **sizes, **_table("beside").get(factory, {})}


def recompute_of(model: str) -> dict[str, Any]:
    """Returns what NeMo 2's recipe of a zoo model recomputes; empty without a recipe."""
    factory = next((name for name in _table("pretrain") if model_of(name) == model), "")
    return {name: value for name, value in arguments_of(factory).items() if name.startswith("recompute_")}


def model_of(factory: str) -> str:
    """Returns the zoo's name of a factory's model: ``qwen25_1p5b`` is Qwen2.5-1.5B."""
    named = re.sub(r"^(llama|qwen)([23])(\d)_", r"\1\2.\3_", re.sub(r"(\d)p(\d)", r"\1.\2", factory))
    return str(_table("names").get(factory) or zoo.named(named) or factory)


def takes(launch: Launch) -> bool:
    """Returns whether ``launch`` is NeMo 2's command line."""
    return launch.program.rpartition("/")[2] == "nemo" and launch.arguments[:1] == ("llm",)


def load(launch: Launch, way: Way, where: str, model: Model | None, _gpus_given: bool) -> Loaded:
    """Returns the workload of a command line, which states its own number of GPUs. Raises :class:`InputError` for an unknown
    factory, :class:`Unsupported` for fine-tuning."""
    _, kind, *words = launch.arguments
    words = [word for word in words if word not in ("-y", "--yes")]
    factory = next((b for a, b in zip(words, [*words[1:], ""], strict=True) if a == "--factory"), "")
    rest = [word for word in words if word not in ("--factory", factory)]
    content: dict[str, Any] = {}
    for key, value in stated_words(rest, way, where, bool).items():
        put(content, key.split("."), value)
    call = _call(factory)
    given = {} if call is None else {each.arg: _literal(each.value) for each in call.keywords if each.arg}
    return _build(factory.partition("(")[0], kind, {**given, **content}, where, model)


def _call(text: str) -> ast.Call | None:
    try:
        parsed = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return parsed if isinstance(parsed, ast.Call) else None


def is_recipe(text: str) -> bool:
    """Returns whether ``text`` is Python that calls a recipe of NeMo 2."""
    return _RECIPE.search(text) is not None


def of_python(text: str, where: str, model: Model | None) -> Loaded:
    """Returns the workload of a program with one recipe and literal changes to it; other changes are listed as not modelled.
    Raises as :func:`load`."""
    tree = program(text, where)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _kind(node)]
    if len(calls) != 1:
        raise InputError([Problem(where, "", f"{len(calls)} recipes", "one call of pretrain_recipe")])
    content: dict[str, Any] = {each.arg: _literal(each.value) for each in calls[0].keywords if each.arg}
    for path, value in _assigned(tree):
        put(content, path, value)
    return _build(ast.unparse(calls[0].func).split(".")[-2], _kind(calls[0]), content, where, model)


def _kind(call: ast.Call) -> str:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return called.removesuffix("_recipe") if called in _CALLED else ""


def _assigned(tree: ast.AST) -> Iterator[tuple[list[str], object]]:
    """Yields (path behind the first name, value) of each assignment to an attribute; in a branch the source text."""
    sure = {id(each) for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef) for each in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            path = ast.unparse(node.targets[0]).split(".")[1:]
            yield path, _literal(node.value) if id(node) in sure else ast.unparse(node.value)


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return ast.unparse(node)


def _build(factory: str, kind: str, content: Mapping[str, Any], where: str, model: Model | None) -> Loaded:
    recipe = arguments_of(factory)
    if not recipe:
        expected = f"a factory that is known: {', '.join(_table('pretrain'))}"
        raise InputError([Problem(where, "factory", factory or "nothing", expected)])
    if kind != "pretrain":
        raise Unsupported(f"{where}: nemo llm {kind}: a fine-tuning, on samples of lengths that nothing states")
    job = Settings(dialect("nemo2"), content, where)
    nodes, each = job.args.integer("num_nodes") or recipe.pop("nodes"), job.args.integer("devices", "num_gpus_per_node")
    doubts = tuple(job.doubtful())
    taken = {*job.args.used, *job.dialect.deciding, *(text.partition("=")[0] for text in doubts)}
    left = {name: value for name, value in job.stated.items() if name not in taken}
    calm = job.unread(written=True)
    stated = {name: value for name, value in job.fields.items() if value is not None}
    args = {**recipe, **{k: v for k, v in left.items() if k not in calm.neutral}, **stated}
    args = {name: value for name, value in args.items() if name != "nodes" and value is not None}
    base = model or zoo.load(model_of(factory))
    gpus = nodes * (each or 8)
    origin = Origin(where=where, name=base.name, base=base, framework="nemo")
    loaded = assemble({**args, "world_size": gpus}, origin)
    assumed = (
        f"gpus={gpus} ({nodes} nodes × {each or 8})",
        f"the rest of the recipe {factory} (NeMo 2, September 2025)",
    )
    ignored = (*loaded.ignored, *calm.neutral)
    return replace(
        loaded, assumed=(*assumed, *loaded.assumed), ignored=ignored, unmodelled=(*loaded.unmodelled, *doubts)
    )
