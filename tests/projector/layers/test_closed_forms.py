"""One closed form a switch, written by hand: bytes and FLOP that no measured run weighs enough to notice."""

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest

from projector.hardware import catalogue
from projector.layers import lower
from projector.layers.step import optimizer
from projector.memory.plan import RankMemory, plan
from projector.operators.types import Collective, Gemm, GroupedGemm, Stream
from projector.operators.weights import Weight, weight_set
from projector.projection import project
from projector.step.cycle import compiled_schedule
from projector.step.stage_messages import activations
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.projector.layers.lowering_cases import (
    DEEPSEEK_V3,
    DENSE,
    EXPERTS,
    LLAMA_70B,
    flops,
    resolved,
    with_execution,
)

TOKENS = 4096
QWEN_MOE = zoo.load("qwen3_30b_a3b")
H100 = catalogue.default_cluster("h100_sxm")


def saved(case: object, name: str) -> float:
    block = lower.layer(EXPERTS, case)  # type: ignore[arg-type]
    return sum(each.bytes for each in block.saves if each.name == name)


@pytest.mark.parametrize(("dtype", "probability"), [("fp32", 4), ("bf16", 2)])
def test_a_router_saves_two_softmaxes_two_maps_and_its_choice(dtype: str, probability: int) -> None:
    """Of a token: for each expert two fp32 softmaxes, two bools, a probability; for each chosen one an index of 8 bytes
    and a probability, forward and sorted."""
    experts, topk = 128, 8
    case = resolved(QWEN_MOE, 8, moe_router_dtype=dtype)
    assert saved(case, "router.scores") == TOKENS * (experts * (4 + 4 + 1 + 1 + probability) + topk * 16)


def test_the_gate_of_a_shared_expert_is_one_column_and_one_more_pass() -> None:
    """Qwen1.5-MoE's shared_expert_gate: a product with one output and a multiplication with the expert's result."""
    assert DEEPSEEK_V3.moe is not None
    gated = replace(DEEPSEEK_V3, moe=replace(DEEPSEEK_V3.moe, moe_shared_expert_gate=True))
    plain, more = (lower.layer(EXPERTS, resolved(model)) for model in (DEEPSEEK_V3, gated))
    assert sum(w.elements for w in more.weights) - sum(w.elements for w in plain.weights) == 7168
    twice = [sum(op.bytes for op in made.forward if op.name == "shared.add") for made in (plain, more)]
    assert twice[1] == 2 * twice[0] == 2 * 3 * 2 * TOKENS * 7168
    kept = [sum(each.bytes for each in made.saves) for made in (plain, more)]
    assert kept[1] - kept[0] == 2 * TOKENS * 7168  # what the gate multiplies, for the gate's gradient


@pytest.mark.parametrize(("how", "moved", "kept"), [("fp32", 20, 4), ("bf16", 4, 2), ("", 0, 0)])
def test_results_of_experts_times_their_probabilities(how: str, moved: int, kept: int) -> None:
    """torchtitan casts to fp32 (2 + 4), multiplies (4 + 4) and casts back (4 + 2): its gradient needs the fp32 copy. Hugging
    Face multiplies in 16 bits; Megatron-LM multiplies the activation instead."""
    case = with_execution(resolved(QWEN_MOE, 8), fusion={"strategy": "torch_eager", "expert_output_weighted": how})
    copies = TOKENS * 8 * 2048
    made = lower.layer(EXPERTS, case)
    assert sum(op.bytes for op in made.forward if op.name == "moe.weighted") == moved * copies
    assert saved(case, "moe.weighted.in") == kept * copies
    assert (saved(case, "experts.act.unweighted") > 0) is False


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_capacity_bounds_the_rows_of_every_expert(factor: float) -> None:
    """Megatron-LM's --moe-expert-capacity-factor with padding: ceil(factor · tokens · topk / experts) rows each."""
    case = resolved(QWEN_MOE, 8, moe_expert_capacity_factor=factor, moe_pad_expert_input_to_capacity=True)
    (first, *_) = [op for op in lower.layer(EXPERTS, case).forward if isinstance(op, GroupedGemm)]
    assert first.rows == pytest.approx(factor * TOKENS * 8)


