"""Recipe functions of Mamba and hybrid stacks that train with Megatron-Bridge, as Megatron-LM's arguments.

NVIDIA-NeMo/Megatron-Bridge@abdddc32 src/megatron/bridge/recipes/mamba/mamba2.py and models/mamba/mamba_provider.py (sizes,
pretraining); AMD-AGI/Primus@fd1eeabb primus/backends/megatron_bridge/recipes/{mamba/mamba2,zebra_llama/zebra_llama}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_Args = Mapping[str, object]


def _mamba(layers: int, hidden: int, heads: int = 1, vocab: int = 50288, tp: int = 1, **more: object) -> _Args:
    """Of a stack of Mamba-2 layers; the vocabulary is its tokenizer's (EleutherAI/gpt-neox-20b), or the null tokenizer's."""
    return {
        "num_layers": layers,
        "hybrid_override_pattern": "M" * layers,
        "hidden_size": hidden,
        "ffn_hidden_size": hidden,
        "num_attention_heads": heads,
        "mamba_num_groups": 1 if vocab == 50288 else 8,
        "vocab_size": vocab,
        "tensor_model_parallel_size": tp,
        **more,
    }


def _zebra(
    layers: int, hidden: int, ffn: int, heads: int, ranks: tuple[int, int], widths: tuple[int, int, int]
) -> _Args:
    """Of Primus' turns of Mamba-2 or latent attention and an MLP. ``ranks``: of queries and of keys and values; ``widths``:
    of a query head without position and with it, of a value head."""
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": heads,
        "mamba_num_groups": 8,
        "hybrid_attention_ratio": 0.25,
        "spec": ["primus", "hybrid_stack_spec"],
        "swiglu": True,
        "multi_latent_attention": True,
        "apply_rope_fusion": False,
        "vocab_size": 128256,
        **dict(zip(("q_lora_rank", "kv_lora_rank"), ranks, strict=True)),
        **dict(zip(("qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"), widths, strict=True)),
    }


#: By the model's part of the function's name.
HYBRIDS: Mapping[str, _Args] = MappingProxyType(
    {
        "mamba2_130m": _mamba(24, 768),
        "mamba2_370m": _mamba(48, 1024),
        "mamba2_780m": _mamba(48, 1536),
        "mamba2_1p3b": _mamba(48, 2048),
        "mamba2_2p7b": _mamba(64, 2560),
        "mamba2_8b": _mamba(56, 4096, 32, 256000, 8),
        "mamba2_hybrid_8b": {
            **_mamba(56, 4096, 32, 256000, 8, num_query_groups=8, group_query_attention=True),
            "ffn_hidden_size": 16384,
            "hybrid_override_pattern": "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-",
        },
        "zebra_llama_1b": _zebra(32, 2048, 8192, 32, (1344, 128), (32, 32, 64)),
        "zebra_llama_3b": _zebra(56, 3072, 8192, 24, (1536, 128), (64, 64, 128)),
        "zebra_llama_8b": _zebra(64, 4096, 14436, 32, (2048, 160), (64, 64, 128)),
    }
)


def defaults(name: str, tuned: bool) -> dict[str, object]:
    """Arguments of the recipe function of ``name`` where an experiment is silent. ``tuned``: of fine-tuning."""
    zebra = name.startswith("zebra")
    sizes = (128, 4, 2048) if tuned else (64, 8, 8192) if zebra else (8, 1, 4096)
    return {
        "model_type": "mamba",
        "position_embedding_type": "none",
        "normalization": "RMSNorm",
        "swiglu": False,
        "untie_embeddings_and_output_weights": True,
        "add_bias_linear": False,
        "overlap_grad_reduce": True,
        "overlap_param_gather": not tuned,
        **dict(zip(("global_batch_size", "micro_batch_size", "seq_length"), sizes, strict=True)),
        **HYBRIDS[name],
    }
