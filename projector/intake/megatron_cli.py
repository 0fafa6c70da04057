"""Megatron-LM's command line as its argparse reads it, for any of its forks (megatron/training/arguments.py).

The last of several wins, ``--no-x`` undoes ``--x``, an option takes every word up to the next one, and unambiguous
prefixes of a name stand for it. A command line is a whole configuration: what it leaves out is Megatron-LM's default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from projector.intake import megatron_forks
from projector.intake.aliases import renamings
from projector.intake.shell.lists import word_set
from projector.intake.shell.unknown import Unknown, Unknowns, is_known
from projector.intake.values import literal
from projector.workload.optimizers import named

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
#: Names of forks and of other years for the arguments that the loaders read.
_SAME = {
    **renamings("forks"),
    "overlapped_distributed_optimizer": "use_distributed_optimizer",  # Megatron-LLaMA: cut alike, reduced in the backward
    "pad_vocab_size_to": "padded_vocab_size",  # bigscience: the size after padding
    "activations_checkpoint_recent": "recompute_recent",
    "gas": "gradient_accumulation_steps",  # Megatron-DeepSpeed of 2021: micro-batches of a pipeline
    "fp8_e4m3": "fp8",
    "fp8_hybrid": "fp8",
    "moe_topk": "moe_router_topk",
    "topk": "moe_router_topk",
    "moe_top_k": "moe_router_topk",
    "moe_num_experts": "num_experts",
    "expert_interval": "moe_layer_freq",
    "moe_intermediate_size": "moe_ffn_hidden_size",
    "rms_norm": "use_rms_norm",
    "multi_head_latent_attention": "multi_latent_attention",
    "qk_rope_head_dim": "qk_pos_emb_head_dim",
    "qk_nope_head_dim": "qk_head_dim",
    "num_layers_per_virtual_stage": "num_layers_per_virtual_pipeline_stage",
}
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "layer_norm": "LayerNorm",
          "rms_norm": "RMSNorm"}  # fmt: skip
#: Options with a value that decide something; a variable behind any other option that is not set may be nothing.
_VALUES = word_set(
    """
    num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels seq_length
    max_position_embeddings micro_batch_size global_batch_size tensor_model_parallel_size
    pipeline_model_parallel_size context_parallel_size expert_model_parallel_size expert_tensor_parallel_size
    num_experts moe_router_topk moe_ffn_hidden_size moe_shared_expert_intermediate_size moe_layer_freq
    num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
    virtual_pipeline_model_parallel_size recompute_granularity recompute_method recompute_num_layers
    recompute_modules vocab_size padded_vocab_size make_vocab_size_divisible_by tokenizer_type tokenizer_model
    normalization position_embedding_type q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim
    mtp_num_layers data_parallel_sharding_strategy pipeline_model_parallel_layout deepspeed_config zero_stage
    decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers num_key_value_heads transformer_impl
    hybrid_override_pattern extra_vocab_size moe_token_dispatcher_type window_size ds_sequence_parallel_size
    data_path load save tokenizer_name_or_path vocab_file merge_file fp8_format gradient_accumulation_steps
    """
)
_FLAGS = word_set(
    """
    bf16 fp16 sequence_parallel use_distributed_optimizer swiglu group_query_attention disable_bias_linear
    untie_embeddings_and_output_weights use_flash_attn use_mcore_models overlap_grad_reduce
    overlap_param_gather recompute_activations checkpoint_activations qk_layernorm add_qkv_bias
    multi_latent_attention moe_grouped_gemm use_rotary_position_embeddings deepspeed no_pipeline_parallel
    deepspeed_activation_checkpointing distribute_saved_activations mock_data
    """
)
_KNOWN = _VALUES | _FLAGS
_PATHS = frozenset(
    ("data_path", "load", "save", "tokenizer_model", "tokenizer_name_or_path", "vocab_file", "merge_file")
)
_LISTS = frozenset(("recompute_modules", "cuda_graph_scope", "num_experts", "rampup_batch_size", "data_path", "spec"))
#: megatron/training/arguments.py: ``default`` of what is not given.
_DEFAULTS: Mapping[str, object] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "bf16": False,
    "fp16": False,
    "sequence_parallel": False,
    "use_distributed_optimizer": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "tp_comm_overlap": False,
    "cross_entropy_loss_fusion": False,
    "grad_reduce_in_bf16": False,
    "use_precision_aware_optimizer": False,
    "optimizer_cpu_offload": False,
    "manual_gc": False,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
}


@dataclass
class CommandLine:
    """``args`` by name; ``unknown``: names whose value only the run knows; ``open``: words that may hold any
    option; ``unset``: variables of the command line that are not set and so hold none."""

    args: dict[str, object] = field(default_factory=dict)
    unknown: dict[str, tuple[Unknown, ...]] = field(default_factory=dict)
    open: list[Unknown] = field(default_factory=list)
    unset: list[Unknown] = field(default_factory=list)


def parse(words: Sequence[str], unknowns: Unknowns) -> CommandLine:
    """The arguments that ``words`` (after the program) give."""
    found = CommandLine()
    at = 0
    flat = [part for word in words for part in _parts(word)]
    while at < len(flat):
        word = flat[at]
        at += 1
        if not _OPTION.fullmatch(word):
            found.open += [item for item in unknowns.within(word) if not (item.unset or item.plain)]
            found.unset += [item for item in unknowns.within(word) if item.unset]
            continue
        name, equals, value = word.lstrip("-").partition("=")
        values = [value] if equals else []
        while not equals and at < len(flat) and not _is_option(flat[at]):
            values.append(flat[at])
            at += 1
        _store(found, _full(name.replace("-", "_")), values, unknowns)
    return found


def _parts(word: str) -> list[str]:
    """A word; ``"--vocab-size 128256"`` in one pair of quotes is the two that its author meant."""
    if re.fullmatch(r"--[a-z][a-z-]+ +[^\s'\"]+", word):
        return word.split()
    return [word]


def _is_option(word: str) -> bool:
    return bool(_OPTION.fullmatch(word)) and not re.fullmatch(r"-\d.*", word)


def _full(name: str) -> str:
    """The name that ``name`` stands for: itself, that of another fork, or the one it begins."""
    name = _SAME.get(name, name)
    if name in _KNOWN:
        return name
    begun = [known for known in _KNOWN if known.startswith(name) and len(name) >= 7]
    return begun[0] if len(begun) == 1 and "_" in name else name


def _store(found: CommandLine, name: str, values: list[str], unknowns: Unknowns) -> None:
    bare = name.removeprefix("no_")
    if bare != name:
        found.args.pop(bare, None)
    else:
        found.args.pop(f"no_{name}", None)
    found.unknown.pop(name, None)
    takes_one = name in _VALUES and name not in _LISTS
    if takes_one and len(values) > 1:
        found.open += [i for word in values[1:] for i in unknowns.within(word) if not (i.unset or i.plain)]
        values = values[:1]
    kept = [value for value in values if unknowns.as_shell(value) or not value]
    if name in _FLAGS or not kept:
        found.open += (
            [i for word in values for i in unknowns.within(word) if not (i.unset or i.plain)] if name in _FLAGS else []
        )
        if values and not kept and name in _VALUES:
            found.unknown[name] = unknowns.within("".join(values))
            _name_only(found, name, "".join(values), unknowns)
        else:
            found.args[name] = True
        return
    if not all(is_known(value) for value in kept):
        found.unknown[name] = unknowns.within("".join(kept))
        _name_only(found, name, " ".join(kept), unknowns)
        return
    found.args[name] = literal(kept[0]) if len(kept) == 1 else " ".join(kept) if name in _LISTS else kept


def _name_only(found: CommandLine, name: str, text: str, unknowns: Unknowns) -> None:
    """Paths and the like are kept as the script writes them; what decides something is not there at all."""
    if name in _PATHS or name not in _VALUES:
        found.args[name] = unknowns.shown(text)
    else:
        found.args.pop(name, None)


def with_defaults(given: Mapping[str, object]) -> dict[str, object]:
    """Arguments in Megatron-LM's present words, completed by its defaults."""
    args = _renamed(dict(given))
    stated = ("recompute_granularity", "recompute_activations", "checkpoint_activations")
    if not any(name in args for name in stated):
        args["recompute_granularity"] = "none"
    defaults = dict(_DEFAULTS)
    if args.get("num_experts"):
        defaults |= {"moe_grouped_gemm": False, "moe_permute_fusion": False}
    return {**defaults, **args}


