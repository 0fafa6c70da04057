"""One door for every configuration file: what stands in a file, not what it is called, decides how it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem
from projector.workload import zoo
from projector.workload.loaders import case, huggingface, megatron_args, primus
from projector.workload.loaders.assemble import Origin, assemble
from projector.workload.loaders.loaded import Loaded
from projector.workload.model import Model

__all__ = ["KINDS", "kind_of", "load", "load_model"]

#: What :func:`load` understands, in words for messages.
KINDS = (
    "a Primus experiment (modules: …), a case (model: …, recipe: …), "
    "or Megatron-LM arguments (a log, a mapping, a launch script)"
)
_PRIMUS = ("modules", "work_group", "exp_name")
_HUGGINGFACE = ("model_type", "architectures", "text_config")
#: Any of these makes a mapping one of Megatron-LM arguments.
_MEGATRON = (
    *("num_layers", "hidden_size", "seq_length", "micro_batch_size", "global_batch_size"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "MODEL_ARGS", "args"),
)
_MAPPING_LINE = re.compile(r"\s*(?:(?:#.*|---.*)?\n\s*)*(?:\{|[\"']?[A-Za-z_][\w-]*[\"']?\s*:(?:\s|$))")
_YAML_SUFFIXES = (".yaml", ".yml", ".json")


def load(path: str | Path, *, configs: str | Path | None = None, model: str | None = None) -> Loaded:
    """The workload of a configuration file of any kind.

    ``configs``: the configs folder of Primus, for its presets. ``model``: a zoo name or a Hugging Face ``config.json``
    that stands in for the architecture of the file. Raises :class:`InputError` with every mistake of the file, also
    for an architecture alone, which says nothing about how it is trained.
    """
    file = Path(path)
    chosen = load_model(model) if model else None
    if file.is_dir() and (file / "config.json").is_file():
        file = file / "config.json"
    text = _text(file)
    mapping = _mapping(text, file)
    kind = kind_of(mapping)
    if configs is not None and kind != "primus":
        raise InputError([Problem(str(file), "", f"{configs} as the configs folder", "a Primus experiment to use it")])
    if kind == "primus":
        loaded = primus.load(file, configs=configs)
        return replace(loaded, model=chosen) if chosen else loaded
    if kind == "case" and mapping is not None:
        return case.from_mapping(mapping, file, model=chosen)
    if kind == "huggingface":
        raise InputError([Problem(str(file), "recipe", "nothing: an architecture alone", _recipe_missing(file))])
    return _megatron(text, mapping, file, chosen)


def load_model(name: str) -> Model:
    """The architecture of a zoo name or a Hugging Face ``config.json`` (or its folder). Raises :class:`InputError`."""
    if name in zoo.names():
        return zoo.load(name)
    if name.endswith(".json") or Path(name).is_dir():
        return huggingface.load(name).model
    raise InputError([Problem("model", "", name, f"{zoo.expected(name)}; or a Hugging Face config.json")])


def kind_of(mapping: Mapping[str, object] | None) -> str:
    """``primus``, ``case``, ``huggingface`` or ``megatron``, by the keys at the top of a file (None: no mapping)."""
    if mapping is None:
        return "megatron"
    for kind, keys in (("primus", _PRIMUS), ("huggingface", _HUGGINGFACE), ("case", ("recipe",))):
        if any(key in mapping for key in keys):
            return kind
    return "case" if "model" in mapping and not _names(mapping) & set(_MEGATRON) else "megatron"


def _names(mapping: Mapping[str, object]) -> set[str]:
    """Keys as argument names: options may be written with their dashes."""
    return {key.lstrip("-").replace("-", "_") for key in mapping}


def _recipe_missing(file: Path) -> str:
    return f"a training configuration: give one with --config, and this file with --model {file}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError([Problem(str(file), "", error.strerror or str(error), "a readable file")]) from None


def _mapping(text: str, file: Path) -> dict[str, object] | None:
    """The mapping at the top of a YAML or JSON file; None for other text. A broken one is an error by its suffix."""
    import yaml

    named = file.suffix.lower() in _YAML_SUFFIXES
    if not named and not _MAPPING_LINE.match(text):
        return None
    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if not named:
            return None
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "this text"
        detail = getattr(error, "problem", None) or "broken"
        raise InputError([Problem(str(file), place, detail, "valid YAML or JSON")]) from None
    if isinstance(content, Mapping):
        return {str(key): value for key, value in content.items()}
    if named:
        found = "an empty file" if content is None else type(content).__name__
        raise InputError([Problem(str(file), "", found, f"a mapping: {KINDS}")])
    return None


def _megatron(text: str, mapping: Mapping[str, object] | None, file: Path, model: Model | None) -> Loaded:
    if mapping is not None and not _names(mapping) & set(_MEGATRON):
        keys = ", ".join(list(mapping)[:6]) or "no keys"
        raise InputError([Problem(str(file), "", keys, KINDS)])
    args = megatron_args.parse(text)
    if not args:
        raise InputError([Problem(str(file), "", "nothing that states a run", KINDS)])
    if model is None:
        return megatron_args.from_mapping(args, str(file), name=file.stem)
    return assemble(args, Origin(where=str(file), name=model.name, base=model))
