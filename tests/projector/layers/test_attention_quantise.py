"""8-bit core attention: its casts, and what context-parallel messages carry."""

from dataclasses import replace

import pytest
from asked import refusal
from lowering_cases import LLAMA_70B, collectives, resolved, stream_bytes, with_execution

from projector.errors import Unsupported
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.layers.attention_core import Heads
from projector.layers.context_parallel import core_attention
from projector.layers.local import local
from projector.layers.lower import head, layer
from projector.layers.mlp import mlp
from projector.operators.types import Attention, Collective, Gemm, Stream
from projector.pipeline.schedules import build
from projector.projection import project
from projector.step.stage_messages import activations
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.workloads import workload

HEADS = Heads(heads=64, kv_heads=8, qk=128, v=128)
TOKENS = 8192
INPUTS, OUTPUTS = (64 + 2 * 8) * 128, 64 * 128  # elements of a token


def lowered(**recipe):
    stated = {"seq_length": TOKENS, "precision": "fp8", "fp8_recipe": "delayed", "fp8_dot_product_attention": True}
    return core_attention(HEADS, local(resolved(LLAMA_70B, **(stated | recipe))), frozenset())


def message_bytes(ops):
    return sum(op.bytes for op in collectives(ops, group="cp"))


def per_token(ops):
    return stream_bytes(op for op in ops if op.name.startswith("core_attn.")) / TOKENS


def streams(ops):
    return {op.name: (op.read / TOKENS, op.write / TOKENS) for op in ops if isinstance(op, Stream)}


def test_casts_follow_the_scaling():
    delayed, current, mx = lowered(), lowered(fp8_recipe="tensorwise"), lowered(precision="mxfp8")
    assert streams(delayed.forward) == {
        "core_attn.join": (2 * INPUTS, 2 * INPUTS),
        "core_attn.cast": (2 * INPUTS, INPUTS),
        "core_attn.out_widen": (OUTPUTS, 2 * OUTPUTS),
    }
    assert streams(delayed.backward_input) == {
        "core_attn.grad_cast": (2 * OUTPUTS, OUTPUTS),
        "core_attn.grad_widen": (INPUTS, 2 * INPUTS),
    }
    # 16-bit results; a pass for the maximum
    assert streams(current.forward)["core_attn.cast"] == (4 * INPUTS, INPUTS)
    assert set(streams(current.backward_input)) == {"core_attn.grad_cast"}
    assert streams(mx.forward) == {"core_attn.cast": (2 * INPUTS, (2 + 2 / 32) * INPUTS)}
    for plain in (lowered(fp8_dot_product_attention=False), lowered(precision="bf16")):
        assert per_token(plain.forward) == per_token(plain.backward_input) == 0.0


@pytest.mark.parametrize("how", ["p2p", "a2a"])
def test_messages_carry_eight_bits_where_attention_was_cast_before_them(how):
    def share(**recipe):
        case, plain = (lowered(cp=8, cp_comm_type=how, fp8_dot_product_attention=on, **recipe) for on in (True, False))
        return [message_bytes(a) / message_bytes(b) for a, b in zip(_passes(case), _passes(plain), strict=True)]

    assert share() == pytest.approx([0.5, 0.5])
    forward, backward = share(fp8_recipe="tensorwise")
    assert 0.5 <= forward < 1.0
    assert 0.5 < backward < 1.0
    assert share(precision="mxfp8") == pytest.approx([1.0, 1.0])


def test_casts_are_divided_with_the_sequence():
    for how in ("p2p", "a2a", "allgather"):
        split = lowered(cp=8, cp_comm_type=how)
        for mine, alone in zip(_passes(split), _passes(lowered()), strict=True):
            assert 8 * per_token(mine) == pytest.approx(per_token(alone))


def test_an_output_saved_behind_the_exchange_travels_back():
    case = resolved(LLAMA_70B, seq_length=TOKENS, cp=8, cp_comm_type="a2a")
    kept, moved = (
        core_attention(HEADS, local(with_execution(case, fusion={"cp_a2a_keeps_output": keeps})), frozenset())
        for keeps in (True, False)
    )
    output = 2.0 * TOKENS / 8 * OUTPUTS
    assert message_bytes(moved.forward) == message_bytes(kept.forward)
    assert message_bytes(moved.backward_input) - message_bytes(kept.backward_input) == output
    assert sum(s.bytes for s in kept.saves) - sum(s.bytes for s in moved.saves) == output


