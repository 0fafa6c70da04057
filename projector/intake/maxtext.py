"""MaxText's own configuration files: ``base.yml`` and files over it. Words: :mod:`.primus_maxtext`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from projector.errors import InputError, Problem, Unsupported
from projector.intake import primus_maxtext
from projector.intake.loaded import Loaded
from projector.intake.primus_experiment import Experiment
from projector.intake.primus_maxtext_model import REPEATED, SIZES
from projector.intake.spelling import misspelt
from projector.workload.model import Model

_AXIS = re.compile(r"(ici|dcn)_\w+_parallelism")
_MARKS = ("per_device_batch_size", "max_target_length", "base_emb_dim", "remat_policy", "base_num_decoder_layers")
#: Where base.yml differs from the preset of Primus.
_DEFAULTS: Mapping[str, object] = {"dataset_type": "tfds", "attention": "autoselected"}
_STATED = ("per_device_batch_size", "max_target_length")
_LONG = 12  # letters: MaxText has hundreds of names, of which short ones resemble each other
#: Words of MaxDiffusion, which shares the axes and the batch.
_DIFFUSION = ("weights_dtype", "activations_dtype", "num_inference_steps", "guidance_scale", "unet_checkpoint")
_EACH = 8


def is_maxtext(mapping: Mapping[str, object]) -> bool:
    """Whether the keys of a mapping are MaxText's: a base file, axes of its mesh, two of its own words."""
    axes = [key for key in mapping if _AXIS.fullmatch(key)]
    return bool(axes) or "base_config" in mapping or sum(mark in mapping for mark in _MARKS) > 1


def load(
    content: Mapping[str, object], where: str, *, gpus: int | None, model: Model | None,
    words: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None,
) -> Loaded:  # fmt: skip
    """The workload of a file with ``words`` of the command line over it, started in ``env``.

    ``gpus``: None where only the axes say how many.

    A file's sizes mean nothing beside ``model_name``, whose own file is put over them (src/maxtext/configs/pyconfig.py
    ``_initialize_pydantic``); words count.

    Raises :class:`InputError` with everything that does not fit, :class:`Unsupported` for what nothing lowers.
    """
    images = next((key for key in _DIFFUSION if key in content), None)
    if images is not None:
        raise Unsupported(f"{where}: {images}: a configuration of MaxDiffusion, not of a language model")
    if content.get("use_dpo") is True or content.get("use_grpo") is True:
        raise Unsupported(f"{where}: use_dpo or use_grpo: preference training, not a causal language model's loss")
    if content.get("teacher_overrides") or content.get("student_overrides"):
        raise Unsupported(f"{where}: teacher_overrides: a teacher runs beside the model that it trains")
    base = Path(str(content.get("base_config") or "base.yml")).name
    if base != "base.yml":
        raise InputError([Problem(where, "base_config", base, "base.yml, or that file's settings in this one")])
    content, idle = _sizes({**content, **(words or {})}, words or {})
    known = _known()
    slips = [
        Problem(where, key, value, f"a known setting; nearest: {', '.join(near)}")
        for key, value in content.items()
        if key not in known and (near := misspelt(key, [name for name in known if len(name) >= _LONG]))
    ]
    slips += [
        Problem(where, key, "nothing", "it stated: the file is an architecture alone without a batch and a length")
        for key in _STATED
        if not set(_STATED) & set(content)
    ]
    if slips:
        raise InputError(slips)
    each = _closed(content, "ici") or _EACH
    hosts = _closed(content, "dcn")
    counted = gpus if gpus is not None else each * hosts if hosts else None
    if gpus is not None and hosts and gpus != each * hosts:
        found = f"{gpus}, and axes whose product is {each * hosts}"
        raise InputError([Problem(where, "gpus", found, "the product of the axes, or one of them -1")])
    experiment = Experiment(
        where=where,
        framework="maxtext",
        model_name=model.name if model else Path(where).stem,
        trainer="",
        settings={**_DEFAULTS, **content},
        overrides=content,
        env={**(env or {}), "GPUS_PER_NODE": str(min(each, counted or each))},
        gpus=counted,
    )
    loaded = primus_maxtext.load(experiment, model)
    assumed: tuple[str, ...] = (
        () if gpus is not None or counted is None else (f"gpus={counted} (the product of the axes)",)
    )
    assumed += tuple(f"{key} of {content['model_name']}, not {value}" for key, value in idle.items())
    assumed += tuple(f"{key}={primus_maxtext.DEFAULTS[key]} (base.yml)" for key in _STATED if key not in content)
    return replace(loaded, assumed=(*assumed, *loaded.assumed))


def _sizes(content: Mapping[str, object], words: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """``content`` with base.yml's sizes of a model without a name; of one with a name without those of the file, and
    these where base.yml says otherwise."""
    if content.get("model_name", "default") == "default":
        return {**SIZES, **content}, {}
    idle = {
        key: value
        for key, value in content.items()
        if key not in words and (key in SIZES or value in REPEATED.get(key, ()))
    }
    return {key: value for key, value in content.items() if key not in idle}, {
        key: value for key, value in idle.items() if value not in REPEATED[key]
    }


def _closed(content: Mapping[str, object], level: str) -> int | None:
    """The product of the axes of a level, None where one of them takes what is left."""
    stated = {key: value for key, value in content.items() if key.startswith(f"{level}_") and _AXIS.fullmatch(key)}
    default = {"ici": "ici_fsdp_parallelism", "dcn": "dcn_data_parallelism"}[level]
    sizes = [stated.get(default, -1), *(value for key, value in stated.items() if key != default)]
    whole = [size for size in sizes if type(size) is int and 0 < size < 1_000_000]
    return math.prod(whole) if len(whole) == len(sizes) else None


def _known() -> frozenset[str]:
    return frozenset(primus_maxtext.WORDS) | frozenset(primus_maxtext.UNMODELLED) | {"base_config", "hardware"}
