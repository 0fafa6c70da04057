"""Reads Primus experiments that train with Megatron-Bridge: a recipe function by name, changed by the experiment.

What the functions state where an experiment or a source is silent: ``tables/bridge_recipes.yaml``, by model; of adapters:
Megatron-Bridge@9577b1280 src/megatron/bridge/peft/lora.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from projector.errors import InputError, Problem, Unsupported, raise_all
from projector.intake.assemble import Origin, assemble
from projector.intake.loaded import Loaded
from projector.intake.named_models import model_named
from projector.intake.primus_experiment import Experiment
from projector.intake.primus_megatron import switched
from projector.intake.tables import table
from projector.intake.values import Reader
from projector.workload.lora import BLOCK_LINEARS
from projector.workload.model import Model

_SIZES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
    *("context_parallel_size", "sequence_parallel"),
)
#: Families whose functions set the parallel sizes after the arguments were read.
_FIXED = ("llama3", "qwen3_30b_a3b", "qwen3_235b_a22b")


_table = partial(table, "bridge_recipes")


def _entry_arguments(entry: Mapping[str, Any]) -> dict[str, object]:
    sizes = [*entry["sizes"], *(1, 1, 1, 1, False)[len(entry["sizes"]) :]]
    parts = {key: value for part in entry.get("parts", ()) for key, value in _table("parts")[part].items()}
    stated = {key: value for key, value in entry.items() if key not in ("sizes", "parts")}
    return {**dict(zip(_SIZES, sizes, strict=True)), **parts, **stated}


def defaults_of(model: Model, tuned: bool, adapters: bool, packed: bool) -> dict[str, object]:
    """Returns the arguments of the recipe function for ``model``. ``tuned``: of fine-tuning, ``adapters``: by LoRA."""
    llama, experts = model.name.startswith("llama"), model.moe is not None
    args = {**_table("common"), **(_table("experts") if experts else {})}
    parts = _table("parts")
    if not tuned:
        args |= {
            **parts["overlapped"],
            "micro_batch_size": 1 if llama else 2,
            "global_batch_size": 512 if llama else 32,
        }
        entry = _table("pretrain").get(model.name)
        return {**args, "seq_length": 8192 if llama else 4096, **(_entry_arguments(entry) if entry else {})}
    args |= parts["overlapped"] if experts else {**parts["alone"], "manual_gc": llama}
    args |= {"global_batch_size": 32 if experts else 8 if packed else 128}
    args |= {"seq_length": (2048 if packed else 4096) if experts else 4096 if packed and llama else 2048}
    if llama and adapters:
        args |= {"use_distributed_optimizer": False, "cross_entropy_loss_fusion": False}
    several = _table("finetune").get(model.name)
    return args | (_entry_arguments(several[adapters]) if several else {})


def own_sizes(model: str, adapters: bool) -> Mapping[str, object]:
    """Returns the sizes that the fine-tuning function of ``model`` sets whatever it is given; empty without such sizes."""
    if not model.startswith(_FIXED) or model not in _table("finetune"):
        return {}
    sizes = _entry_arguments(_table("finetune")[model][adapters])
    return {name: sizes[name] for name in _SIZES[:3]}


def recompute_of(model: str, release: str) -> Mapping[str, object]:
    """Returns what the pretraining function of ``model`` recomputes in ``release`` (``0.1``); empty where unknown."""
    if model in _table("pretrain"):
        args = {"recompute_granularity": "none", **_entry_arguments(_table("pretrain")[model])}
        return {name: value for name, value in args.items() if name.startswith("recompute_")}
    told = {_release_numbers(first): fields for first, fields in _table("recompute").get(model, {}).items()}
    since = [first for first in told if first <= _release_numbers(release)]
    return told[max(since)] if since else {}


def _release_numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def is_hybrid(name: str) -> bool:
    """Returns whether the model ``name`` is a stack of Mamba layers, with or without attention layers."""
    return name in _table("hybrids")


def hybrid(name: str, tuned: bool) -> dict[str, object]:
    """Returns the default arguments of the recipe function of hybrid ``name``. ``tuned``: of fine-tuning."""
    args = {**_table("hybrid"), **_table("hybrids")[name]}
    args = {"hybrid_override_pattern": "M" * args["num_layers"], "ffn_hidden_size": args["hidden_size"], **args}
    if name.startswith("zebra"):
        args.pop("hybrid_override_pattern")
    sizes = {"global_batch_size": 128, "micro_batch_size": 4, "seq_length": 2048} if tuned else {}
    return {**_table("common"), "overlap_param_gather": not tuned, **args, **sizes}


_FLAVOR = re.compile(r"^(?P<model>.+?)_(?P<kind>(?:low_precision_)?pretrain|finetune|sft|peft|lora)(?:_.*)?_?config$")
_OTHER = ("nemotronh", "nemotron_h", "nemotron_nano")


def load(experiment: Experiment) -> Loaded:
    """Returns the workload. Raises :class:`InputError` with what does not fit, :class:`Unsupported` for other models."""
    settings = experiment.settings
    flavor = str(settings.get("flavor") or "")
    words = f"{settings.get('recipe') or ''} {flavor} {experiment.model_name}".lower()
    if any(word in words for word in _OTHER):
        raise Unsupported("recipes of Nemotron-H: Mamba layers whose sizes are not read")
    match = _FLAVOR.match(flavor)
    if flavor and match is None:
        expected = "a recipe function: <model>_pretrain_config, <model>_finetune_config"
        raise InputError([Problem(experiment.where, "flavor", flavor, expected)])
    name = match["model"] if match else ""
    tuned = experiment.trainer != "pre_trainer" if match is None else "pretrain" not in match["kind"]
    assets = str(settings.get("hf_path") or "").rpartition("/")[2]
    base = None
    if not is_hybrid(name):
        base = model_named((name, assets, "" if flavor else experiment.model_name), experiment.where, "flavor", {})
        name = base.name
    adapters = _adapters(settings, name, tuned, match["kind"] if match else "", experiment)
    if base is None and adapters is not None:
        raise Unsupported(f"adapters on Mamba layers: {flavor}")
    packed = _packed(settings, experiment.where)
    defaults = hybrid(name, tuned) if base is None else defaults_of(base, tuned, adapters is not None, packed)
    args = {**defaults, **_experiment_arguments(settings)}
    args |= _precision(settings, experiment)
    if adapters is not None:
        args["lora"] = adapters
    if experiment.gpus is not None:
        args["world_size"] = experiment.gpus
    origin = Origin(
        where=experiment.where,
        name=name,
        base=base,
        framework="megatron-bridge",
        assumed=(*_contradictions(flavor, name, tuned, adapters is not None, settings), *_lengths(packed, tuned)),
    )
    loaded = assemble(switched(args), origin)
    mine = experiment.overrides.keys() - {*_READ}
    return replace(
        loaded,
        ignored=(*(key for key in loaded.ignored if key in mine), *(key for key in _NEUTRAL if key in mine)),
        unmodelled=tuple(text for text in loaded.unmodelled if text.partition("=")[0] in mine.difference(_NEUTRAL)),
    )


_NEUTRAL = ("dataset_name", "finetune_lr", "skip_save", "peft_alpha")
_READ = ("flavor", "recipe", "hf_path", "peft", "peft_dim", "packed_sequence", "precision_config")


def _experiment_arguments(settings: Mapping[str, object]) -> dict[str, object]:
    found = {key: value for key, value in settings.items() if value is not None and not isinstance(value, Mapping)}
    for section in ("model", "train", "ddp", "optimizer"):
        nested = settings.get(section)
        if isinstance(nested, Mapping):
            found |= {str(key): value for key, value in nested.items() if value is not None}
    for key in ("peft", "optimizer"):  # sections under the same name as a word of Megatron-LM's arguments
        if not isinstance(settings.get(key), str):
            found.pop(key, None)
    found.pop("peft", None)
    if "mock" in found:
        found["mock_data"] = found.pop("mock")
    return found


def _adapters(
    settings: Mapping[str, object], model: str, tuned: bool, kind: str, experiment: Experiment
) -> dict[str, object] | None:
    """Returns the LoRA section in Megatron-LM's words; None for training of all weights."""
    given = settings.get("peft", "lora" if tuned and kind != "sft" else None)
    section = given if isinstance(given, Mapping) else {}
    word = str(section.get("peft_scheme", "lora") if section else given).lower()
    if not tuned or word in ("none", "null", ""):
        return None
    if word not in ("lora", "dora"):
        raise InputError([Problem(experiment.where, "peft", given, "lora, dora or none")])
    if word == "dora":
        raise Unsupported("DoRA adapters")
    entry = table("bridge_recipes", "adapters").get(model, {})
    return {
        "enabled": True,
        "dim": section.get("dim") or settings.get("peft_dim") or entry.get("dim", 32),
        "target_modules": section.get("target_modules") or list(BLOCK_LINEARS[: entry.get("targets")]),
        **{key: section[key] for key in ("share_expert_adapters", "normalize_moe_lora") if key in section},
    }


