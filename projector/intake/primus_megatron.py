"""Primus experiments that train with Megatron-LM: switches of Primus, defaults of a whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from projector.errors import Problem, Unsupported
from projector.intake.assemble import Origin, assemble
from projector.intake.loaded import Loaded
from projector.intake.primus_experiment import Experiment
from projector.intake.primus_vocabulary import completed
from projector.workload import zoo

#: Defaults of primus/configs/modules/megatron/{pre_trainer,trainer_base,zero_bubble,primus_turbo}.yaml and of
#: models/megatron/language_model.yaml @fd1eeabb that a step depends on, for files without their presets.
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
#: Arguments of Megatron-LM that say something about a step whenever they are silent (megatron/training/arguments.py,
#: ``add_argument`` defaults; megatron/core/transformer/transformer_config.py): nothing of a whole configuration is open.
_MEGATRON_DEFAULTS: Mapping[str, object] = {
    "micro_batch_size": 1,
    "use_distributed_optimizer": False,
    "sequence_parallel": False,
    "recompute_activations": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "overlap_p2p_comm": True,
    "defer_embedding_wgrad_compute": False,
    "gradient_accumulation_fusion": True,
    "grad_reduce_in_bf16": False,
    "tp_comm_overlap": False,
    "cp_comm_type": "p2p",
    "optimizer": "adam",
    "use_precision_aware_optimizer": False,
    "optimizer_cpu_offload": False,
    "num_distributed_optimizer_instances": 1,
    "fp8_param_gather": False,
    "fp8_dot_product_attention": False,
    "first_last_layers_bf16": False,
    "moe_token_dispatcher_type": "allgather",
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "moe_router_force_load_balancing": False,
    "moe_shared_expert_overlap": False,
    "moe_pad_expert_input_to_capacity": False,
    "overlap_moe_expert_parallel_comm": False,
    "delay_wgrad_compute": False,
    "turbo_sync_free_moe_stage": 0,
    "mock_data": False,
    "apply_rope_fusion": True,
    "bias_swiglu_fusion": True,
    "bias_gelu_fusion": True,
    "cross_entropy_loss_fusion": False,
    "enable_cuda_graph": False,
    "manual_gc": False,
    "make_vocab_size_divisible_by": 128,
    "check_for_nan_in_loss_and_grad": True,
    "create_attention_mask_in_dataloader": True,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
}
#: Switches of an earlier Primus and those that took their place (primus/backends/megatron/patches/args/
#: rocm_arg_validation.py names both).
_RENAMED = {"use_turbo_grouped_mlp": "use_turbo_grouped_gemm", "use_turbo_parallel_linear": "use_turbo_gemm"}
#: Switches that act only while ``enable_primus_turbo`` is set (primus/backends/megatron/patches/turbo).
_TURBO = (
    *("use_turbo_grouped_gemm", "use_turbo_deepep", "use_turbo_attention", "use_turbo_gemm", "use_turbo_rms_norm"),
    *("use_turbo_fused_act_with_probs", "enable_turbo_attention_float8", "use_turbo_mega_moe"),
)
#: Words of ``model_type`` and of a model's name that are no language model.
_NOT_LANGUAGE = ("diffusion", "flux", "wan", "vit", "bert", "t5", "retro", "vision")


def load(experiment: Experiment) -> Loaded:
    """The workload. Raises :class:`InputError` with what does not fit, :class:`Unsupported` for other than language."""
    name = experiment.model_name
    kind = str(experiment.named("model_type") or "").lower()
    if any(kind.startswith(word) for word in _NOT_LANGUAGE) or "flux" in name.lower():
        raise Unsupported(f"not a language model: {kind or name}")
    args = switched(experiment.settings)
    if experiment.gpus is not None:
        args["world_size"] = experiment.gpus
    if not experiment.whole:
        found = zoo.find(name)
        base = zoo.load(found) if found else None
        assumed: tuple[str, ...] = ("Primus presets: this project's defaults",)
        args = {**_MODULE_DEFAULTS, **args}
        name = base.name if base else name
    else:
        base = None
        args = {**_MEGATRON_DEFAULTS, **{key: value for key, value in args.items() if value is not None}}
        args, assumed = completed(args, name)
    loaded = assemble(args, Origin(where=experiment.where, name=name, base=base, framework="primus", assumed=assumed))
    loaded = replace(loaded, assumed=(*loaded.assumed, *_remainder(loaded)))
    if not experiment.whole:
        return loaded
    return replace(loaded, ignored=tuple(key for key in loaded.ignored if key in experiment.overrides))


def _remainder(loaded: Loaded) -> tuple[str, ...]:
    """What is said of layers that do not divide among the stages: Megatron-LM refuses to start with them."""
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


def unknown_model(experiment: Experiment) -> list[Problem]:
    """What is wrong with the model of an experiment whose presets are not at hand."""
    name = experiment.model_name
    if not name or zoo.find(name) is not None or "flux" in name.lower():
        return []
    expected = f"{zoo.expected(name)}; or give the configs folder of Primus"
    return [Problem(experiment.where, f"modules.{experiment.trainer}.model", name, expected)]


def switched(settings: Mapping[str, object]) -> dict[str, object]:
    """``settings`` after what Primus' own switches turn on and off in them.

    AMD-AGI/Primus@fd1eeabb primus/backends/megatron/patches/args/rocm_arg_validation.py (sync-free stages),
    patches/turbo (what needs ``enable_primus_turbo``). Raises :class:`InputError` for a stage that it refuses.
    """
    args = dict(settings)
    for old, new in _RENAMED.items():
        if args.get(old) and not args.get(new):
            args[new] = args[old]
        args.pop(old, None)
    if not args.get("enable_primus_turbo"):
        args |= dict.fromkeys(set(_TURBO) & set(args), False)
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
