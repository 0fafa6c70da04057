"""Tensor parallelism, weights and adapters: each switch changes the operators that it is about, and only those."""

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
    named,
    names,
    phases,
    resolved,
    stream_bytes,
    with_execution,
)

from projector.hardware import catalogue
from projector.layers import lower
from projector.layers.lower import embedding, head, layer
from projector.operators.module import Block
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.projection import project
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.validate import problems
from projector.workload.workload import Workload


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


def test_libraries_of_grouped_products_return_the_gradient_of_experts():
    """Transformer Engine's adds it inside the product where linears do; the others leave 2 + 4 read and 4 written."""
    cases = {how: resolved(DEEPSEEK_V3, ep=8, moe_grouped_gemm=how) for how in ("te", "fused", "legacy")}
    blocks = {how: layer(EXPERTS, case) for how, case in cases.items()}
    for how, block in blocks.items():
        experts = [op for op in block.backward_weight if isinstance(op, GroupedGemm)]
        assert all(op.accumulate is (how == "te") for op in experts)
        adds = stream_bytes(op for op in block.backward_weight if op.name.endswith("wgrad.add"))
        assert adds == (0 if how == "te" else 10 * sum(op.groups * op.n * op.k for op in experts))
        assert [flops(ops) for ops in phases(block)] == [flops(ops) for ops in phases(blocks["te"])]


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


