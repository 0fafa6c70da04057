"""Every switch of a recipe or an execution changes the operators that it is about, and only those."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowering_cases import (
    DEEPSEEK_V3,
    DENSE,
    EXPERTS,
    LLAMA_70B,
    attention_flops,
    collectives,
    flops,
    launches,
    named,
    names,
    phases,
    resolved,
    stream_bytes,
    syncs,
    with_execution,
)

from projector.errors import Unsupported
from projector.layers.lower import embedding, head, layer, mtp
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.workload import zoo
from projector.workload.model import decoder
from projector.workload.recipe import LoRA

# tensor parallelism


def test_without_sequence_parallelism_two_all_reduces_each_way():
    block = layer(DENSE, resolved(LLAMA_70B, tp=8, sequence_parallel=False))
    assert [c.kind for c in collectives(block.forward)] == ["all_reduce"] * 2
    assert [c.kind for c in collectives(block.backward_input)] == ["all_reduce"] * 2
    assert all(c.hides_behind for c in collectives(block.backward_input))
    assert named(block.forward, "input_norm").read == 2 * 4096 * 8192


def test_one_rank_communicates_nothing():
    for block in (layer(DENSE, resolved(LLAMA_70B)), head(resolved(LLAMA_70B)), layer(EXPERTS, resolved(DEEPSEEK_V3))):
        assert not [c for ops in phases(block) for c in collectives(ops)]


def test_overlapped_tensor_parallelism_exposes_one_chunk():
    plain = layer(DENSE, resolved(LLAMA_70B, tp=4))
    overlapped = layer(DENSE, resolved(LLAMA_70B, tp=4, tp_comm_overlap=True))
    exposed = sum(c.bytes for c in collectives(overlapped.forward) if not c.hides_behind)
    assert exposed == pytest.approx(sum(c.bytes for c in collectives(plain.forward)) / 4)
    for kind in ("all_gather", "reduce_scatter"):
        total = [sum(c.bytes for c in collectives(b.forward, kind)) for b in (plain, overlapped)]
        assert total[0] == total[1]


def test_products_beside_an_overlapped_message_run_piece_by_piece():
    apart, inside = (resolved(LLAMA_70B, tp=8, tp_comm_overlap=on) for on in (False, True))
    pieces = {"qkv": 8, "fc1": 8, "proj": 4, "fc2": 4, "proj.dgrad": 8, "fc2.dgrad": 8}
    for before, after in zip(phases(layer(DENSE, apart)), phases(layer(DENSE, inside)), strict=True):
        assert flops(before) == flops(after)
        cut = {op.name: op.batch for op in after if isinstance(op, Gemm) and op.batch > 1}
        assert cut == {name: pieces[name] for name in cut}
        assert all(op.launches == op.batch for op in after if isinstance(op, Gemm))
    assert {op.name for ops in phases(layer(DENSE, inside)) for op in ops if getattr(op, "batch", 1) > 1} == set(pieces)
    # the output layer is no layer of Transformer Engine
    assert named(head(inside).forward, "output.ag").hides_behind == ()


def test_more_ranks_than_key_value_groups_keep_one_group_each():
    case = resolved(replace(LLAMA_70B, num_query_groups=2), tp=8)
    assert named(layer(DENSE, case).forward, "qkv").n == 64 // 8 * 128 + 2 * 128


def test_latent_attention_gathers_latents_only():
    block = layer(DENSE, resolved(DEEPSEEK_V3, tp=4))
    gathered = {c.name: c.bytes for c in collectives(block.forward, "all_gather")}
    assert gathered["q_up.ag"] == 4096 * 1536 * 2
    assert gathered["kv_up.ag"] == 4096 * 512 * 2
    assert gathered["k_pe.ag"] == 4096 * 64 * 2
    assert named(block.forward, "q_down").m == 4096 // 4
    uncompressed = replace(DEEPSEEK_V3, mla=replace(DEEPSEEK_V3.mla, q_lora_rank=None))
    assert named(layer(DENSE, resolved(uncompressed, tp=4)).forward, "q_proj.ag").bytes == 4096 * 7168 * 2


# weights


@pytest.mark.parametrize(
    ("how", "accumulate", "extra"), [("fused", True, 0), ("separate", False, 10), ("none", False, 0)]
)
def test_gradient_accumulation(how, accumulate, extra):
    case = with_execution(resolved(LLAMA_70B), fusion={"wgrad_accumulation": how})
    block = layer(DENSE, case)
    gemms = [op for op in block.backward_weight if isinstance(op, Gemm)]
    assert all(op.accumulate is accumulate for op in gemms)
    adds = stream_bytes(op for op in block.backward_weight if op.name.endswith("wgrad.add"))
    assert adds == extra * sum(op.m * op.n for op in gemms)


def test_split_projections_have_the_same_flop_and_more_kernels():
    fused = layer(DENSE, resolved(LLAMA_70B, tp=2))
    split = layer(DENSE, with_execution(resolved(LLAMA_70B, tp=2), fusion={"qkv": False, "gate_up": False}))
    for a, b in zip(phases(fused), phases(split), strict=True):
        assert flops(a) == flops(b)
    assert len([op for op in split.forward if isinstance(op, Gemm)]) == 7
    assert split.owned.dense == fused.owned.dense
    assert sum(c.bytes for c in collectives(split.forward)) == sum(c.bytes for c in collectives(fused.forward))


def test_adapters_freeze_everything_else():
    base = layer(DENSE, resolved(LLAMA_70B, seq_length=8192))
    case = resolved(LLAMA_70B, seq_length=8192, lora=LoRA(dim=16))
    block = layer(DENSE, case)
    assert flops(block.backward_weight) < 0.01 * flops(base.backward_weight)
    assert {name.split(".")[0] for name in names(block.backward_weight)} == {"qkv", "proj"}
    assert flops(block.backward_input) > flops(base.backward_input)
    assert block.owned.dense - base.owned.dense == 16 * (8192 + 10240 + 8192 + 8192)
    assert not head(case).backward_weight
    assert not embedding(case).backward_input


def test_adapters_gather_again_what_an_overlapped_gather_keeps():
    """Transformer Engine returns the gathered input of a linear only where the gather is not part of the product."""
    how = {"tp": 4, "lora": LoRA(dim=16)}
    apart, inside = (layer(DENSE, resolved(LLAMA_70B, **how, tp_comm_overlap=on)) for on in (False, True))
    gathered = [op.name for op in inside.forward if op.name.endswith("lora_ag")]
    assert gathered == ["qkv.lora_ag"]  # the input of the projection is split by heads, not by tokens
    assert not [op for op in apart.forward if op.name.endswith("lora_ag")]
    assert named(inside.forward, "qkv.lora_ag").bytes == 2 * 4096 * 8192
    assert named(inside.backward_input, "qkv.lora_rs").bytes == 2 * 4096 * 8192


def test_dropout_of_an_adapter_costs_what_it_saves():
    case = resolved(LLAMA_70B, lora=LoRA(dim=16))
    dropping = layer(DENSE, with_execution(case, adapters={"dropout": 0.1}))
    mask = named(dropping.forward, "qkv.lora_dropout")
    assert (mask.read, mask.write) == (2 * 4096 * 8192, 3 * 4096 * 8192)
    assert not [op for op in layer(DENSE, case).forward if "dropout" in op.name]


def test_tied_weights_are_counted_once_on_one_stage():
    tied = replace(LLAMA_70B, untie_embeddings_and_output_weights=False)
    assert head(resolved(tied)).owned.dense == LLAMA_70B.hidden_size
    assert head(resolved(tied, pp=2)).owned.dense == head(resolved(LLAMA_70B)).owned.dense


# precision


@pytest.mark.parametrize(
    ("precision", "recipe", "dtype", "scaling"),
    [
        ("bf16", "tensorwise", "bf16", ""),
        ("fp16", "tensorwise", "fp16", ""),
        ("fp8", "delayed", "fp8", "tensorwise"),
        ("fp8", "tensorwise", "fp8", "tensorwise"),
        ("fp8", "rowwise", "fp8", "rowwise"),
        ("fp8", "blockwise", "fp8", "blockwise"),
        ("fp8", "mxfp8", "mxfp8", "mxfp8"),
        ("mxfp8", "mxfp8", "mxfp8", "mxfp8"),
        ("nvfp4", "nvfp4", "nvfp4", ""),
    ],
)
def test_operand_types(precision, recipe, dtype, scaling):
    case = resolved(DEEPSEEK_V3, precision=precision, fp8_recipe=recipe)
    block = layer(EXPERTS, case)
    plain = "fp16" if precision == "fp16" else "bf16"
    for op in block.forward:
        if isinstance(op, Attention):
            assert op.dtype == plain
        elif isinstance(op, Gemm | GroupedGemm):
            assert (op.dtype, op.scaling) == ((plain, "") if op.name == "router" else (dtype, scaling))
    assert named(head(case).forward, "output").dtype == plain
    assert bool([op for op in block.forward if isinstance(op, Stream) and op.kind == "cast"]) == (dtype != plain)


def test_quantised_elements_of_a_dense_layer():
    h, q, kv, f = 8192, 64 * 128, 2 * 8 * 128, 28672
    block = layer(DENSE, resolved(LLAMA_70B, precision="fp8", fp8_recipe="blockwise"))
    per_element = 2 + 2 + 2 * 4 / 128
    cast = stream_bytes(op for op in block.forward if op.name.endswith(".cast"))
    assert cast == pytest.approx(per_element * 4096 * (2 * h + q + f))
    cast = stream_bytes(op for op in block.backward_input if op.name.endswith(".grad_cast"))
    assert cast == pytest.approx(per_element * 4096 * (q + kv + h + 2 * f + h))


def test_norms_emit_quantised_output_when_the_scale_is_known():
    delayed = layer(DENSE, resolved(LLAMA_70B, precision="fp8", fp8_recipe="delayed"))
    assert "qkv.cast" not in names(delayed.forward)
    assert "proj.cast" in names(delayed.forward)


def test_first_and_last_layers_may_stay_in_bf16():
    case = resolved(LLAMA_70B, precision="fp8")
    assert layer(DENSE, case, quantised=False).forward == layer(DENSE, resolved(LLAMA_70B)).forward


def test_weights_are_cast_in_every_micro_batch_only_under_full_sharding():
    sharded = layer(DENSE, resolved(LLAMA_70B, precision="fp8", data_parallel_sharding="optim_grads_params"))
    kept = layer(DENSE, resolved(LLAMA_70B, precision="fp8"))
    assert names(sharded.forward) - names(kept.forward) == {
        f"{name}.weight_cast" for name in ("qkv", "proj", "fc1", "fc2")
    }


def test_fp8_attention_only_when_asked():
    case = resolved(LLAMA_70B, precision="fp8", fp8_dot_product_attention=True)
    assert named(layer(DENSE, case).forward, "core_attn").dtype == "fp8"


# attention


def test_sliding_window():
    case = resolved(LLAMA_70B, seq_length=8192)
    op = named(layer(decoder(False, 1024), case).forward, "core_attn")
    assert op.pairs == 1024 * 8192 - 1024**2 / 2
    ring = layer(decoder(False, 1024), resolved(LLAMA_70B, seq_length=8192, cp=4))
    assert not collectives(ring.forward, "send_recv")


def test_ring_attention_steps_hide_their_exchange():
    block = layer(DENSE, resolved(LLAMA_70B, cp=4, seq_length=16384))
    steps = [op for op in block.forward if isinstance(op, Attention)]
    assert [op.causal for op in steps] == [True, False, False, False]
    assert [(op.seq_q, op.seq_k) for op in steps] == [(4096, 4096), (4096, 2048), (2048, 4096), (4096, 2048)]
    ring = collectives(block.forward, "send_recv", "cp")
    assert [c.hides_behind for c in ring] == [(op.name,) for op in steps[:-1]]


def test_materialised_attention():
    case = with_execution(resolved(LLAMA_70B), fusion={"attention_materialised": True})
    ops = [op for ops in phases(layer(DENSE, case)) for op in ops if isinstance(op, Attention)]
    assert ops
    assert not any(op.flash for op in ops)


def test_positions_and_query_key_norms():
    learned = replace(LLAMA_70B, position_embedding_type="learned_absolute", max_position_embeddings=2048)
    assert "rope" not in names(layer(DENSE, resolved(learned)).forward)
    assert embedding(resolved(learned)).owned.dense - embedding(resolved(LLAMA_70B)).owned.dense == 2048 * 8192
    assert "qk_norm" in names(layer(DENSE, resolved(replace(LLAMA_70B, qk_layernorm=True))).forward)


# elementwise


def test_compiled_elementwise_kernels_are_fewer_and_read_less():
    plain = layer(DENSE, resolved(LLAMA_70B, apply_rope_fusion=False, bias_activation_fusion=False))
    compiled = layer(
        DENSE,
        with_execution(
            resolved(LLAMA_70B, apply_rope_fusion=False, bias_activation_fusion=False), fusion={"elementwise": True}
        ),
    )
    assert 8 <= launches(compiled.forward) <= 14
    for a, b in zip(phases(compiled)[:2], phases(plain)[:2], strict=True):
        assert launches(a) < launches(b)
        assert stream_bytes(a) < stream_bytes(b)
        assert flops(a) == flops(b)


@pytest.mark.parametrize(("gated", "expected"), [(True, 6), (False, 4)])
def test_activation_bytes(gated, expected):
    block = layer(DENSE, resolved(replace(LLAMA_70B, gated_linear_unit=gated)))
    assert named(block.forward, "act").bytes == expected * 28672 * 4096
    assert named(block.backward_input, "act.bwd").bytes == (10 if gated else 6) * 28672 * 4096


# recompute, graphs, loss, errors


@pytest.mark.parametrize(("model", "kind"), [(LLAMA_70B, DENSE), (DEEPSEEK_V3, EXPERTS)])
def test_full_recompute_is_the_forward_again(model, kind):
    block = layer(kind, resolved(model, tp=2, recompute_granularity="full"))
    assert tuple(op for op in block.recompute if op.name != "recompute.random_state") == block.forward
    assert not layer(kind, resolved(model, tp=2)).recompute


@pytest.mark.parametrize(
    ("module", "inside", "outside"),
    [
        ("core_attn", {"core_attn"}, {"qkv", "proj"}),
        ("layernorm", {"input_norm", "pre_mlp_norm"}, {"core_attn", "q_up"}),
        ("mla_up_proj", {"q_up", "kv_up", "rope"}, {"q_down", "core_attn"}),
        ("moe_act", {"experts.act"}, {"experts.fc1", "moe.dispatch"}),
        ("moe", {"router", "experts.fc1", "moe.dispatch", "moe.combine", "moe.counts"}, {"core_attn", "pre_mlp_norm"}),
        ("shared_experts", {"shared.fc1", "shared.act"}, {"router", "experts.fc1"}),
    ],
)
def test_selective_recompute(module, inside, outside):
    case = resolved(DEEPSEEK_V3, ep=8, recompute_granularity="selective", recompute_modules=(module,))
    replayed = names(layer(EXPERTS, case).recompute)
    assert inside <= replayed
    assert not outside & replayed


def test_selective_recompute_of_a_dense_network():
    case = resolved(LLAMA_70B, tp=2, recompute_granularity="selective", recompute_modules=("mlp",))
    assert {"fc1", "fc2", "fc1.ag", "fc2.rs"} <= names(layer(DENSE, case).recompute)
    default = resolved(LLAMA_70B, recompute_granularity="selective")
    assert attention_flops(layer(DENSE, default).recompute) == attention_flops(layer(DENSE, default).forward)


def test_graph_scopes_name_operators():
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, cuda_graph_scope=("attn", "moe_router")))
    assert {"q_up", "q_up.dgrad", "core_attn.bwd", "router", "proj.wgrad"} <= block.graphed
    assert not {"moe.dispatch", "experts.fc1"} & block.graphed
    whole = layer(DENSE, resolved(LLAMA_70B, cuda_graph_scope=("full",)))
    assert whole.graphed == {op.name for ops in phases(whole) for op in ops}
    assert not layer(DENSE, resolved(LLAMA_70B)).graphed


@pytest.mark.parametrize(("how", "per_logit"), [("unfused", 52), ("native", 30), ("te", 10), ("linear", 0)])
def test_cross_entropy_bytes(how, per_logit):
    case = resolved(LLAMA_70B, cross_entropy_fusion=how)
    block = head(case)
    logits = 4096 * case.workload.padded_vocab_size
    loss = stream_bytes(op for op in (*block.forward, *block.backward_input) if op.name in ("loss", "loss.bwd"))
    assert loss == per_logit * logits
    again = flops(block.backward_input) - flops(block.forward)
    assert again == (flops(block.forward) if how == "linear" else 0)


def test_loss_check_waits_for_the_device():
    assert syncs(head(resolved(LLAMA_70B)).forward) == 1
    assert syncs(head(resolved(LLAMA_70B, check_for_nan_in_loss_and_grad=False)).forward) == 0


def test_embedding_gradient_is_dense():
    block = embedding(resolved(LLAMA_70B, make_vocab_size_divisible_by=64))
    weight = 128256 * 8192
    assert stream_bytes(block.backward_input) == pytest.approx(
        (2 + 2 + 4 + 4) * weight + 4 * 4096 * 8192 + 2 * 4096 * 8192
    )


def test_what_no_operator_lowers_is_refused():
    with pytest.raises(Unsupported, match="state space"):
        layer(DENSE, resolved(replace(LLAMA_70B, unsupported=("state space layers",))))
    with pytest.raises(Unsupported, match="experts"):
        layer(EXPERTS, resolved(LLAMA_70B))


def test_names_are_unique_inside_a_phase():
    for block in (
        layer(DENSE, resolved(LLAMA_70B, tp=4, cp=4, precision="fp8", tp_comm_overlap=True)),
        layer(EXPERTS, resolved(DEEPSEEK_V3, tp=2, ep=8, etp=2, cp=2, precision="mxfp8")),
        head(resolved(LLAMA_70B, tp=2)),
        mtp(resolved(DEEPSEEK_V3, tp=2)),
    ):
        for ops in (*phases(block), block.recompute):
            assert len({op.name for op in ops}) == len(ops)


def test_blocks_are_built_once():
    case = resolved(LLAMA_70B, tp=2)
    assert layer(DENSE, case) is layer(DENSE, resolved(LLAMA_70B, tp=2))


def test_sharded_units_of_fsdp2_copy_weights_and_gradients():
    case = resolved(LLAMA_70B, data_parallel_sharding="optim_grads_params", data_parallel_shard_size=8)
    fsdp2 = with_execution(case, data_parallel={"strategy": "fsdp2", "gather_bytes": 2.0, "reduce_bytes": 4.0})
    one_buffer = layer(DENSE, with_execution(case, data_parallel={"strategy": "fsdp1"}))
    block = layer(DENSE, fsdp2)
    weights = block.owned.dense
    assert block.forward[0].name.endswith("copy_out")
    assert stream_bytes(block.forward) - stream_bytes(one_buffer.forward) == pytest.approx(4 * weights)
    extra = stream_bytes(block.backward_input) - stream_bytes(one_buffer.backward_input)
    assert extra == pytest.approx((4 + 6) * weights)


def test_unfused_permutation_adds_copies_by_atomics():
    fused = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, moe_permute_fusion=True))
    eager = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, moe_permute_fusion=False))
    kinds = [{op.name: op.kind for op in block.forward if isinstance(op, Stream)} for block in (fused, eager)]
    assert [k["moe.unpermute"] for k in kinds] == ["permute", "scatter"]
    rows = named(eager.forward, "moe.unpermute")
    assert rows.read == rows.write > named(fused.forward, "moe.unpermute").write


def test_sync_free_stages_move_and_then_remove_the_wait():
    def order(stage: int) -> list[str]:
        case = resolved(DEEPSEEK_V3, ep=8, moe_token_dispatcher_type="flex", sync_free_stage=stage)
        return [op.name for op in layer(EXPERTS, case).forward]

    assert order(1).index("moe.counts") < order(1).index("moe.dispatch")
    assert order(2).index("moe.counts") > order(2).index("moe.dispatch")
    assert "moe.counts" not in order(3)
    for stage, backend in ((1, "multi_stream"), (2, "fused")):
        case = resolved(DEEPSEEK_V3, ep=8, moe_token_dispatcher_type="flex", sync_free_stage=stage)
        assert {op.backend for op in layer(EXPERTS, case).forward if isinstance(op, GroupedGemm)} == {backend}


def test_row_wise_scaling_gathers_sixteen_bits_and_casts_everything():
    fp8 = {"precision": "fp8", "tp": 8, "tp_comm_overlap": True}
    tensor, row = (
        layer(
            DENSE,
            with_execution(
                resolved(LLAMA_70B, **fp8, fp8_recipe=how),
                tensor_parallel={"quantised_gather": "tensorwise"},
            ),
        )
        for how in ("tensorwise", "rowwise")
    )
    gathered = [sum(c.bytes for c in collectives(b.forward, "all_gather")) for b in (tensor, row)]
    assert gathered[1] == 2 * gathered[0]
    assert all(not c.hides_behind for c in collectives(row.forward, "all_gather"))
    assert any(c.hides_behind for c in collectives(tensor.forward, "all_gather"))
    assert named(row.forward, "qkv.cast").read == 8 * named(tensor.forward, "qkv.cast").read
    assert "qkv.dgrad_scale" in names(row.backward_input)
    assert "qkv.dgrad_scale" not in names(tensor.backward_input)


def test_a_fused_adapter_scales_and_adds_inside_products():
    """TransformerEngine's operation fuser, NVIDIA/NeMo PR 14411: the same products, no pass of their own beside them."""
    case = resolved(LLAMA_70B, lora=LoRA(dim=16))
    apart, fused = (layer(DENSE, with_execution(case, adapters={"fused": is_})) for is_ in (False, True))
    for way in ("forward", "backward_input", "backward_weight"):
        one, other = ([op for op in getattr(block, way) if "lora" in op.name] for block in (apart, fused))
        assert sum(op.flops for op in one) == sum(op.flops for op in other)
        assert sum(op.launches for op in one) >= sum(op.launches for op in other)
    assert named(fused.forward, "qkv.lora_b").accumulate
    assert not {"qkv.lora_scale", "qkv.lora_add"} & names(fused.forward)
    assert named(fused.backward_input, "qkv.lora_grad_add").launches == 0
    split = resolved(LLAMA_70B, lora=LoRA(dim=16), tp=4)
    assert "qkv.lora_add" in names(layer(DENSE, with_execution(split, adapters={"fused": True})).forward)


