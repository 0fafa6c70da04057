"""Reads architectures from Hugging Face ``config.json``, by the field names of the transformers library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported, nearest
from projector.intake import huggingface_table, known_settings
from projector.intake.asked import names_read
from projector.intake.huggingface_types import LANGUAGE_DEFAULTS, MODEL_TYPES, STACKED, vision
from projector.intake.loaded import Loaded
from projector.intake.tables import table
from projector.intake.values import Reader
from projector.io.documents import as_mapping, parse_json
from projector.io.files import read_text
from projector.workload.model_schema import model_from_mapping

#: Towers beside a language model, by the keys that describe them.
_TOWERS = (
    *("vision_config", "audio_config", "speech_config", "visual", "vision_tower", "mm_vision_tower", "img_processor"),
    *("audio_processor", "qformer_config", "encoder_config", "vit_config", "perceiver_config"),
)
#: Families whose tower is read, too.
_SEEING = ("llava",)
#: Families that are mostly trained as the language model that they hold.
_LANGUAGE_FIRST = ("gemma3", "gemma3n", "llama4", "mistral3")


@cache
def _types() -> Mapping[str, Callable[[Reader], dict[str, object]]]:
    """Returns the readers of configurations by ``model_type``."""
    return {**MODEL_TYPES, **huggingface_table.readers()}


def _refused(kind: str) -> str | None:
    """Returns the part of models of type ``kind`` that is not supported; None for supported types."""
    return next((why for why, kinds in table("other_tools", "refused").items() if kind in kinds.split()), None)


def load(path: str | Path, *, name: str | None = None) -> Loaded:
    """Reads a ``config.json`` (or the folder that holds one). Raises :class:`InputError` with all its mistakes.

    An architecture that is not known is an error that names the known ones; a known one with parts that nothing here
    lowers is a model whose ``unsupported`` says so.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    where = str(file)
    content = as_mapping(parse_json(read_text(file), where), where, "an object")
    return from_mapping(content, where, name=name or (file.parent.name if file.name == "config.json" else file.stem))


def from_mapping(config: Mapping[str, object], where: str, *, name: str = "") -> Loaded:
    """Returns the model of a configuration object; of a model that also sees or hears, the language model (``text_config``)
    where mostly that is trained, as ``assumed`` then says. Raises :class:`InputError`, :class:`Unsupported`.
    """
    inner = config.get("text_config")
    outer_type = str(config.get("model_type", ""))
    towers = [key for key in _TOWERS if config.get(key)]
    sees = outer_type in _SEEING and towers == ["vision_config"]
    if towers and not (isinstance(inner, Mapping) and outer_type in _LANGUAGE_FIRST) and not sees:
        whole = " (for the language model alone, give its text_config as a config.json)" if inner else ""
        raise Unsupported(f"{outer_type or 'a model'} with {', '.join(towers)} beside its language model{whole}")
    text = {**inner} if isinstance(inner, Mapping) else dict(config)
    if sees:
        text = {**LANGUAGE_DEFAULTS, **(text if inner else {})}
    kind = str(text.get("model_type") or outer_type)
    types = _types()
    reader_of = types.get(kind) or types.get(outer_type)
    refused = None if sees else _refused(outer_type) or _refused(kind)
    if refused is None and config.get("is_encoder_decoder") is True and kind not in STACKED:
        refused = "an encoder and a decoder"
    if refused is not None:
        raise Unsupported(f"{where}: model_type {outer_type or kind}: {refused}")
    if reader_of is None:
        expected = f"an architecture that is known; {nearest(kind, tuple(types))}"
        raise InputError([Problem(where, "model_type", kind or "nothing", expected)])
    reader = Reader(text)
    fields = reader_of(reader)
    if sees:
        fields["vision"] = vision(config, reader)
    counted = fields.pop("unmodelled", ())
    fields |= {"name": name or kind, "family": kind.removesuffix("_text"), "source": f"{where}"}
    stated = {key: value for key, value in fields.items() if value is not None}
    problems = [Problem(where, key, value, expected) for key, value, expected in reader.problems]
    left = known_settings.sort(reader.unread, names_read((reader_of,)), where)
    for key, inner in reader.inner.items():
        left = left.beside(known_settings.sort(inner.unread, frozenset(inner.used), where), f"{key}.")
    problems += left.problems
    model, more = model_from_mapping(stated, where, "")
    if model is None or problems:
        raise InputError([*problems, *more])
    remarks = tuple(counted) if isinstance(counted, (tuple, list)) else ()
    assumed = (f"the language model alone ({', '.join(towers)} left out)",) if towers and not sees else ()
    return Loaded(model=model, assumed=assumed, ignored=left.neutral, unmodelled=(*remarks, *left.unmodelled))
