"""Blocks of torchtitan, as large as one rank's part. Imported only when asked for.

Names are those of pytorch/torchtitan v0.2.0 to v0.2.2: torchtitan/models/{llama3,qwen3,deepseek_v3}/model/{args,model}.py,
torchtitan/models/moe. Blocks take [batch, length, hidden], the rotation, and no mask where attention is causal.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module, metadata
from typing import Any, NoReturn

import torch
from torch import nn

from projector.benchmark.layers_parts import LayerSetup
from projector.benchmark.layers_whole import WholeSource
from projector.errors import InputError, Problem, Unsupported
from projector.workload.model import LayerKind, Model

_MODELS = "torchtitan.models"
#: Package of a family, and its class of arguments.
_ARGUMENTS = {"llama3": "TransformerModelArgs", "qwen3": "Qwen3ModelArgs", "deepseek_v3": "DeepSeekV3ModelArgs"}


class TorchtitanSource(WholeSource):
    """DeepSeek-V3's blocks for latent attention, Qwen3's for experts or normed queries and keys, else Llama 3's."""

    name = "torchtitan"

    def __init__(self, made: LayerSetup) -> None:
        """Raises :class:`InputError` where the library is missing or of another release, :class:`Unsupported` for what its
        blocks have no switch for."""
        super().__init__(made)
        model = made.model
        _refuse(model)
        self._family = "deepseek_v3" if model.mla else "qwen3" if model.moe or model.qk_layernorm else "llama3"
        self._module = _imported(f"{self._family}.model.model")
        self._arguments = getattr(_imported(f"{self._family}.model.args"), _ARGUMENTS[self._family], None)

    def layer(self, kind: LayerKind) -> nn.Module:
        if not kind.plain or kind.window is not None:
            raise Unsupported("blocks of torchtitan that are not full attention with an MLP or experts")
        stated = _block_arguments(self._family, self._made, kind)
        args = _known_arguments(self._arguments, _ARGUMENTS[self._family], stated)
        args.moe_impl = "standard"  # 0.2.2 takes it from the job's configuration alone
        with torch.device("meta"):
            layer = self._module.TransformerBlock(int(kind.moe), args)  # of DeepSeek's the first is dense
            if self._family == "llama3":
                _resize_heads(layer.attention, self._made.model)
            moe, hidden = self._made.model.moe, self._made.model.hidden_size
            if kind.moe and moe and moe.moe_shared_expert_intermediate_size:
                layer.moe.shared_experts = _imported("moe").FeedForward(hidden, moe.moe_shared_expert_intermediate_size)
        rope = self._rotation(args).to(self._made.place)
        return self.placed(layer, lambda block, x: block(x, rope, None))

    def _rotation(self, args: Any) -> torch.Tensor:
        width, length = self._made.model.kv_channels, self._made.length
        module: Any = self._module
        if self._family == "deepseek_v3":
            angles: torch.Tensor = module.precompute_freqs_cis(args)
        elif self._family == "qwen3":
            angles = module.precompute_rope_cache(width, length, args.rope_theta)
        else:
            angles = module.precompute_freqs_cis(width, length, args.rope_theta)
        return angles


def _refuse(model: Model) -> None:
    lacking = {
        "LayerNorm": model.normalization != "RMSNorm",
        "biases": model.add_bias_linear or model.add_qkv_bias,
        "an activation without a gate": not model.gated_linear_unit,
        f"positions by {model.position_embedding_type}": model.position_embedding_type != "rope",
        "a gate of shared experts": bool(model.moe and model.moe.moe_shared_expert_gate),
        "normed queries and keys beside latent attention": bool(model.mla and model.qk_layernorm),
    }
    if reasons := [text for text, applies in lacking.items() if applies]:
        raise Unsupported(f"blocks of torchtitan with {', '.join(reasons)}")