def test_expert_biases_and_clamps_are_counted_as_they_run():
    oss = zoo.load("gpt_oss_120b")
    block = layer(decoder(True, 128), with_execution(resolved(oss, ep=8), fusion={"expert_bias": False}))
    rows = named(block.forward, "experts.fc2").rows
    bias = named(block.forward, "experts.fc2.bias"), named(block.forward, "experts.fc2.bias.add")
    assert [op.bytes for op in bias] == [18 * rows * oss.hidden_size, 10 * rows * oss.hidden_size]
    assert [op.kind for op in bias] == ["elementwise", "strided"]
    assert "experts.fc1.bias" not in names(block.forward)  # in the epilogue of the product
    half = rows * oss.moe.moe_ffn_hidden_size  # each clamp reads and writes 2 bytes an element of its half, cat both
    assert [named(block.forward, f"experts.clamp{of}").bytes for of in ("", ".cat")] == [8 * half, 8 * half]
    # backward: (2+1) + (1+2+2) of the first half, twice (2+1) + (1+2+2) of the second; (1+1+1), and both gradients
    assert named(block.backward_input, "experts.clamp.bwd").bytes == (3 + 5 + 3 + 3 + 5) * half
    assert named(block.backward_input, "experts.clamp.cat.bwd").bytes == (3 + 8) * half
    assert named(block.forward, "rope").launches > 2  # no fused kernel scales by the magnitude of YaRN