def test_a_frozen_reference_runs_the_forward_once_more_and_keeps_its_weights() -> None:
    """DPO: the same sequences through a second copy in 16 bits; no gradient, nothing saved."""
    plain, beside = (
        lower.layer(DENSE, resolved(LLAMA_70B, rlhf_type="dpo", reference_free=free)) for free in (True, False)
    )
    assert flops(beside.forward) == 2 * flops(plain.forward)
    assert flops(beside.backward_input) == flops(plain.backward_input)
    assert beside.kept_bytes == plain.kept_bytes
    weights = [
        plan(resolved(zoo.load("llama3_8b"), 8, rlhf_type="dpo", reference_free=free), H100.gpu).ranks[0].components
        for free in (True, False)
    ]
    assert weights[1]["weights"] == pytest.approx(2 * weights[0]["weights"])
    assert weights[1]["moments"] == weights[0]["moments"]


def test_the_norm_reads_and_the_clip_reads_and_writes_every_gradient_once() -> None:
    """fp32 gradients of a rank's share: 4 bytes to sum the squares, 4 and 4 to scale."""
    elements = 8_000_000
    part = weight_set([([Weight(name="w", rows=elements)], 1)])
    case = resolved(LLAMA_70B, 8)
    share = elements / (case.workload.dp)
    ops = {op.name: op for op in optimizer(case, part) if isinstance(op, Stream)}
    assert (ops["grad_norm"].read, ops["grad_norm"].write) == (4 * share, 0)
    assert (ops["clip"].read, ops["clip"].write) == (4 * share, 4 * share)


@pytest.mark.parametrize("tp", [1, 8])
def test_what_a_fused_loss_leaves_beside_the_logits(tp: int) -> None:
    """fp32 of every token: its loss, and largest value, sum and target of each rank and of all."""
    head = lower.head(resolved(LLAMA_70B, cross_entropy_fusion="te", tp=tp))
    assert head.forward_transient is not None
    assert head.forward_transient.bytes == 4 * TOKENS + 3 * 4 * TOKENS * (1 + tp)


def test_a_loss_of_gathered_logits_is_that_of_one_rank() -> None:
    """Every rank receives the whole logits of 2 bytes, keeps them and their log-softmax, and sums nothing with others."""
    case = resolved(LLAMA_70B, cross_entropy_fusion="bf16", tp=4)
    split, whole = (
        lower.head(with_execution(case, tensor_parallel={"gathers_logits": gathers})) for gathers in (False, True)
    )
    logits = 2 * TOKENS * 128512  # the vocabulary, padded to a multiple of 128 times 4
    (gather,) = [op for op in whole.forward if isinstance(op, Collective) and op.name.startswith("loss")]
    assert (gather.kind, gather.bytes) == ("all_gather", logits)
    saved = [sum(tensor.bytes for tensor in part.saves if tensor.name == "loss.logits") for part in (split, whole)]
    assert saved == [2 * logits / 4, 2 * logits]


@pytest.mark.parametrize("pp", [1, 4])
def test_the_output_layers_weight_gradients_wait_for_the_last_backward(pp: int) -> None:
    """--defer-embedding-wgrad-compute: micro-batches of the last stage have one product less, which all follow at the end.
    Without a pipeline nothing moves."""
    sizes = {"micro_batch_size": 1, "global_batch_size": 512, "seq_length": TOKENS, "tp": 8, "pp": pp}
    model = replace(LLAMA_70B, num_layers=16)
    at_once, later = (
        project(Workload(model=model, recipe=Recipe(**sizes, defer_embedding_wgrad_compute=late), gpus=64), H100)
        for late in (False, True)
    )
    product = 2 * TOKENS * 8192 * 128256 / 8 / H100.gpu.peak_of("bf16")  # its least time
    earlier = at_once.breakdown["compute_s"] - later.breakdown["compute_s"]
    assert earlier == 0 if pp == 1 else product < earlier < 64 * pp * product