def _packed(settings: Mapping[str, object], where: str) -> bool:
    reader = Reader(settings)
    packed = reader.flag("packed_sequence")
    raise_all([Problem(where, *problem) for problem in reader.problems])
    return bool(packed)


def _precision(settings: Mapping[str, object], experiment: Experiment) -> dict[str, object]:
    given = settings.get("precision_config") or "bf16_mixed"
    for mark, args in table("primus", "precisions").items():
        if mark in str(given).lower() and str(given).isidentifier():
            return dict(args)
    expected = "a mixed-precision configuration, such as bf16_mixed or bf16_with_fp8_current_scaling_mixed"
    raise InputError([Problem(experiment.where, "precision_config", given, expected)])


def _contradictions(
    flavor: str, model: str, tuned: bool, adapters: bool, settings: Mapping[str, object]
) -> tuple[str, ...]:
    """Finds sizes that a recipe function sets itself and that differ from those that the experiment states."""
    fixed = own_sizes(model, adapters) if tuned else {}
    return tuple(
        f"{key}={settings[key]}: as the experiment says; {flavor} of Megatron-Bridge sets {value} itself"
        for key, value in fixed.items()
        if settings.get(key) is not None and settings[key] != value
    )


def _lengths(packed: bool, tuned: bool) -> tuple[str, ...]:
    if not tuned or packed:
        return ()
    return ("every sample as long as seq_length (unpacked samples of a dataset are shorter)",)