def test_an_activation_that_casts_spares_the_linears_beside_it():
    def made(fused, **recipe):
        case = resolved(LLAMA_70B, seq_length=TOKENS, **({"precision": "fp8", "fp8_recipe": "delayed"} | recipe))
        parts = mlp(local(with_execution(case, fusion={"activation_casts": fused})))
        return [op for part in parts for op in (*part.forward, *part.backward_input) if isinstance(op, Stream)]

    def casts(fused, **recipe):
        return {op.name: op.bytes / TOKENS for op in made(fused, **recipe) if op.kind == "cast"}

    alone, fused = casts(False), casts(True)
    assert {name: alone[name] for name in alone.keys() - fused.keys()} == {
        "fc2.cast": 4 * LLAMA_70B.ffn_hidden_size,
        "fc1.grad_cast": 8 * LLAMA_70B.ffn_hidden_size,
    }
    assert fused.items() <= alone.items()
    assert casts(True, fp8_recipe="tensorwise") == casts(False, fp8_recipe="tensorwise")
    stored = casts(False, activation_func_fp8_input_store=True)
    halves = 2 * LLAMA_70B.ffn_hidden_size
    assert stored.items() - alone.items() == {("act.store", 3 * halves), ("act.restore", 3 * halves)}


def _passes(part):
    return part.forward, part.backward_input


# Laws of attention residuals: more candidates later, wider messages, weights counted once.

PLAIN = zoo.load("llama3_8b")
MIXED = replace(PLAIN, attn_res_block_size=12)


def case(model, **recipe):
    return resolve(workload(model, **{"global_batch_size": 32} | recipe), "nvidia", "hopper")


def mixing(block) -> float:
    return sum(op.bytes for op in block.forward if isinstance(op, Stream) and ".mix" in op.name)


def test_a_later_layer_mixes_more_and_the_head_most() -> None:
    made = case(MIXED)
    candidates = [kind.residual_candidates for kind in MIXED.layer_kinds]
    assert (candidates[0], candidates[1], candidates[12], candidates[13], candidates[-1]) == (1, 2, 2, 3, 4)
    assert candidates == sorted(candidates)
    cost = [mixing(layer(kind, made)) for kind in dict.fromkeys(MIXED.layer_kinds)]
    assert cost == sorted(cost)
    assert cost[0] > 0
    assert mixing(head(made)) * 2 == cost[-1]  # a layer has two mixers
    assert mixing(layer(PLAIN.layer_kinds[0], case(PLAIN))) == 0


def test_checkpoints_travel_with_the_residual() -> None:
    """Stages begin at layers 8, 16, 24 of 32: two, three, three tensors where a plain residual sends one."""
    sent = [
        [each.bytes for each in activations(case(model, pp=4), build("1f1b", 4, 1, 32)) if each]
        for model in (MIXED, PLAIN)
    ]
    assert [wide / one for wide, one in zip(*sent, strict=True)] == [2, 3, 3]


def test_mixers_are_counted_and_held() -> None:
    vectors = 2 * PLAIN.hidden_size * (2 * PLAIN.num_layers + 1)
    assert count(MIXED).main - count(PLAIN).main == vectors
    layers = sum(layer(kind, case(MIXED)).held.total for kind in MIXED.layer_kinds) + head(case(MIXED)).held.total
    plain = sum(layer(kind, case(PLAIN)).held.total for kind in PLAIN.layer_kinds) + head(case(PLAIN)).held.total
    assert layers - plain == vectors


# Laws of compressed sparse attention and of a residual of several streams.

FLASH = zoo.load("deepseek_v4_flash")


def blocks(model, **recipe):
    case = resolve(workload(model, **{"global_batch_size": 8, "ep": 8} | recipe), "nvidia", "hopper")
    return {kind.name: layer(kind, case) for kind in dict.fromkeys(model.layer_kinds)}


def test_keys_of_a_query_are_bounded_and_grow_with_the_sequence() -> None:
    sizes = FLASH.compressed
    for seq in (64, 4096, 131072, 2**20):
        window, chosen, all_entries = (sizes.keys(ratio, seq) for ratio in (0, 4, 128))
        assert window <= min(128, seq)
        assert window <= chosen <= window + min(512, seq / 4)
        assert all_entries == pytest.approx(window + seq / 256)
    assert sizes.keys(128, 2**20) > sizes.keys(4, 2**20) > sizes.keys(4, 4096)


def test_a_longer_sequence_costs_the_indexer_its_square_and_attention_its_length() -> None:
    short, long = (blocks(FLASH, seq_length=seq)["compressed4_moe"].forward for seq in (8192, 32768))
    scores = [sum(op.flops for op in ops if op.name == "indexer.scores") for ops in (short, long)]
    core = [sum(op.flops for op in ops if isinstance(op, Attention)) for ops in (short, long)]
    assert scores[1] == pytest.approx(16 * scores[0])
    assert 4 * core[0] <= core[1] < 4.5 * core[0]
    assert not any(op.name == "indexer.scores" for op in blocks(FLASH)["compressed128_moe"].forward)


