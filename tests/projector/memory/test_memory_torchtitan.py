"""torchtitan: what its checkpoints, its loss and its units of sharding leave in memory, in closed form."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from projector.layers.lower import layer
from projector.memory.chunks import block_memory
from projector.memory.plan import plan
from projector.operators.types import Collective, GroupedGemm
from projector.workload import zoo
from tests.projector.memory.memory_cases import gpu, llama, recipe, resolved

TOKENS = 4096
HIDDEN, KV, FFN, HEADS, VOCAB = 4096, 1024, 14336, 32, 128256
_FUSION: dict[str, Any] = {"loss": "fp32", "qkv": False, "gate_up": False, "wgrad_accumulation": "none"}
GPU = gpu("hopper", 94.0)


def case(layers: int = 2, *, tp: int = 1, fusion: Any = None, parts: Any = None, **fields: Any) -> Any:
    how = recipe(
        micro_batch_size=1, seq_length=TOKENS, tp=tp, sequence_parallel=tp > 1,
        gradient_accumulation_fusion=False, cross_entropy_fusion="none", make_vocab_size_divisible_by=1,
        **{
            "data_parallel_sharding": "optim_grads_params", "torch_compile": False, "recompute_granularity": "selective",
            "recompute_modules": ("op_sac",),
        } | fields,
    )  # fmt: skip
    behaviour = {"data_parallel": {"strategy": "fsdp2"}} | (parts or {})
    return resolved(llama(layers), how, 8, fusion=_FUSION | (fusion or {}), **behaviour)


def kept(**fields: Any) -> float:
    made = case(**fields)
    return layer(made.workload.model.layer_kinds[0], made).kept_bytes


def test_every_second_product_and_what_a_compiler_leaves_of_it() -> None:
    """wq, wv, w1 and w2 of seven products beside input, attention and its sums of exponents; compiled without w2, which the
    layer's output alone needs (shown with torch 2.13: aot_eager_decomp_partition saves input, wq, wv and w1)."""
    row = HIDDEN + HIDDEN + KV + HIDDEN + FFN
    eager = TOKENS * (2 * (row + HIDDEN) + 4 * HEADS)
    assert kept() == pytest.approx(eager)
    traced = {"recompute": {"traced": True}}
    assert kept(parts=traced, torch_compile=True) == pytest.approx(eager - 2 * TOKENS * HIDDEN)
    assert kept(parts=traced) == kept(), "nothing is traced where nothing compiles"


