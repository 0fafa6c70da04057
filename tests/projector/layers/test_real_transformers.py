"""What a layer saves, byte by byte, against the modules of Hugging Face's transformers, whose norms are eager."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from projector.frameworks import resolve
from projector.intake.huggingface import from_mapping
from projector.layers.lower import layer
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

H, FFN, HEADS, KV, D, LENGTH = 256, 704, 8, 4, 48, 256
SIZES: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": H, "intermediate_size": FFN, "num_attention_heads": HEADS, "head_dim": D,
    "num_key_value_heads": KV, "vocab_size": 512, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 160}
LATENT = {
    "num_key_value_heads": HEADS, "moe_intermediate_size": 160, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0, "n_shared_experts": 1, "q_lora_rank": 96, "kv_lora_rank": 64,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "head_dim": 16,
}  # fmt: skip
EVERY = {"layer_types": ["full_attention"] * 2, "sliding_window": 4096}
NEXT = {**EXPERTS, "shared_expert_intermediate_size": 192, "layer_types": ["linear_attention", "full_attention"]}
REPEATED = 2 * 2 * (HEADS - KV) * D  # eager attention repeats keys and values for all heads
WIDE_HEADS = 2 * (HEADS + KV) * D  # a norm with 1 + weight keeps its fp32 result, not that in 16 bits
WIDE = 2 * H
# by architecture and attention: bytes a token that transformers saves beyond the book, and why
KNOWN = {
    ("Llama", "sdpa"): 0,
    ("Llama", "eager"): REPEATED,
    ("Qwen3", "sdpa"): 0,
    ("Qwen3", "eager"): REPEATED,
    ("Gemma3Text", "sdpa"): 4 * WIDE + WIDE_HEADS,
    ("Mixtral", "sdpa"): 0,
    ("Qwen3Moe", "sdpa"): 0,
    # the router multiplies in fp32; keys' part of the product that makes keys and values stays with the values
    ("DeepseekV3", "eager"): 4 * H + 2 * HEADS * 32,
    # its softmax is in 16 bits, with a column for the sink; its activation is six elementary functions
    ("GptOss", "eager"): 2 * WIDE + REPEATED + 2 * HEADS - 4 * HEADS * LENGTH + 3 * 2 * 2 * FFN,
    # CPU attention leaves its output in another order of dimensions than the gate reads it
    ("Qwen3Next", "sdpa"): 2 * WIDE + WIDE_HEADS + 2 * HEADS * D,
}
CHANGE: dict[str, dict[str, Any]] = {
    "Gemma3Text": EVERY, "Mixtral": EXPERTS, "Qwen3Moe": EXPERTS, "GptOss": EXPERTS | EVERY, "DeepseekV3": LATENT,
    "Qwen3Next": NEXT,
}  # fmt: skip


def saved(config: Any, attention: str) -> float:
    """Returns the bytes of one token that the last of two layers saves; a storage counts once, a weight not."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.bfloat16)
    kept: dict[int, Any] = {each.untyped_storage().data_ptr(): None for each in (*model.parameters(), *model.buffers())}
    last, inside = model.model.layers[-1], []
    last.register_forward_pre_hook(lambda *_: inside.append(True))
    last.register_forward_hook(lambda *_: inside.clear())
    sizes = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept:
            kept[storage.data_ptr()] = tensor
            sizes.append(storage.nbytes() if inside else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.train()(input_ids=torch.randint(0, 512, (1, LENGTH)), use_cache=False)
    return sum(sizes) / LENGTH


@pytest.mark.parametrize(("architecture", "attention"), KNOWN)
def test_a_layer_saves_what_that_of_transformers_saves(architecture: str, attention: str) -> None:
    config = getattr(transformers, f"{architecture}Config")(**SIZES | CHANGE.get(architecture, {}))
    recipe = Recipe(
        micro_batch_size=1, global_batch_size=1, seq_length=LENGTH, moe_grouped_gemm="loop", main_params_dtype="bf16",
        attention_backend="unfused" if attention == "eager" else "flash",
    )  # fmt: skip
    model = from_mapping(config.to_dict(), architecture, name=architecture).model
    case = resolve(Workload(model=model, recipe=recipe, gpus=1, framework="pytorch"), "nvidia", "hopper")
    eager = replace(case, execution=case.execution.evolve(fusion={"norm": False}))
    counted = layer(model.layer_kinds[-1], eager).saved_bytes / LENGTH
    assert saved(config, attention) - KNOWN[architecture, attention] == pytest.approx(counted, rel=0.005)
