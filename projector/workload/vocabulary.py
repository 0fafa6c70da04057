"""The words that a recipe or model field may hold, and the range of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from projector.errors import Problem, nearest

__all__ = ["CHOICES", "LIMITS", "SCHEDULES", "range_problems", "unreported", "word_problems"]

_DTYPES = ("fp32", "fp16", "bf16", "fp8")

#: Pipeline schedules by the names of their papers and frameworks: Megatron-LM (1f1b, interleaved), Zero Bubble
#: (arXiv:2401.10241: zb-h1, zb-h2, zbv), controllable memory (arXiv:2405.15362: v-half, v-min), DualPipe
#: (arXiv:2412.19437) and its V form, breadth-first (arXiv:2211.05953), circular pipelines of MaxText (looped-bfs).
SCHEDULES = (
    "1f1b",
    "interleaved",
    "interleaved-zb",
    "1f1b-interleaved",
    "gpipe",
    "zero-bubble",
    "zero-bubble-heuristic",
    "zb-h1",
    "zb-h2",
    "zb-1p",
    "zb-2p",
    "zb-ilp",
    "seaailab-ilp",
    "zbb",
    "zbv",
    "zbv-formatted",
    "v-half",
    "v-min",
    "dualpipe-v",
    "dualpipev",
    "looped-bfs",
    "breadth-first",
)

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "precision": ("bf16", "fp16", "fp32", "fp8", "mxfp8", "mxfp4", "nvfp4"),
        "fp8_recipe": ("delayed", "tensorwise", "rowwise", "blockwise", "mxfp8", "mxfp4", "nvfp4"),
        "cp_comm_type": ("p2p", "a2a", "allgather", "a2a+p2p"),
        "pipeline_schedule": SCHEDULES,
        "pipeline_remainder": ("weighted", "first"),
        "data_parallel_sharding": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
        "optimizer": ("adam", "adamw", "sgd", "muon", "dist_muon", "adafactor", "lion", "schedule_free_adamw"),
        "main_grads_dtype": ("fp32", "bf16", "fp16"),
        "main_params_dtype": _DTYPES,
        "exp_avg_dtype": _DTYPES,
        "exp_avg_sq_dtype": _DTYPES,
        "muon_tp_mode": ("blockwise", "duplicated", "distributed"),
        "recompute_granularity": ("none", "full", "selective"),
        "recompute_method": ("uniform", "block"),
        "recompute_modules": (
            "core_attn",
            "moe_act",
            "layernorm",
            "mla_up_proj",
            "mlp",
            "moe",
            "shared_experts",
            "attn",
            "mhc",
            "op_sac",
        ),
        "recompute_saved": ("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context"),
        "offload_modules": (
            "attn_norm",
            "qkv_linear",
            "core_attn",
            "attn_proj",
            "mlp_norm",
            "expert_fc1",
            "moe_act",
            "fused_group_mlp",
        ),
        "moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
        "moe_flex_dispatcher_backend": ("deepep", "hybridep"),
        "moe_all_to_all_kernel": ("collective", "one_shot"),
        "moe_grouped_gemm": ("te", "fused", "multi_stream", "loop", "legacy", "masked"),
        "moe_router_dtype": ("fp32", "fp64", "bf16"),
        "cross_entropy_fusion": ("none", "unfused", "native", "te", "fp32", "linear"),
        "attention_backend": ("flash", "fused", "unfused", "local", "auto", "materialised"),
        "cuda_graph_scope": (
            "full",
            "full_iteration",
            "attn",
            "mlp",
            "moe",
            "moe_router",
            "moe_preprocess",
            "mamba",
        ),
        "normalization": ("RMSNorm", "LayerNorm", "NonParametricLayerNorm"),
        "position_embedding_type": ("rope", "learned_absolute", "alibi", "none"),
    }
)


#: Bounds on nonsense, well above anything built: GPUs (the largest clusters announced have some 10⁵), sequence length
#: (10⁷ tokens is the longest context published), model widths and depths, vocabulary, batch.
LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "gpus": 1_000_000,
        "seq_length": 100_000_000,
        "max_position_embeddings": 1_000_000_000,
        "micro_batch_size": 1_000_000,
        "global_batch_size": 100_000_000,
        "num_layers": 10_000,
        "hidden_size": 1_000_000,
        "ffn_hidden_size": 10_000_000,
        "num_attention_heads": 10_000,
        "num_query_groups": 10_000,
        "kv_channels": 100_000,
        "vocab_size": 100_000_000,
        "num_experts": 100_000,
        "device_memory_fraction": 1,
        "optimizer_offload_fraction": 1,
        "muon_num_ns_steps": 100,
        "sync_free_stage": 3,  # AMD-AGI/Primus turbo_sync_free_moe_stage: 0 to 3
    }
)
_MAY_BE_ZERO = frozenset(
    {
        "mtp_num_layers",
        "sync_free_stage",
        "moe_dispatch_scatter_adds",
        "moe_shared_expert_intermediate_size",
        "optimizer_offload_fraction",
        "recompute_num_layers",
        "cpu_offloading_num_layers",
        "moe_ffn_hidden_size",
    }
)


def range_problems(values: Mapping[str, object], where: str, prefix: str) -> list[Problem]:
    """One :class:`Problem` per number in ``values`` that is out of range: sizes from 1 (some from
    0), factors above 0, to :data:`LIMITS` or a million; also inside mappings. Values of another type are left to who
    checks types.
    """
    found: list[Problem] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += range_problems(value, where, f"{prefix}{name}.")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        most = LIMITS.get(name, 1_000_000)
        if isinstance(value, float):
            zero = name in _MAY_BE_ZERO
            if not (0.0 < value <= most or (zero and value == 0.0)):
                expected = f"a number from 0 to {most}" if zero else f"a number above 0, at most {most}"
                found.append(Problem(where, prefix + name, value, expected))
            continue
        least = 0 if name in _MAY_BE_ZERO else 1
        if not least <= value <= most:
            found.append(Problem(where, prefix + name, value, f"a number from {least} to {most}"))
    return found


def unreported(found: list[Problem], before: list[Problem]) -> list[Problem]:
    """Those of ``found`` whose key no problem of ``before`` names: one value is reported once."""
    named = {problem.key for problem in before}
    return [problem for problem in found if problem.key not in named]


def word_problems(values: Mapping[str, object], where: str, prefix: str) -> list[Problem]:
    """One :class:`Problem` per word in ``values`` (field name to value) that :data:`CHOICES` does not know.

    Values of another type than text or a list are left to who checks types. Schedules may have ``_`` for ``-``.
    """
    problems = []
    for name, value in values.items():
        known = CHOICES.get(name)
        if known is None:
            continue
        words = value if isinstance(value, (list, tuple)) else (value,)
        problems += [
            Problem(where, f"{prefix}{name}", word, f"one of {', '.join(known)}{_hint(word, known)}")
            for word in words
            if isinstance(word, str) and _spelling(name, word) not in known
        ]
    return problems


def _spelling(name: str, word: str) -> str:
    return word.lower().replace("_", "-") if name == "pipeline_schedule" else word


def _hint(word: str, known: tuple[str, ...]) -> str:
    close = nearest(word, known)
    return f" ({close.split('; ')[1]})" if "; " in close else ""