def test_row_wise_scaling_gathers_sixteen_bits_and_casts_everything():
    fp8 = {"precision": "fp8", "tp": 8, "tp_comm_overlap": True}
    tensor, row = (
        layer(
            DENSE,
            with_execution(
                resolved(LLAMA_70B, **fp8, fp8_recipe=how), tensor_parallel={"quantised_gather": "tensorwise"}
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


# torch's ring attention: what is gathered, what goes round the ring, and what the merges touch.

SEQ, HEADS, WIDTH = 8192, 64, 128


def ring(cp: int, eager: bool = True, compiled: bool = False) -> Block:
    fusion = {"eager_ring": eager, "elementwise": compiled}
    case = with_execution(resolved(LLAMA_70B, cp=cp, cp_comm_type="p2p", seq_length=SEQ), fusion=fusion)
    return layer(LLAMA_70B.layer_kinds[0], case)


def touched(block: Block) -> float:
    ops = (*block.forward, *block.backward_input)
    return sum(op.bytes for op in ops if isinstance(op, Stream) and op.name.startswith("cp."))


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_keys_are_gathered_once_beside_the_first_step(cp: int) -> None:
    block = ring(cp)
    whole = 2.0 * SEQ * HEADS * 2 * WIDTH  # heads repeated, keys and values, 16 bits
    for ops, first in ((block.forward, "core_attn.step0"), (block.backward_input, "core_attn.step0.bwd")):
        (gather,) = collectives(ops, "all_gather", "cp")
        assert gather.bytes == whole
        assert gather.hides_behind == (first,)
    assert not collectives(block.forward, "send_recv")
    pack = named(block.forward, "cp.pack")
    assert isinstance(pack, Stream)
    assert pack.read == pack.write == whole / cp * (cp - 1)


@pytest.mark.parametrize("cp", [2, 4, 8, 16])
def test_gradients_go_round_the_ring_in_fp32(cp: int) -> None:
    """Each of cp messages beside the step after it; what is left after the last one is beside nothing."""
    sent = collectives(ring(cp).backward_input, "send_recv", "cp")
    assert sum(op.bytes for op in sent) == 4.0 * SEQ * HEADS * 2 * WIDTH
    assert sum(op.launches for op in sent) == cp
    assert all(op.hides_behind for op in sent[:-1])
    if cp <= 8:
        assert sent[-1].hides_behind == ()


@pytest.mark.parametrize("cp", [2, 4, 8, 16])
def test_a_compiled_ring_waits_for_each_message(cp: int) -> None:
    """The same messages and products as of the eager ring, beside nothing, and fewer bytes in fewer kernels."""
    eager, compiled = ring(cp), ring(cp, compiled=True)
    for name in ("forward", "backward_input"):
        mine, its = (collectives(getattr(block, name), None, "cp") for block in (compiled, eager))
        assert [(op.kind, op.bytes, op.launches) for op in mine] == [(op.kind, op.bytes, op.launches) for op in its]
        assert not any(op.hides_behind for op in mine)
        assert [op for op in getattr(compiled, name) if isinstance(op, Attention)] == [
            op for op in getattr(eager, name) if isinstance(op, Attention)
        ]
    assert touched(compiled) < touched(eager)
    assert named(compiled.forward, "cp.pack").launches == 1


# SUMMA: products are divided and none is added, nothing is held twice, messages have closed forms.

GPT = zoo.load("gpt3_175b")
KIND = GPT.layer_kinds[0]
GRIDS = ((4, 2), (2, 4), (1, 4), (8, 1), (4, 4))


def summa_block(tp: int, tp2: int, panels: int | None = None, **more: object) -> Block:
    how = "summa" if tp2 > 1 else "1d"
    stated = {"tensor_parallel_algorithm": how, "summa_panels": panels, "seq_length": 2048, **more}
    return lower.layer(KIND, resolved(GPT, tp=tp, tp2=tp2, **stated))


def matrices(made: Block) -> float:
    return made.held.only("linear").total


@pytest.mark.parametrize(("tp", "tp2"), GRIDS)
def test_work_and_weights_are_divided_and_nothing_is_added(tp: int, tp2: int) -> None:
    one, mine, ranks = summa_block(1, 1), summa_block(tp, tp2), tp * tp2
    for whole, part in zip(phases(one), phases(mine), strict=True):
        assert flops(part) * ranks == pytest.approx(flops(whole))
        assert attention_flops(part) * ranks == pytest.approx(attention_flops(whole))
    assert matrices(mine) * ranks == matrices(one)


def test_no_activation_is_held_twice() -> None:
    """What all ranks of a grid save is what one rank would; 1d without sequence parallelism saves parts ``tp`` times."""
    one, grid = summa_block(1, 1), summa_block(4, 2)
    spread, copied = summa_block(8, 1), summa_block(8, 1, sequence_parallel=False)
    assert grid.saved_bytes * 8 == pytest.approx(one.saved_bytes, rel=1e-3)
    assert spread.saved_bytes * 8 == pytest.approx(one.saved_bytes, rel=2e-2)
    assert grid.saved_bytes < copied.saved_bytes / 1.5
    assert grid.forward_transient is not None


def test_messages_of_a_layer_in_closed_form() -> None:
    """With b·s/tp2 rows, width h and MLP 4h: inputs of 7h over tp (h, h, h, 4h), weights of 12h²/tp over tp2, each once
    forward and twice backward; the first of the panels in the open."""
    tp, tp2, panels, h = 4, 2, 16, GPT.hidden_size
    made = summa_block(tp, tp2, panels)
    inputs = 2.0 * (2048 // tp2) * (h + h + h + 4 * h)
    weights = 2.0 * 12 * h * h / tp

    def moved(ops: object, group: str, *kinds: str) -> float:
        return sum(op.bytes for kind in kinds for op in collectives(ops, kind, group))  # type: ignore[arg-type]

    assert moved(made.forward, "tp", "broadcast") == pytest.approx(inputs)
    assert moved(made.forward, "tp2", "broadcast") == pytest.approx(weights)
    backward = (*made.backward_input, *made.backward_weight)
    assert moved(backward, "tp", "broadcast", "reduce_scatter") == pytest.approx(2 * inputs)
    # keys and values go the other way round the sequence: their gradients are scattered over tp2, too
    attention = 2.0 * 2048 * 2 * h / tp
    assert moved(backward, "tp2", "broadcast", "reduce_scatter") == pytest.approx(2 * weights + attention)
    assert moved(made.forward, "tp2", "all_gather") == pytest.approx(attention)
    shown = sum(op.bytes for op in collectives(made.forward, "broadcast") if not op.hides_behind)
    assert shown == pytest.approx((inputs + weights) / panels)


def test_a_grid_of_one_row_is_one_dimension() -> None:
    assert lower.layer(KIND, resolved(GPT, tp=8, seq_length=2048, tensor_parallel_algorithm="summa")) == summa_block(
        8, 1
    )
    cluster = catalogue.cluster("h100")

    def step(**recipe: object) -> float:
        stated = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048, "pp": 4, "tp": 4, **recipe}
        work = Workload(model=GPT, recipe=Recipe(**stated), gpus=64, framework="analytic")  # type: ignore[arg-type]
        return project(work, cluster).step_seconds

    assert step(tensor_parallel_algorithm="summa") == step() == step(tensor_parallel_algorithm="1d")
    apart = {"cp": 2, "cp_comm_type": "allgather", "sequence_parallel": True}
    assert step(tensor_parallel_algorithm="2d_sequence", cp=2) == step(**apart)
    few, many = (step(tensor_parallel_algorithm="summa", tp2=2, summa_panels=n) for n in (4, 16))
    assert few != many


def test_ends_of_the_model_are_divided_too() -> None:
    case = resolved(GPT, tp=4, tp2=2, tensor_parallel_algorithm="summa")
    one = resolved(GPT)
    table = [lower.embedding(each).held.only("embedding").total for each in (one, case)]
    head = [lower.head(each).held.only("output").total for each in (one, case)]
    learned = GPT.hidden_size * (GPT.max_position_embeddings or 0)
    padded = replace(case.workload).padded_vocab_size * GPT.hidden_size
    assert table[1] == padded / 8 + learned
    assert head[1] in (0.0, padded / 8)
    assert table[0] >= GPT.vocab_size * GPT.hidden_size


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ({"tensor_parallel_algorithm": "1d"}, "tp2"),
        ({"tensor_parallel_algorithm": None, "tp2": 1, "summa_panels": 8}, "summa_panels"),
        ({"summa_panels": 6}, "summa_panels"),
        ({"tp2": 7}, "tp2"),
        ({"cp": 2}, "cp"),
        ({"precision": "fp8"}, "precision"),
        ({"lora": LoRA(dim=8)}, "lora"),
        ({"tp_comm_overlap": True}, "tp_comm_overlap"),
        ({"sequence_parallel": False}, "sequence_parallel"),
        ({"tensor_parallel_algorithm": "2d_sequence", "tp2": 1, "cp_comm_type": "p2p"}, "cp_comm_type"),
    ],
)
def test_what_it_does_not_go_with_is_refused(recipe: dict[str, object], key: str) -> None:
    stated = {"micro_batch_size": 1, "global_batch_size": 448, "seq_length": 2048, "tp": 4, "tp2": 2}
    stated |= {"tensor_parallel_algorithm": "summa", **recipe}
    work = Workload(model=GPT, recipe=Recipe(**stated), gpus=448, framework="analytic")  # type: ignore[arg-type]
    assert f"recipe.{key}" in {problem.key for problem in problems(work)}


def test_models_and_frameworks_that_cannot() -> None:
    recipe = Recipe(
        micro_batch_size=1, global_batch_size=64, seq_length=2048, tp=4, tp2=2, tensor_parallel_algorithm="summa"
    )
    experts = Workload(model=DEEPSEEK_V3, recipe=recipe, gpus=64, framework="analytic")
    assert "recipe.tensor_parallel_algorithm" in {problem.key for problem in problems(experts)}
    with pytest.raises(ValueError, match="no SUMMA"):
        project(Workload(model=LLAMA_70B, recipe=recipe, gpus=64), catalogue.cluster("h100"))