def _block_arguments(family: str, made: LayerSetup, kind: LayerKind) -> dict[str, Any]:
    """Returns the arguments of ``family`` for one rank's part."""
    model = made.model
    args: dict[str, Any] = {"dim": model.hidden_size, "max_seq_len": made.length}
    if family == "llama3":
        heads = model.hidden_size // model.kv_channels
        args |= {"n_heads": heads, "n_kv_heads": heads * model.num_query_groups // model.num_attention_heads}
        # its width is 8/3 of the hidden one times a factor, rounded up to a multiple: of the very width
        share = 0.5 * model.ffn_hidden_size / (8 * model.hidden_size / 3)
        return args | {"multiple_of": model.ffn_hidden_size, "ffn_dim_multiplier": share}
    if model.moe is not None:
        args |= {"moe_args": _expert_arguments(made), "moe_inter_dim": model.moe.moe_ffn_hidden_size}
    if (mla := model.mla) is not None:
        widths = {"qk_nope_head_dim": mla.qk_head_dim, "qk_rope_head_dim": mla.qk_pos_emb_head_dim}
        ranks = {"q_lora_rank": mla.q_lora_rank or 0, "kv_lora_rank": mla.kv_lora_rank, "v_head_dim": mla.v_head_dim}
        sizes = {"n_heads": model.num_attention_heads, "inter_dim": model.ffn_hidden_size, "n_dense_layers": 1}
        return args | widths | ranks | sizes
    sizes = {"n_heads": model.num_attention_heads, "n_kv_heads": model.num_query_groups, "head_dim": model.kv_channels}
    return args | sizes | {"hidden_dim": model.ffn_hidden_size, "qk_norm": model.qk_layernorm, "moe_enabled": kind.moe}


def _expert_arguments(made: LayerSetup) -> Any:
    moe, recipe = made.model.moe, made.workload.recipe
    assert moe is not None
    stated = {
        "num_experts": moe.num_experts,
        "num_shared_experts": int(moe.moe_shared_expert_intermediate_size > 0),
        "score_func": moe.moe_router_score_function,
        "top_k": min(moe.moe_router_topk, moe.num_experts),
        "use_grouped_mm": recipe.moe_grouped_gemm != "loop" and made.dtype == torch.bfloat16,
        "_debug_force_load_balance": bool(recipe.moe_router_force_load_balancing),
    }
    return _known_arguments(getattr(_imported("moe"), "MoEArgs", None), "MoEArgs", stated)


def _known_arguments(kind: Any, name: str, stated: dict[str, Any]) -> Any:
    """Returns the arguments ``stated`` as this release's ``kind``, None where it has no class of that ``name``."""
    known = {field.name for field in fields(kind)} if kind else set()
    if missing := sorted(set(stated) - known):
        _wrong_release(f"{name} has no {', '.join(missing)}")
    return kind(**stated)


def _resize_heads(attention: Any, model: Model) -> None:
    """Leaves Llama's attention the heads of this rank, whose width follows from their number: the block counts them by
    the outputs of its products, as under tensor parallelism."""
    queries, keys = model.num_attention_heads * model.kv_channels, model.num_query_groups * model.kv_channels
    for name, width in (("wq", queries), ("wk", keys), ("wv", keys)):
        setattr(attention, name, nn.Linear(model.hidden_size, width, bias=False))
    attention.wo = nn.Linear(queries, model.hidden_size, bias=False)


def _imported(name: str) -> Any:
    try:
        return import_module(f"{_MODELS}.{name}")
    except ImportError as error:
        _wrong_release(str(error))


def _wrong_release(why: str) -> NoReturn:
    try:
        found = f"torchtitan {metadata.version('torchtitan')}: {why}"
    except metadata.PackageNotFoundError:
        found = f"torchtitan: {why}"
    expected = "torchtitan 0.2 (pip install torchtitan==0.2.2), or --layers torch"
    raise InputError([Problem("--layers", "", found, expected)])