def test_a_trained_indexer_costs_more_and_its_gradient_stays_its_own() -> None:
    """Attention's scores once more (half of its forward: no values), weight gradients of the indexer, nothing below it."""
    learning = replace(FLASH, compressed=replace(FLASH.compressed, trained=True))
    frozen, trained = (blocks(model)["compressed4_moe"] for model in (FLASH, learning))
    flops = {op.name: op.flops for op in trained.forward if isinstance(op, Attention)}
    assert flops["indexer.target"] == flops["core_attn"] / 2
    for phase in ("forward", "backward_input", "backward_weight"):
        one, other = ({op.name for op in getattr(block, phase)} for block in (frozen, trained))
        assert one < other
        assert all(name.startswith("indexer") for name in other - one)
        assert "indexer.q.dgrad" not in other
    assert trained.saved_bytes > frozen.saved_bytes
    assert blocks(learning)["compressed128_moe"] == blocks(FLASH)["compressed128_moe"]
    cluster = catalogue.default_cluster("mi355x")
    runs = [
        project(workload(model, framework="primus", global_batch_size=8, ep=8), cluster) for model in (FLASH, learning)
    ]
    assert runs[0].step_seconds < runs[1].step_seconds
    assert runs[0].memory.required <= runs[1].memory.required


def test_streams_widen_what_is_kept_and_what_is_sent() -> None:
    """At four streams: four times the message between stages, 24 × 4 h of projection for each half of a layer."""
    one = replace(FLASH, hyper_connections=0)
    sent = []
    for model in (FLASH, one):
        case = resolve(workload(model, global_batch_size=8, pp=4, ep=2), "nvidia", "hopper")
        sent.append(sum(each.bytes for each in activations(case, build("1f1b", 4, 1, 8)) if each))
    assert sent[0] == 4 * sent[1] > 0
    wide, plain = blocks(FLASH)["compressed0_moe"], blocks(one)["compressed0_moe"]
    assert wide.saved_bytes > plain.saved_bytes + 2 * 3 * 2 * 4096 * 4096
    products = [sum(op.flops for op in each.forward if isinstance(op, Gemm)) for each in (wide, plain)]
    assert products[0] - products[1] == 2 * 2 * 4096 * 24 * 4 * 4096


def test_ranks_that_share_a_sequence_gather_entries_and_get_what_is_before_them() -> None:
    """A rank's tokens, the window's hidden states from its neighbour, the entries of all; the last rank sees most keys."""
    whole, split = blocks(FLASH, ep=4), blocks(FLASH, cp=4, ep=4)
    sizes = FLASH.compressed
    assert sizes is not None
    assert whole["compressed0_moe"].held.total == split["compressed0_moe"].held.total
    h, d, seq = FLASH.hidden_size, FLASH.kv_channels, 4096
    for ratio, entries in ((0, 0), (4, seq // 4), (128, seq // 128)):
        for phase, kind in (("forward", "all_gather"), ("backward_input", "reduce_scatter")):
            found = [op for op in getattr(split[f"compressed{ratio}_moe"], phase) if isinstance(op, Collective)]
            sent = [op.bytes for op in found if op.kind == "send_recv"]
            wide = d + (sizes.index_head_dim if ratio == 4 and phase == "forward" else 0)
            assert sent == [2 * h * 128]
            assert sum(op.bytes for op in found if op.kind == kind and op.group == "cp") == 2 * entries * wide
        cores = [
            op for each in (whole, split) for op in each[f"compressed{ratio}_moe"].forward if op.name == "core_attn"
        ]
        assert [op.keys for op in cores] == [sizes.keys(ratio, seq), sizes.keys(ratio, seq, 4)]
        assert cores[0].flops / 4 < cores[1].flops < cores[0].flops / 2
        # all parts of a sequence together: the mean over growing prefixes gives the last part back
        last = 4 * sizes.keys(ratio, seq) - 3 * sizes.keys(ratio, 3 * seq // 4)
        assert sizes.keys(ratio, seq, 4) == pytest.approx(last)
    cluster = catalogue.default_cluster("h200_sxm")
    times = [
        project(Workload(model=FLASH, recipe=Recipe(micro_batch_size=1, global_batch_size=8, seq_length=32768, ep=8, cp=cp),
                         gpus=8), cluster).step_seconds for cp in (1, 2, 8)
    ]  # fmt: skip
    assert 1 < times[1] / times[0] < 2


def test_what_is_not_there_is_refused() -> None:
    refusal(blocks, FLASH, cp=8, seq_length=512, match="fewer than 128 tokens", kind=Unsupported)
    refusal(zoo.load, "deepseek_v4_flash", compressed={"compress_ratios": "every fourth"}, match="compress_ratios")