def _dense_layers(args: Mapping[str, object]) -> dict[str, object]:
    """MindSpeed-LLM's words for which layers hold experts and how wide the shared ones are (-1: not given)."""
    found: dict[str, object] = {}
    first, every, layers = (args.get(name) for name in ("first_k_dense_replace", "moe_layer_freq", "num_layers"))
    every = 1 if every in (None, -1) else every
    if args.get("moe_layer_freq") == -1:
        found["moe_layer_freq"] = 1
    if (
        isinstance(first, int)
        and first > 0
        and isinstance(layers, int)
        and 0 < layers < 10_000
        and isinstance(every, int)
    ):
        found["moe_layer_freq"] = [int(layer >= first and layer % every == 0) for layer in range(layers)]
    shared, width = args.get("n_shared_experts"), args.get("moe_ffn_hidden_size") or args.get("ffn_hidden_size")
    if isinstance(shared, int) and shared > 0 and isinstance(width, int):
        found.setdefault("moe_shared_expert_intermediate_size", shared * width)
    return {name: value for name, value in found.items() if value != args.get(name)}


def _renamed(args: dict[str, object]) -> dict[str, object]:
    norm = args.get("normalization")
    if isinstance(norm, str):
        args["normalization"] = _NORMS.get(norm.lower(), norm)
    if args.pop("use_rms_norm", None) or args.pop("apply_layernorm_rms", None) or args.pop("RMSNorm", None):
        args["normalization"] = "RMSNorm"
    heads = args.pop("num_key_value_heads", None)
    if heads is not None:
        args |= {"group_query_attention": True, "num_query_groups": heads}
    if args.get("attention_head_type") == "multiquery":
        args |= {"group_query_attention": True, "num_query_groups": 1}
    method = args.pop("activations_checkpoint_method", None)
    if method is not None:
        args |= {"recompute_granularity": "full", "recompute_method": method}
        args.setdefault("recompute_num_layers", 1)
    if args.get("checkpoint_activations") and "recompute_granularity" not in args:
        args["recompute_granularity"] = "full"
        args.setdefault("recompute_method", "uniform")
        args.setdefault("recompute_num_layers", 1)
    ulysses = args.pop("ds_sequence_parallel_size", None)
    if ulysses is not None and ulysses != 1:  # DeepSpeed's sequence parallelism: all-to-all over heads
        args |= {"context_parallel_size": ulysses, "cp_comm_type": "a2a"}
    if args.pop("no_pipeline_parallel", None):
        args["pipeline_model_parallel_size"] = 1
    experts = args.get("num_experts")
    if isinstance(experts, (list, tuple)) and len(set(experts)) == 1:
        args["num_experts"] = experts = experts[0]
    if isinstance(experts, str) and re.fullmatch(r"\d+( \d+)*", experts) and len(set(experts.split())) == 1:
        args["num_experts"] = experts = int(experts.split()[0])
    if experts == 1:
        args.pop("num_experts")
    args |= _dense_layers(args)
    args = megatron_forks.in_own_words(args)
    if args.get("optimizer") in ("hybridadam", "cpu-adam"):  # Pai-Megatron-Patch: Adam whose states lie on the host
        args |= {"optimizer": "adam", "optimizer_cpu_offload": True}
    if isinstance(word := args.get("optimizer"), str):
        args["optimizer"] = named(word)
        if args["optimizer"] == "adamw":  # its Adam decays weights apart, as AdamW does
            args["optimizer"] = "adam"
    if args.get("moe_token_dispatcher_type") == "alltoall_seq":
        args["moe_token_dispatcher_type"] = "alltoall"  # Megatron core's older dispatcher, with the same exchange
    if args.get("fp8") is True:
        args["fp8"] = "hybrid"
    if args.get("enable_zero_bubble"):
        args.setdefault("patch_zero_bubble", True)
    return args
