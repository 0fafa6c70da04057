"""The book of a layer against real modules: parameters exactly, FLOP and saved bytes by torch's own counters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.layers.lower import head, layer, mtp_layer
from projector.operators.module import Block
from projector.operators.types import Attention, Gemm, GroupedGemm, Operator, Scan
from projector.workload.layer_kinds import KimiDelta, Mamba1, Mamba2, PerLayer, SharedBlocks
from projector.workload.model import MLA, Model, MoE
from projector.workload.recipe import Recipe
from projector.workload.sparse import BlockAttention, Compressed, Indexer
from projector.workload.workload import Workload

torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")

from tests.projector.layers import torch_altup, torch_recurrent  # noqa: E402
from tests.projector.layers import torch_layers as real  # noqa: E402

BATCH, LENGTH = 2, 128
GQA = Model(
    name="small", family="small", num_layers=1, hidden_size=256, ffn_hidden_size=704, num_attention_heads=8,
    num_query_groups=2, kv_channels=32, vocab_size=1024,
)  # fmt: skip
CLASSIC: dict[str, Any] = {"gated_linear_unit": False, "normalization": "LayerNorm", "add_bias_linear": True}
ROUTED = MoE(
    num_experts=8, moe_router_topk=4, moe_ffn_hidden_size=192, moe_layer_freq=(1,),
    moe_shared_expert_intermediate_size=192,
)  # fmt: skip
LATENT = MLA(q_lora_rank=96, kv_lora_rank=64, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32)
COMPRESSED = Compressed(
    q_lora_rank=96, qk_pos_emb_head_dim=16, o_groups=2, o_lora_rank=64, attn_sliding_window=16, compress_ratios=(0,),
    index_n_heads=4, index_head_dim=32, index_topk=8,
)  # fmt: skip
SCAN = Mamba1(inner=512, dt_rank=16)
DUAL = Mamba2(mamba_num_heads=8, mamba_num_groups=2, mamba_state_dim=32)
MODELS = {
    "grouped queries, SwiGLU": GQA, "GELU, LayerNorm, biases": replace(GQA, num_query_groups=8, **CLASSIC),
    "biases of queries, keys, values": replace(GQA, add_qkv_bias=True),
    "norms after, too": replace(GQA, sandwich_norm=True), "queries and keys normed": replace(GQA, qk_layernorm=True),
    "side by side": replace(GQA, parallel_residual=True), "values are keys": replace(GQA, attention_k_eq_v=True),
    "latent": replace(GQA, mla=LATENT, num_query_groups=8),
    "latent, whole queries": replace(GQA, mla=replace(LATENT, q_lora_rank=None), num_query_groups=8),
    "latent, a gate": replace(GQA, mla=replace(LATENT, mla_use_output_gate=True), num_query_groups=8),
    "experts": replace(GQA, moe=replace(ROUTED, moe_shared_expert_intermediate_size=0)),
    "experts, a shared one": replace(GQA, moe=ROUTED),
    "latent, experts, a gated shared one": replace(GQA, mla=LATENT, moe=replace(ROUTED, moe_shared_expert_gate=True)),
    "Mamba-1": replace(GQA, mixer_pattern="S", mamba1=SCAN),
    "Mamba-1 with norms": replace(GQA, mixer_pattern="S", mamba1=replace(SCAN, norms=True)),
    "Mamba-2": replace(GQA, mixer_pattern="M", mamba=DUAL),
    "attention beside Mamba-2": replace(GQA, mixer_pattern="P", mamba=replace(DUAL, grouped_norm=False)),
}  # fmt: skip


@dataclass
class Counted:
    parameters: int
    forward: float
    backward: float
    saved: float


def eager(model: Model) -> Resolved:
    recipe = Recipe(
        micro_batch_size=BATCH, global_batch_size=BATCH, seq_length=LENGTH, precision="bf16", moe_grouped_gemm="loop",
        main_params_dtype="bf16",
    )  # fmt: skip
    return resolve(Workload(model=model, recipe=recipe, gpus=1, framework="pytorch"), "nvidia", "hopper")


def counted(module: Any, hidden: int) -> Counted:
    """``module`` forward and backward on the CPU in bf16; a storage counts once, a parameter not."""
    from torch.autograd.graph import saved_tensors_hooks
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    module = module.bfloat16()
    own = {each.untyped_storage().data_ptr() for each in module.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x = torch.randn(BATCH, LENGTH, hidden, dtype=torch.bfloat16, requires_grad=True)
    forward, backward = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with forward, saved_tensors_hooks(pack, lambda tensor: tensor):
        out = module(x)
    with backward:
        out.sum().backward()
    return Counted(
        sum(each.numel() for each in module.parameters()),
        forward.get_total_flops(),
        backward.get_total_flops(),
        sum(each.untyped_storage().nbytes() for each in kept.values()),
    )


def flops(operators: tuple[Operator, ...], keys: float | None = None) -> float:
    """Of products, without a mask, as the modules compute them: ``keys`` chosen by every query, also by the first."""
    products = [op for op in operators if isinstance(op, (Attention, Gemm, GroupedGemm))]
    cores = [replace(op, causal=False, keys=keys) if isinstance(op, Attention) else op for op in products]
    return sum(op.flops * (2 if op.name in ("indexer.scores", "blocks.scores") else 1) for op in cores)


def same(
    made: Block | list[Block], module: Any, model: Model, saved: float | None = 0.05, keys: float | None = None
) -> Counted:
    """One layer, or several together, beside ``module``: what that is found to have."""
    blocks, found = made if isinstance(made, list) else [made], counted(module, model.hidden_size)
    assert sum(block.held.total for block in blocks) == found.parameters
    backward = tuple(op for block in blocks for op in (*block.backward_input, *block.backward_weight))
    assert sum(flops(block.forward, keys) for block in blocks) == pytest.approx(found.forward, rel=0.01)
    assert flops(backward, keys) == pytest.approx(found.backward, rel=0.01)
    assert saved is None or sum(block.saved_bytes for block in blocks) == pytest.approx(found.saved, rel=saved)
    return found


@pytest.mark.parametrize("what", MODELS)
def test_a_layer_is_what_a_real_one_is(what: str) -> None:
    model = MODELS[what]
    (kind,) = model.layer_kinds
    same(layer(kind, eager(model)), real.Layer(model, kind), model)


@pytest.mark.parametrize(("ratio", "keys"), [(0, 16), (4, 16 + 8), (128, 16 + 1)])
def test_compressed_attention_is_what_a_real_one_is(ratio: int, keys: int) -> None:
    model = replace(GQA, compressed=replace(COMPRESSED, compress_ratios=(ratio, 4)), num_query_groups=1)
    (kind,) = model.layer_kinds
    same(layer(kind, eager(model)), real.Layer(model, kind), model, keys=keys)


def test_latent_attention_to_chosen_keys_is_what_a_real_one_is() -> None:
    chosen = Indexer(index_n_heads=4, index_head_dim=32, index_topk=16)
    model = replace(GQA, mla=LATENT, num_query_groups=8, indexer=chosen)
    (kind,) = model.layer_kinds
    same(layer(kind, eager(model)), real.Layer(model, kind), model, keys=16)


@pytest.mark.parametrize("compressed", [False, True])
def test_attention_to_chosen_blocks_is_what_a_real_one_is(compressed: bool) -> None:
    """MoBA, and NSA with the bytes that it saves: means, chosen blocks and window have 16 keys each, values too."""
    chosen = BlockAttention(block_size=8, block_counts=2, window_size=16, compressed=compressed)
    model = replace(
        GQA, num_query_groups=1, attention_k_eq_v=True, position_embedding_type="none", mixer_pattern="B",
        block_attention=chosen,
    )  # fmt: skip
    (kind,) = model.layer_kinds
    same(layer(kind, eager(model)), real.Layer(model, kind), model, saved=0.05 if compressed else None, keys=16)


def test_layers_that_share_keys_and_values_are_what_real_ones_are() -> None:
    """Two together: no product of keys and values in the second, whose values the first has saved."""
    model = replace(GQA, num_layers=2, num_query_groups=8, cla_share_factor=2)
    first, second = (real.Layer(model, kind) for kind in model.layer_kinds)
    second.attention = real.ReusingAttention(model, first.attention)
    blocks = [layer(kind, eager(model)) for kind in model.layer_kinds]
    found = same(blocks, torch.nn.Sequential(first, second), model, saved=0.02)
    assert found.parameters == 2 * blocks[0].held.total - 2 * 256 * 256
    values = 2 * BATCH * LENGTH * model.num_query_groups * model.kv_channels
    assert blocks[0].saved_bytes - blocks[1].saved_bytes == values
    added = [op for op in blocks[1].backward_input if op.name == "shared_kv.grad_add"]
    assert [(op.read, op.write) for op in added] == [(4 * values, 2 * values)]


def test_streams_around_a_layer_are_what_real_ones_are() -> None:
    """Parameters and products; what eager functions save is not what kernels of their own do."""
    model = replace(GQA, hyper_connections=4)
    (kind,) = model.layer_kinds
    same(layer(kind, eager(model)), real.Layer(model, kind), model, saved=None)


def test_the_head_and_a_prediction_depth_are_what_real_ones_are() -> None:
    model = replace(GQA, mtp_num_layers=1)
    same(head(eager(model)), real.Head(model), model)
    same(mtp_layer(eager(model)), real.Prediction(model), model)


@pytest.mark.parametrize(
    "sizes", [{}, {"value_dim": 64, "num_key_heads": 2, "gate_rank": 64, "gate_bias": True, "fused": True}]
)
def test_delta_attention_has_the_products_of_a_real_one(sizes: dict[str, object]) -> None:
    """Keys and values of one width and of two; what an eager recurrence saves is not what its kernels do."""
    model = replace(GQA, mixer_pattern="K", kda=KimiDelta(num_heads=4, head_dim=32, **sizes))  # type: ignore[arg-type]
    (kind,) = model.layer_kinds
    same(layer(kind, eager(model)), real.Layer(model, kind), model, saved=None)


def test_a_selective_scan_costs_nine_flop_for_a_state_of_a_token() -> None:
    model = MODELS["Mamba-1"]
    (kind,) = model.layer_kinds
    block = layer(kind, eager(model))
    forward, backward = (
        sum(op.flops for op in ops if isinstance(op, Scan)) for ops in (block.forward, block.backward_input)
    )
    assert forward == 9 * 512 * 16 * BATCH * LENGTH
    assert backward == 2.5 * forward


@pytest.mark.parametrize("adapters", [False, True])
def test_a_shared_block_is_what_a_real_one_is(adapters: bool) -> None:
    """Zamba2's block with an adapter of its MLP, and with those of attention, before its Mamba-2 mixer."""
    shared = SharedBlocks(adapter_rank=16, use_shared_attention_adapter=adapters)
    model = replace(GQA, hybrid_layer_pattern="Z", mamba=DUAL, shared_blocks=shared)
    (kind,) = model.layer_kinds
    same(layer(kind, eager(model)), torch_recurrent.SharedBlockMixer(model, kind.mixer), model)  # type: ignore[arg-type]


def test_layers_of_gemma_3n_are_what_real_ones_are() -> None:
    """A gate that is cut, a plain one, and a layer that reads the second one's keys and values."""
    model = replace(
        GQA, num_layers=3, qk_layernorm=True, v_layernorm=True, sandwich_norm=True, altup_num_inputs=4, laurel_rank=16,
        hidden_size_per_layer_input=32, vocab_size_per_layer_input=1024, num_kv_shared_layers=1,
        per_layer=PerLayer(sparse_activation=(1, 0, 0)),
    )  # fmt: skip
    same([layer(kind, eager(model)) for kind in model.layer_kinds], torch_altup.Layers(model), model, saved=0.01)
