"""Architectures from Hugging Face ``config.json``: field names of the transformers library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from projector.errors import InputError, Problem, nearest
from projector.workload.loaders.huggingface_types import MODEL_TYPES
from projector.workload.loaders.loaded import Loaded
from projector.workload.loaders.values import Reader
from projector.workload.model_schema import model_from_mapping

__all__ = ["from_mapping", "load"]

_Fields = Callable[[Reader], dict[str, object]]


def load(path: str | Path, *, name: str | None = None) -> Loaded:
    """Read a ``config.json`` (or the folder that holds one). Raises :class:`InputError` with everything wrong with it.

    An architecture that is not known is an error that names the known ones; a known one with parts that nothing here
    lowers is a model whose ``unsupported`` says so.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    where = str(file)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError([Problem(where, "", error.strerror or str(error), "a readable file")]) from None
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(where, "", "not JSON", str(error))]) from None
    if not isinstance(content, Mapping):
        raise InputError([Problem(where, "", type(content).__name__, "an object")])
    return from_mapping(content, where, name=name or (file.parent.name if file.name == "config.json" else file.stem))


def from_mapping(config: Mapping[str, object], where: str, *, name: str = "") -> Loaded:
    """The model of a configuration object; of a multimodal one, its language model (``text_config``)."""
    inner = config.get("text_config")
    outer_type = str(config.get("model_type", ""))
    text = {**inner} if isinstance(inner, Mapping) else dict(config)
    kind = str(text.get("model_type") or outer_type)
    reader_of = MODEL_TYPES.get(kind) or MODEL_TYPES.get(outer_type)
    if reader_of is None:
        expected = f"an architecture that is known; {nearest(kind, tuple(MODEL_TYPES))}"
        raise InputError([Problem(where, "model_type", kind or "nothing", expected)])
    reader = Reader(text)
    fields = reader_of(reader)
    fields |= {"name": name or kind, "family": kind.removesuffix("_text"), "source": f"{where}"}
    stated = {key: value for key, value in fields.items() if value is not None}
    problems = [Problem(where, key, value, expected) for key, value, expected in reader.problems]
    model, more = model_from_mapping(stated, where, "")
    if model is None or problems:
        raise InputError([*problems, *more])
    return Loaded(model=model, ignored=tuple(sorted(set(text) - reader.used)))