def test_a_scan_of_mamba2_costs_its_chunk_and_twice_its_states() -> None:
    """Of a channel and token (Dao and Gu 2024, section 6): C products inside the chunk, 2N with the states before it."""
    model = zoo.load("mamba2_1.3b")
    kind = model.layer_kinds[0]
    made = lower.layer(kind, resolved(model, 8))
    (scan,) = [op for op in made.forward if op.name.endswith("scan") and op.name.startswith("ssd")]
    channels, states, chunk = 2 * 2048, 128, 256
    assert scan.flops == pytest.approx(TOKENS * channels * (chunk + 2 * states))
    assert [op for op in made.forward if isinstance(op, Gemm)]


def test_every_product_of_mamba2_with_its_states_costs_twice_their_width() -> None:
    """Per channel and token: 2N each of the states, again and of the gradients of states, x, B and C; C of what stays inside
    a chunk: x beside its states, the products and the decay."""
    model = zoo.load("mamba2_1.3b")
    made = lower.layer(model.layer_kinds[0], resolved(model, 8))
    found = {
        op.name: op.flops / TOKENS / 4096 for op in (*made.forward, *made.backward_input) if isinstance(op, Stream)
    }
    states, chunk = 2 * 128, 256
    by_hand = {"ssd.states": states, "ssd.states.again": states, "ssd.bwd.states": states, "ssd.bwd.x": chunk + states}
    by_hand |= {"ssd.bwd.b": states, "ssd.bwd.c": states, "ssd.bwd.products": chunk, "ssd.bwd.decay": chunk}
    assert {name: found[name] for name in by_hand} == pytest.approx(by_hand)


def test_a_capacity_without_padding_drops_what_is_beyond_it() -> None:
    """Loads of 128 experts at the quantiles of a lognormal distribution whose deviation is its mean: what lies above the
    factor is not sent, and no rank computes more than the factor. A factor above every load drops nothing."""
    sigma = math.log(2.0) ** 0.5
    drawn = [math.exp(sigma * NormalDist().inv_cdf((i + 0.5) / 128)) for i in range(128)]
    loads = [load / (sum(drawn) / 128) for load in drawn]
    free = with_execution(
        resolved(QWEN_MOE, 8, ep=8, moe_router_force_load_balancing=False), dispatch={"dispersion": 1.0}
    )

    def made(factor: float | None) -> tuple[float, float]:
        recipe = replace(free.workload.recipe, moe_expert_capacity_factor=factor)
        ops = lower.layer(EXPERTS, replace(free, workload=replace(free.workload, recipe=recipe))).forward
        rows = next(op.rows for op in ops if isinstance(op, GroupedGemm))
        return rows, next(op.bytes for op in ops if op.name == "moe.dispatch_probs")  # type: ignore[union-attr]

    for factor in (1.0, 1.5, 2.0):
        kept = sum(min(load, factor) for load in loads) / 128
        rows, weights = made(factor)
        assert weights == pytest.approx(4.0 * TOKENS * 8 * kept, rel=1e-3)
        assert rows <= factor * kept * TOKENS * 8 + 1
    assert made(1e3) == pytest.approx(made(None), rel=1e-4)


def test_fp32_keeps_four_bytes_of_each_and_no_copy() -> None:
    recipe = Recipe(micro_batch_size=1, global_batch_size=8, seq_length=2048, precision="fp32",
                    data_parallel_sharding="no_shard")  # fmt: skip
    made = project(Workload(model=zoo.load("llama3_8b"), recipe=recipe, gpus=8), H100).memory.ranks[0]
    parts = [made.components.get(name, 0.0) for name in ("weights", "gradients", "master_weights", "moments")]
    assert parts == pytest.approx([4 * made.parameters, 4 * made.parameters, 0.0, 8 * made.parameters])


