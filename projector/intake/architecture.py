"""Reads an architecture alone, apart from training configurations, which import far more readers."""

from __future__ import annotations

from pathlib import Path

from projector.errors import InputError, Problem
from projector.intake.loaded import Loaded
from projector.io.documents import parse_yaml
from projector.io.files import read_text
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.schema import parse_model


def load_architecture(name: str) -> Loaded:
    """Returns the model of a zoo name, a Hugging Face ``config.json`` (or its folder), or a YAML file of model fields (at
    the top, or under ``model``). Raises :class:`InputError`."""
    if name in zoo.names():
        return Loaded(model=zoo.load(name))
    if name.endswith(".json") or Path(name).is_dir():
        from projector.intake import huggingface

        return huggingface.load(name)
    if name.endswith((".yaml", ".yml")):
        return Loaded(model=_described(Path(name)))
    if found := zoo.named(name):
        return Loaded(model=zoo.load(found))
    expected = f"{zoo.expected(name)}; or a Hugging Face config.json, or a YAML file"
    raise InputError([Problem("model", "", name, expected)])


def _described(file: Path) -> Model:
    mapping = parse_yaml(read_text(file), str(file))
    inner = mapping.get("model") if isinstance(mapping, dict) else None
    model, problems = parse_model(mapping if inner is None else inner, str(file), "" if inner is None else "model.")
    if model is None:
        raise InputError(problems)
    return model