def test_partial_sums_stay_in_eager_mode_and_what_a_reduce_scatter_leaves_in_both() -> None:
    """Two ranks: wo's sum is scattered and kept though its product is not; of w2 eager mode keeps both."""
    half = (HIDDEN // 2 + HIDDEN // 2 + KV // 2 + HIDDEN // 2 + FFN // 2) * 2 + 4 * HEADS // 2
    scattered = 2 * HIDDEN // 2
    assert kept(tp=2) == pytest.approx(TOKENS * (half + 2 * scattered + 2 * HIDDEN))
    compiled = kept(tp=2, parts={"recompute": {"traced": True}}, torch_compile=True)
    assert compiled == pytest.approx(TOKENS * (half + scattered))


def test_magnitudes_of_every_operand_stay_where_the_policy_names_them() -> None:
    """Of seven inputs and seven weights, 16 bits each (torchtitan pull requests 701 and 820); none in 16-bit products."""
    magnitudes = {"recompute": {"keeps_magnitudes": True}}
    attention = [(HIDDEN, HIDDEN), (HIDDEN, KV), (HIDDEN, KV), (HIDDEN, HIDDEN)]
    products = [*attention, (HIDDEN, FFN), (HIDDEN, FFN), (FFN, HIDDEN)]
    more = sum(2.0 * k * (TOKENS + n) for k, n in products)
    fp8 = {"precision": "fp8", "fp8_recipe": "tensorwise"}
    assert kept(parts=magnitudes, **fp8) - kept(**fp8) == pytest.approx(more)
    assert kept(parts=magnitudes) == kept()
    assert kept(parts=magnitudes, torch_compile=True, **fp8) == kept(torch_compile=True, **fp8)


def test_the_block_of_the_narrow_logits_fits_nothing_while_the_loss_is_differentiated() -> None:
    """Live are three tensors in fp32, held is the freed one of 16 bits as well: 14 bytes a logit; in no way else."""
    (rank,) = plan(case(), GPU).ranks
    assert rank.event == "loss_backward"
    assert rank.cached == pytest.approx(2 * TOKENS * VOCAB)
    for other in (
        case(tp=2),
        case(fusion={"loss": "te"}),
        case(fusion={"loss_compiled": True}, torch_compile=True),
        case(parts={"allocator": {"strategy": "planned_pool"}}),
    ):
        assert plan(other, GPU).ranks[0].cached == 0.0
    # behind a higher moment of the layers, which split the block, less of it counts, and never more than all
    whole = plan(case(32, recompute_granularity="full", recompute_modules=None), GPU).ranks[0]
    assert 0.0 <= whole.cached <= 2 * TOKENS * VOCAB


def test_ends_of_the_model_that_are_the_roots_stay_gathered() -> None:
    """Embedding and output layer: both in 16 bits through all layers, and the gradient of one behind the loss."""
    end = 2.0 * VOCAB * HIDDEN
    apart, root = (
        plan(case(parts={"data_parallel": {"strategy": "fsdp2", "root_holds_ends": holds}}), GPU).ranks[0]
        for holds in (False, True)
    )
    assert root.event == apart.event == "loss_backward"
    assert root.allocated - apart.allocated == pytest.approx(end)
    made = case(parts={"data_parallel": {"strategy": "fsdp2", "root_holds_ends": True}})
    plain = replace(made.execution.data_parallel, root_holds_ends=False)
    sizes = (1e9, 1e8, 3e8, 4e8)
    held, less = (each.gathered(made.workload.recipe, *sizes) for each in (made.execution.data_parallel, plain))
    assert held.forward - less.forward == pytest.approx(2 * 7e8)
    assert held.backward - less.backward == pytest.approx(2 * 7e8 + 2 * 4e8)
    assert held.loss - less.loss == pytest.approx(2 * 3e8)
    assert held.projection == pytest.approx(held.loss + 2 * 4e8)


@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp1", "torch_ddp", "zero3"])
@pytest.mark.parametrize("layers", [2, 16])
@pytest.mark.parametrize("granularity", ["none", "full"])
def test_gradients_of_torch_come_with_the_backward(strategy: str, layers: int, granularity: str) -> None:
    """One micro-batch begins without them (``zero_grad``), and a later one with all. Blocks of those that FSDP reduces are a
    stream's own, so that the allocator holds them all the same; DeepSpeed's are a buffer that stays."""
    sharding = "no_shard" if strategy == "torch_ddp" else "optim_grads_params"
    how = {"recompute_granularity": granularity, "recompute_modules": None, "data_parallel_sharding": sharding}
    made = [
        case(layers, parts={"data_parallel": {"strategy": strategy}}, global_batch_size=8 * number, **how)
        for number in (1, 2)
    ]
    (one,), (two,) = (plan(each, GPU).ranks for each in made)
    missing = two.components["gradients"] - one.components["gradients"]
    if strategy == "zero3":
        assert (one, missing) == (two, 0.0)
        return
    assert two.allocated - two.components["gradients"] <= one.allocated <= two.allocated - missing
    assert (one.held == pytest.approx(two.held)) if strategy.startswith("fsdp") else (one.held <= two.held)
    block = partial(block_memory, made[0])
    late = block("embedding").late + block("head").late + layers * block(made[0].workload.model.layer_kinds[0]).late
    beside = made[0].execution.data_parallel.beside_gradients(made[0].workload) / 4.0
    assert two.components["gradients"] == pytest.approx(late * (1.0 + beside))
    assert block_memory(made[1], "head").late == 0.0
    if one.event.startswith("loss"):
        assert missing == pytest.approx(late)


def test_weights_and_gradients_of_fsdp_go_to_the_host_with_the_optimizer() -> None:
    """``CPUOffloadPolicy``: the rank keeps what it gathers; ZeRO-3's offload of the optimizer leaves the weights there."""
    for strategy, left in (("fsdp2", (0, 0)), ("fsdp1", (0, 0)), ("zero3", (1, 0)), ("megatron_fsdp", (1, 1))):
        one = case(16, parts={"data_parallel": {"strategy": strategy}}, optimizer_cpu_offload=True)
        (rank,) = plan(one, GPU).ranks
        assert (rank.components["weights"] > 0, rank.components["gradients"] > 0) == left
        assert rank.components["moments"] == rank.components["master_weights"] == 0.0 < rank.components["transient"]


def test_products_of_grouped_experts_are_replayed_and_what_an_exchange_brought_stays_where_the_policy_names_it() -> (
    None
):
    """The policy knows aten.mm and, from torchtitan's pull request 1672 on, all_to_all_single: 2 bytes of hidden size for
    each of the routed copies, there and back."""
    experts = zoo.load("qwen3_30b_a3b")
    policy = {"recompute_granularity": "selective", "recompute_modules": ("op_sac",), "ep": 8, "seq_length": TOKENS}
    how = recipe(micro_batch_size=1, data_parallel_sharding="optim_grads_params", **policy)
    before, after = (
        layer(experts.layer_kinds[0], resolved(experts, how, 8, recompute={"keeps_exchanged": keeps}))
        for keeps in (False, True)
    )
    routed = experts.moe.moe_router_topk * TOKENS
    exchanged = 2 * 2.0 * experts.hidden_size * routed  # and their places and probabilities
    assert after.kept_bytes - before.kept_bytes == pytest.approx(exchanged, rel=1e-3)
    for made in (before, after):
        again = [op.name for op in made.recompute if isinstance(op, GroupedGemm)]
        assert len(again) == len([op for op in made.forward if isinstance(op, GroupedGemm)]) > 0
    assert {op.name for op in before.recompute} - {op.name for op in after.recompute} >= {"moe.dispatch", "moe.combine"}


def test_a_replay_gathers_the_sequence_again_and_scatters_nothing() -> None:
    made = case(tp=2)
    block = layer(made.workload.model.layer_kinds[0], made)
    gathers = [op.name for op in block.forward if isinstance(op, Collective) and op.kind == "all_gather"]
    assert gathers
    assert [op.name for op in block.recompute if isinstance(op, Collective)] == gathers
