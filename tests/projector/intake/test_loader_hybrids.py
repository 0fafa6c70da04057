"""config.json of stacks with recurrent layers: kinds and counts of the zoo, and what is missing or wrong by name."""

from __future__ import annotations

from typing import Any

import pytest

from projector.errors import InputError
from projector.intake import huggingface
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.validate import problems
from projector.workload.workload import Workload

_STATES: dict[str, Any] = {"mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False}
_GRANITE = ["mamba"] * 5 + ["attention"] + ["mamba"] * 4
#: model_type, name in the zoo, keys beside those of every decoder. Files: the repositories that the zoo names.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba_2.8b": ("mamba", {"state_size": 16, "conv_kernel": 4, "intermediate_size": 5120, "time_step_rank": 160}),
    "falcon_mamba_7b": ("falcon_mamba", {"intermediate_size": 8192, "state_size": 16, "time_step_rank": "auto"}),
    "codestral_mamba_7b": ("mamba2", {"num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8,
                                      "chunk_size": 256}),
    "jamba_1.5_mini": ("jamba", {"attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
                                 "expert_layer_offset": 1, "num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16,
                                 "mamba_dt_rank": 256, **_STATES}),
    "falcon_h1_34b": ("falcon_h1", {"mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": "auto", "mamba_n_groups": 2,
                                    "mamba_d_state": 256, "mamba_chunk_size": 128, "mamba_rms_norm": False,
                                    "ssm_multipliers": [1.0] * 5, **_STATES}),
    "granite_4_h_tiny": ("granitemoehybrid", {"layer_types": _GRANITE * 4, "num_local_experts": 64, "num_experts_per_tok": 6,
                                              "intermediate_size": 512, "shared_intermediate_size": 1024,
                                              "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_n_groups": 1,
                                              "mamba_d_state": 128, "mamba_chunk_size": 256, **_STATES}),
    "granite_4_h_micro": ("granitemoehybrid", {"layer_types": _GRANITE * 4, "num_local_experts": 0,
                                               "shared_intermediate_size": 8192, "mamba_n_heads": 64, "mamba_d_head": 64,
                                               "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_chunk_size": 256,
                                               **_STATES}),
    "zamba2_7b": ("zamba2", {"layers_block_type": ["hybrid" if i in (6, *range(11, 78, 6)) else "mamba" for i in range(81)],
                             "num_mem_blocks": 2, "adapter_rank": 128, "use_shared_attention_adapter": False,
                             "use_mem_rope": True, "n_mamba_heads": 112, "mamba_ngroups": 2, "mamba_d_state": 64,
                             "chunk_size": 256, "mamba_d_conv": 4, "mamba_expand": 2}),
    "qwen3_next_80b_a3b": ("qwen3_next", {"full_attention_interval": 4, "linear_num_key_heads": 16,
                                          "linear_num_value_heads": 32, "linear_key_head_dim": 128,
                                          "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512,
                                          "num_experts_per_tok": 10, "moe_intermediate_size": 512,
                                          "shared_expert_intermediate_size": 512}),
    "minimax_text_01": ("minimax_text_01", {"attn_type_list": ([0] * 7 + [1]) * 10, "num_local_experts": 32,
                                            "num_experts_per_tok": 2, "block_size": 256, "shared_intermediate_size": 0}),
    "lfm2_8b_a1b": ("lfm2_moe", {"full_attn_idxs": [2, 6, 10, 14, 18, 21], "conv_L_cache": 3, "num_experts": 32,
                                 "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "num_dense_layers": 2}),
}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    kind, keys = CONFIGS[name]
    model = zoo.load(name)
    return {
        "model_type": kind, "num_hidden_layers": model.num_layers, "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size, "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups, "head_dim": model.kv_channels, "vocab_size": model.vocab_size,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
    } | keys  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_the_model_of_the_zoo(name: str) -> None:
    known, read = zoo.load(name), huggingface.from_mapping(config(name), "config.json").model
    assert read.unsupported == ()
    assert [kind.mixer for kind in read.layer_kinds] == [kind.mixer for kind in known.layer_kinds]
    assert (count(read).main, count(read).active) == (count(known).main, count(known).active)


def test_what_matters_and_is_not_read_is_named() -> None:
    for name, wrong, nearest in (
        ("jamba_1.5_mini", {"attn_layer_perod": 4}, "attn_layer_period"),
        ("falcon_h1_34b", {"mamba_n_head": 16}, "mamba_n_heads"),
        ("mamba_2.8b", {"state_sizes": 32}, "state_size"),
    ):
        with pytest.raises(InputError) as found:
            huggingface.from_mapping({**config(name), **wrong}, "config.json")
        (problem,) = found.value.problems
        assert problem.key in wrong
        assert nearest in problem.expected
    short = huggingface.from_mapping(
        {**config("granite_4_h_tiny"), "layer_types": ["mamba", "attention"]}, "config.json"
    ).model
    recipe = Recipe(micro_batch_size=1, global_batch_size=8, seq_length=4096)
    (problem,) = problems(Workload(model=short, recipe=recipe, gpus=8))
    assert "40 of them, not 2" in problem.expected
