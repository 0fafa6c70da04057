"""Reads Primus experiments that train with Megatron-LM: Primus' switches, defaults of a whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from projector.errors import Problem, Unsupported
from projector.intake.assemble import Origin, assemble
from projector.intake.loaded import Loaded
from projector.intake.megatron_forks import applies, reworded
from projector.intake.primus_experiment import Experiment
from projector.intake.tables import table, words
from projector.intake.values import literal
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
    patched = {name: settings.get(name) for name in ("patch_zero_bubble", "patch_primus_pipeline")}
    found += [rule["is"] for rule in table("primus", "ignored") if applies(rule, {**patched, **said})]
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
    args = reworded(settings, table("primus", "switches"))
    idle = set() if args.get("enable_primus_turbo") else words("primus", "turbo") & set(args)
    return args | {name: False for name in idle if not isinstance(literal(args[name]), str)}