TORCH = {"tensor_parallel": {"strategy": "dtensor"}, "fusion": {"strategy": "torch_eager"}}


@pytest.mark.parametrize(("batch", "gathers"), [(1, 0), (2, 6)])
def test_sharded_tensors_copy_what_they_exchange_along_the_sequence(batch, gathers):
    """torch's collectives join the first dimension: every scatter copies its input, a gather its output beyond batch one."""
    case = resolved(LLAMA_70B, execution=Execution.of(**TORCH), tp=8, micro_batch_size=batch)
    ops = [op for ops in phases(layer(DENSE, case)) for op in ops]
    exchanged = {op.name: op for op in collectives(ops, group="tp")}
    copied = [op for op in ops if op.name.endswith(".copy")]
    kinds = [exchanged[op.name.removesuffix(".copy")].kind for op in copied]
    assert (kinds.count("reduce_scatter"), kinds.count("all_gather")) == (4, gathers)
    assert all(op.read == op.write == exchanged[op.name.removesuffix(".copy")].bytes for op in copied)


def test_symmetric_memory_exchanges_in_place():
    case = resolved(
        LLAMA_70B, execution=Execution.of(**TORCH), tp=8, micro_batch_size=2, tp_comm_overlap=True, torch_compile=True
    )
    assert not [op for op in layer(DENSE, case).forward if op.name.endswith(".copy")]


def test_only_a_compiler_joins_the_functions_of_a_cast():
    def bytes_of(compiled: bool, how: Execution) -> float:
        recipe = {"precision": "fp8", "fp8_recipe": "tensorwise", "torch_compile": compiled}
        ops = layer(DENSE, resolved(LLAMA_70B, execution=how, **recipe)).forward
        return stream_bytes(op for op in ops if op.name.endswith("cast"))

    torch, fused = Execution.of(**TORCH), Execution()
    assert bytes_of(True, torch) == bytes_of(True, fused) == bytes_of(False, fused)
    assert bytes_of(False, torch) == pytest.approx(35 / 6 * bytes_of(True, torch))
