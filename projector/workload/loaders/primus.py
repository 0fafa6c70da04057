"""Primus experiment YAML: ``modules.pre_trainer`` with its presets, as Primus itself merges them.

Order (AMD-AGI/Primus@fd1eeabb primus/core/launcher/parser.py): the module preset named by ``config``; the model preset
named by ``model``, only keys that are not there yet; then ``overrides``. With a ``configs`` folder (Primus'
``primus/configs``) the presets are read from it. Without one the model comes from this project's zoo and the module
preset is reduced to the defaults below.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from projector.errors import InputError, Problem
from projector.workload import zoo
from projector.workload.loaders.assemble import Origin, assemble
from projector.workload.loaders.loaded import Loaded
from projector.workload.loaders.yaml_files import deep_merge, read
from projector.workload.model import Model

__all__ = ["load"]

#: Defaults of primus/configs/modules/megatron/{pre_trainer,trainer_base,zero_bubble,primus_turbo}.yaml and of
#: models/megatron/language_model.yaml @fd1eeabb that a step depends on.
_MODULE_DEFAULTS: Mapping[str, object] = {
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "seq_length": 1024,
    "bf16": True,
    "fp16": False,
    "fp8_recipe": "delayed",
    "make_vocab_size_divisible_by": 128,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "overlap_p2p_comm": True,
    "gradient_accumulation_fusion": True,
    "sequence_parallel": True,
    "optimizer": "adam",
    "use_precision_aware_optimizer": False,
    "main_grads_dtype": "fp32",
    "main_params_dtype": "fp32",
    "exp_avg_dtype": "fp32",
    "exp_avg_sq_dtype": "fp32",
    "manual_gc": False,
    "check_for_nan_in_loss_and_grad": True,
    "create_attention_mask_in_dataloader": True,
    "cross_entropy_loss_fusion": False,
    "cross_entropy_fusion_impl": "native",
    "enable_zero_bubble": True,
    "patch_zero_bubble": False,
    "patch_primus_pipeline": False,
    "pp_algorithm": "1f1b-interleaved",
    "turbo_sync_free_moe_stage": 0,
}
_REQUIRED = ("work_group", "user_name", "exp_name", "workspace", "modules")
#: Switches that act only while ``enable_primus_turbo`` is set (primus/backends/megatron/patches, turbo group).
_TURBO = ("use_turbo_grouped_gemm", "use_turbo_grouped_mlp", "use_turbo_deepep")


def load(
    path: str | Path,
    *,
    configs: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    gpus: int | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Loaded:
    """Read an experiment file. Raises :class:`InputError` with every mistake of it and of its presets.

    ``env``: variables for ``${NAME:default}`` (default: the process environment); NNODES and GPUS_PER_NODE in it give
    the number of GPUs unless ``gpus`` does. ``overrides``: Primus' ``key=value`` arguments of the command line.
    """
    variables = os.environ if env is None else env
    problems: list[Problem] = []
    experiment = read(Path(path), variables, problems)
    module = _module(experiment, str(path), problems)
    framework = str(module.get("framework", "megatron"))
    model_name = Path(str(module.get("model") or "")).name.removesuffix(".yaml")
    changes = module.get("overrides") or {}
    if not isinstance(changes, Mapping):
        problems.append(Problem(str(path), "modules.pre_trainer.overrides", changes, "a mapping"))
        changes = {}
    presets, base, assumed = _presets(module, model_name, configs, variables, str(path), problems)
    if problems:
        raise InputError(problems)
    beside = {key: value for key, value in module.items() if key not in _MODULE_KEYS}  # a flattened export stands here
    args = deep_merge(deep_merge({**beside, **presets}, changes), overrides or {})
    if not args.get("enable_primus_turbo"):
        args |= dict.fromkeys(set(_TURBO) & set(args), False)
    count = gpus if gpus is not None else _gpus(variables)
    if count is not None:
        args = {**args, "world_size": count}
    name = base.name if base else model_name
    return assemble(
        args,
        Origin(where=str(path), name=name, base=base, framework=_FRAMEWORKS.get(framework, framework), assumed=assumed),
    )


_TRAINERS = ("pre_trainer", "sft_trainer", "post_trainer")
_MODULE_KEYS = ("framework", "config", "model", "overrides")
_FRAMEWORKS = {"megatron": "primus", "torchtitan": "torchtitan", "maxtext": "maxtext"}


def _module(experiment: Mapping[str, object], where: str, problems: list[Problem]) -> Mapping[str, object]:
    """``modules.pre_trainer``; an export that is already flat stands for itself."""
    if not experiment:
        return {}
    missing = [key for key in _REQUIRED if key not in experiment]
    problems += [Problem(where, key, "nothing", "this key of every Primus experiment") for key in missing]
    modules = experiment.get("modules")
    if "modules" in missing:
        return {}
    trainers = [name for name in _TRAINERS if isinstance(modules, Mapping) and name in modules]
    module = modules.get(trainers[0]) if trainers and isinstance(modules, Mapping) else None
    if not isinstance(module, Mapping):
        problems.append(Problem(where, "modules.pre_trainer", module, "a mapping with framework, config and model"))
        return {}
    expected = "megatron: only its arguments are understood"
    if module.get("framework", "megatron") != "megatron":
        problems.append(Problem(where, "modules.pre_trainer.framework", module["framework"], expected))
    if "model" not in module:
        problems.append(Problem(where, "modules.pre_trainer.model", "nothing", "the file of a model preset"))
    return module


def _presets(
    module: Mapping[str, object],
    model_name: str,
    configs: str | Path | None,
    env: Mapping[str, str],
    where: str,
    problems: list[Problem],
) -> tuple[dict[str, object], Model | None, tuple[str, ...]]:
    """Module and model presets in one mapping, the zoo model that completes them, and what that assumes."""
    alike = zoo.find(model_name) if model_name else None
    if configs is None:
        if alike is None and model_name:
            expected = f"{zoo.expected(model_name)}; or give the configs folder of Primus"
            problems.append(Problem(where, "modules.pre_trainer.model", model_name, expected))
        base = zoo.load(alike) if alike else None
        return dict(_MODULE_DEFAULTS), base, ("Primus presets: this project's defaults",)
    folder = Path(configs)
    framework = str(module.get("framework", "megatron"))
    trainer = _preset(folder / "modules" / framework, module.get("config"), env, problems)
    model = _preset(folder / "models" / framework, module.get("model"), env, problems)
    merged = {**model, **trainer}
    overrides = module.get("overrides")
    stated = {**merged, **(overrides if isinstance(overrides, Mapping) else {})}
    if stated.get("vocab_size") is None and stated.get("padded_vocab_size") is None and alike:
        size = zoo.load(alike).vocab_size
        return {**merged, "vocab_size": size}, None, (f"vocab_size={size} (of {alike})",)
    return merged, None, ()


def _preset(folder: Path, name: object, env: Mapping[str, str], problems: list[Problem]) -> dict[str, object]:
    return read((folder / str(name)).resolve(), env, problems) if name else {}


def _gpus(env: Mapping[str, str]) -> int | None:
    nodes, each = env.get("NNODES", ""), env.get("GPUS_PER_NODE", "8")
    return int(nodes) * int(each) if nodes.isdigit() and each.isdigit() else None
