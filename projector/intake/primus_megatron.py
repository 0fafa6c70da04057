"""Reads Primus experiments that train with Megatron-LM: Primus' switches, defaults of a whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from projector.errors import Problem, Unsupported
from projector.intake.assemble import Origin, assemble
from projector.intake.loaded import Loaded
from projector.intake.primus_experiment import Experiment
from projector.intake.tables import table, words
from projector.workload import tokenizers, zoo

#: What Primus trains mock data with since 2026-04 (AMD-AGI/Primus@fd1eeabb
#: primus/backends/megatron/patches/args/mock_data_patches.py): a null tokenizer of this size, whatever the model.
_NULL_TOKENIZER = 131072
#: Words of ``model_type`` and of a model's name that are no language model.
_NOT_LANGUAGE = ("diffusion", "flux", "wan", "vit", "bert", "t5", "retro", "vision")


def load(experiment: Experiment) -> Loaded:
    """Returns the workload. Raises :class:`InputError` with what does not fit, :class:`Unsupported` for other kinds."""
    name = experiment.model_name
    kind = str(experiment.named("model_type") or "").lower()
    if any(kind.startswith(word) for word in _NOT_LANGUAGE) or "flux" in name.lower():
        raise Unsupported(f"not a language model: {kind or name}")
    args = switched(experiment.settings)
    args.pop("context_model_parallel_size", None)
    if experiment.gpus is not None:
        args["world_size"] = experiment.gpus
    if not experiment.whole:
        found = zoo.find(name)
        base = zoo.load(found) if found else None
        assumed: tuple[str, ...] = ("Primus presets: this project's defaults",)
        args = {**table("primus", "module_defaults"), **args}
        name = base.name if base else name
    else:
        base = None
        stated = {key: value for key, value in args.items() if value is not None}
        args, assumed = _with_vocabulary({**table("primus", "megatron_defaults"), **stated}, name)
    loaded = assemble(args, Origin(where=experiment.where, name=name, base=base, framework="primus", assumed=assumed))
    loaded = replace(loaded, assumed=(*loaded.assumed, *_remainder(loaded)), moot=_ignored_switches(experiment, loaded))
    if not experiment.whole:
        return loaded
    return replace(loaded, ignored=tuple(key for key in loaded.ignored if key in experiment.overrides))


def _with_vocabulary(given: Mapping[str, object], name: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Returns ``given`` with a ``vocab_size``, and what that assumes. ``name``: of the model preset."""
    if given.get("vocab_size") is not None or given.get("padded_vocab_size") is not None:
        return dict(given), ()
    if given.get("mock_data"):
        size = _NULL_TOKENIZER
        return {**given, "vocab_size": size}, (f"vocab_size={size} (the null tokenizer that Primus gives mock data)",)
    found = tokenizers.completed(given, (name,))
    return ({**given, "vocab_size": found.size}, (str(found),)) if found else (dict(given), ())


def _remainder(loaded: Loaded) -> tuple[str, ...]:
    """Returns the note on layers that do not divide among the stages, with which Megatron-LM refuses to start."""
    recipe, layers = loaded.recipe, loaded.model.num_layers
    if recipe is None or recipe.pipeline_model_parallel_layout is not None:
        return ()
    if recipe.decoder_first_pipeline_num_layers or recipe.decoder_last_pipeline_num_layers:
        return ()
    counted = layers + recipe.account_for_embedding_in_pipeline_split + recipe.account_for_loss_in_pipeline_split
    count = recipe.pp * recipe.vpp
    left = counted % count if count > 0 else 0
    stages = f"{layers} layers over {count} stages"
    where = "as Primus' own projection lays them out; Megatron-LM refuses them without a pipeline_model_parallel_layout"
    return (f"{stages}: one more on the first {left} ({where})",) if left else ()


def _ignored_switches(experiment: Experiment, loaded: Loaded) -> tuple[str, ...]:
    """Returns the documented switches that the experiment or the command line states and Primus ignores.

    AMD-AGI/Primus@fd1eeabb primus/core/projection/training_config.py (sets ``context_model_parallel_size`` to
    ``context_parallel_size``), module_profilers/attention.py (``use_flash_attn`` there alone),
    backends/megatron/patches/parallelism/v_schedule_patches.py and core/extensions/primus_turbo.py (``patch_zero_bubble``).
    """
    said, settings, found = experiment.overrides, experiment.settings, []
    if (size := said.get("context_model_parallel_size")) not in (None, loaded.recipe.cp if loaded.recipe else None):
        where = "its projection puts context_parallel_size in its place, and training does not read it"
        found.append(f"context_model_parallel_size={size}: {where}: --cp {size} splits the sequence")
    if said.get("use_flash_attn") is False:
        where = (
            "training takes attention_backend and use_turbo_attention; Primus' memory projection alone adds the scores"
        )
        found.append(f"use_flash_attn=false: {where}: --attention-backend unfused materialises them")
    patched = settings.get("patch_zero_bubble") or settings.get("patch_primus_pipeline")
    if said.get("enable_zero_bubble") and not patched:
        where = "training needs patch_zero_bubble beside it, and Primus' preset has it true in every run"
        found.append(f"enable_zero_bubble=true: {where}: --enable-zero-bubble projects it")
    return tuple(found)


def unknown_model(experiment: Experiment) -> list[Problem]:
    """Returns the problems of the model of an experiment whose presets are not at hand."""
    name = experiment.model_name
    if not name or zoo.find(name) is not None or "flux" in name.lower():
        return []
    expected = f"{zoo.expected(name)}; or give the configs folder of Primus"
    return [Problem(experiment.where, f"modules.{experiment.trainer}.model", name, expected)]


def switched(settings: Mapping[str, object]) -> dict[str, object]:
    """Returns ``settings`` after Primus' own switches have turned others on and off.

    AMD-AGI/Primus@fd1eeabb primus/backends/megatron/patches/args/rocm_arg_validation.py (sync-free stages),
    patches/turbo (what needs ``enable_primus_turbo``). Raises :class:`InputError` for a stage that it refuses.
    """
    args = dict(settings)
    for old, new in table("primus", "renamed").items():
        if args.get(old) and not args.get(new):
            args[new] = args[old]
        args.pop(old, None)
    if not args.get("enable_primus_turbo"):
        args |= dict.fromkeys(words("primus", "turbo") & set(args), False)
        if args.get("turbo_sync_free_moe_stage"):
            args["turbo_sync_free_moe_stage"] = 0
        return args
    if args.get("enable_turbo_attention_float8") and args.get("use_turbo_attention"):
        args["fp8_dot_product_attention"] = True
    if args.get("moe_use_fused_router_with_aux_score"):
        args["moe_router_fusion"] = True
    stage = args.get("turbo_sync_free_moe_stage") or 0
    if isinstance(stage, int) and stage >= 1:
        args |= {"moe_router_fusion": True, "moe_permute_fusion": True}
    if isinstance(stage, int) and stage >= 2:
        args |= {"use_turbo_deepep": True, "use_turbo_grouped_gemm": True}
    return args