def test_a_frozen_reference_gathers_its_weights_once_more() -> None:
    """Fully sharded: gathered for its forward and for the model's, and once for the backward."""

    def gathers(reference: bool) -> float:
        sizes: dict[str, Any] = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 2048}
        how = {"data_parallel_sharding": "optim_grads_params", "rlhf_type": "dpo", "reference_free": not reference}
        recipe = Recipe(**sizes, recompute_granularity="none", **how)  # type: ignore[arg-type]
        made = project(
            Workload(model=zoo.load("llama3_8b"), recipe=recipe, gpus=8, framework="torchtitan"),
            H100,
            communication=True,
        )
        return sum(one.bytes * one.count for one in made.communication if one.operation == "all_gather")

    assert gathers(True) == pytest.approx(1.5 * gathers(False))


SHARDED = {"micro_batch_size": 1, "data_parallel_sharding": "optim", "recompute_granularity": "full"}


def rank_of(gpus: int, seq_length: int, **recipe: object) -> RankMemory:
    fields: dict[str, Any] = {**SHARDED, "global_batch_size": gpus, "seq_length": seq_length, **recipe}
    work = Workload(model=zoo.load("llama3_8b"), recipe=Recipe(**fields), gpus=gpus, framework="megatron-lm")
    return project(work, H100).memory.ranks[0]


@pytest.mark.parametrize(("narrow", "nbytes"), [(False, 8), (True, 6)])
def test_flat_buffers_stand_beside_the_parameters_that_they_replace(narrow: bool, nbytes: int) -> None:
    """Weights twice in 16 bits and the gradient buffer: the peak where 64 ranks share all states and activations are few."""
    made = rank_of(64, 128, grad_reduce_in_bf16=narrow)
    assert made.event == "construction"
    assert made.allocated == nbytes * made.parameters


def test_the_optimizers_copy_of_narrow_gradients_stays_with_the_allocator() -> None:
    """fp32 of a share of 16-bit gradients, 4 bytes over 8 ranks, that activations do not get back; none of those that are
    fp32 or read as they are."""
    assert rank_of(8, 4096, grad_reduce_in_bf16=True).cached == pytest.approx(4 / 8 * 8_030_261_248, rel=1e-3)
    assert rank_of(8, 4096).cached == 0.0
    assert rank_of(8, 4096, grad_reduce_in_bf16=True, use_precision_aware_optimizer=True).cached == 0.0


def test_a_frozen_reference_sends_its_activations_along_forward_only() -> None:
    """Through a pipeline: forward two tensors, backward one gradient, in the mean one and a half."""
    sizes = []
    for free in (True, False):
        case = resolved(LLAMA_70B, 8, pp=4, rlhf_type="dpo", reference_free=free)
        sent = activations(case, compiled_schedule(case).schedule)
        sizes.append([op.bytes for op in sent if op is not None])
    assert sizes[1] == [1.5 * each for each in sizes[0]]


def test_context_parallelism_of_sparse_attention_gathers_latent_keys_and_returns_their_gradients() -> None:
    """Of every token of the sequence, in 16 bits: a latent (512), its position (64) and the indexer's key (128), which a
    frozen indexer gets no gradient of."""
    model, cp = zoo.load("deepseek_v3.2"), 4
    made = lower.layer(EXPERTS, resolved(model, cp=cp))
    sent = {op.name: op.bytes for op in (*made.forward, *made.backward_input) if op.name.startswith("cp.")}
    tokens = 2 * TOKENS  # bytes of a number each: all shards together
    assert sent["cp.ag"] == tokens * (512 + 64 + 128)
    assert sent["cp.grad_rs"] == tokens * (512 + 64)
    assert "cp.ag" not in {op.name for op in lower.layer(EXPERTS, resolved(model)).forward}
