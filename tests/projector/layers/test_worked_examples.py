"""Kernel lists counted by hand for two published models: Llama-3-70B under tensor parallelism, DeepSeek-V3 under EP."""

from dataclasses import replace

import pytest
from asked import refusal
from lowering_cases import DEEPSEEK_V3, DENSE, EXPERTS, LLAMA_70B, attention_flops, collectives, flops, phases, resolved

from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.layers import lower
from projector.layers.lower import head, layer
from projector.mechanisms.dispatch.routing import distinct_destinations
from projector.operators.types import Collective
from projector.projection import project
from projector.workload import zoo
from projector.workload.parameters import count
from projector.workload.validate import problems
from tests.workloads import workload

MIB = 2.0**20
LLAMA = resolved(LLAMA_70B, gpus=128, tp=4, pp=4, seq_length=8192, make_vocab_size_divisible_by=64)
DEEPSEEK = resolved(DEEPSEEK_V3, ep=64, pp=8)


def test_deepep_sends_each_token_once_per_rank_and_node():
    moe = DEEPSEEK_V3.moe
    uniform = replace(moe, moe_router_num_groups=None, moe_router_group_topk=None)
    assert distinct_destinations(uniform, 64) == pytest.approx(7.68, abs=0.01)
    assert distinct_destinations(uniform, 8) == pytest.approx(5.29, abs=0.01)
    assert distinct_destinations(moe, 8) == pytest.approx(3.63, abs=0.01)
    assert distinct_destinations(moe, 1) == pytest.approx(1.0)
    model = replace(DEEPSEEK_V3, moe=uniform)
    block = layer(EXPERTS, resolved(model, ep=64, pp=8, moe_token_dispatcher_type="flex"))
    (dispatch,) = [c for c in collectives(block.forward) if c.name == "moe.dispatch"]
    assert dispatch.transport == "deepep"
    assert dispatch.bytes == pytest.approx(430 * MIB, rel=0.002)
    assert dispatch.nodes_bytes == pytest.approx(296 * MIB * 7 / 8, rel=0.01)
    local = [op for op in block.forward if op.name == "moe.permute"]
    assert local[0].bytes == pytest.approx(0.92e9, rel=0.005)


def test_collectives_hide_only_behind_operators_that_exist():
    for block in (layer(DENSE, LLAMA), layer(EXPERTS, DEEPSEEK), head(LLAMA)):
        names = {op.name for op in (*block.backward_input, *block.backward_weight, *block.forward)}
        for op in (*block.forward, *block.backward_input):
            if isinstance(op, Collective):
                assert set(op.hides_behind) <= names


# A model without a mask and without a vocabulary: attention in full, nothing at its ends.


VIT = zoo.load("vit_era5")


def test_every_token_sees_every_other_however_the_sequence_is_split() -> None:
    """Forward 4·b·s²·e in all, backward 2.5 times that, on one rank and over context-parallel ranks; half with a mask."""
    kind, seq = VIT.layer_kinds[0], 64800
    whole = 4.0 * seq**2 * VIT.hidden_size
    for cp, how in ((1, "p2p"), (4, "p2p"), (4, "allgather"), (8, "a2a"), (16, "p2p"), (16, "a2a+p2p")):
        made = lower.layer(kind, resolved(VIT, seq_length=seq, cp=cp, cp_comm_type=how))
        assert attention_flops(made.forward) * cp == pytest.approx(whole), (cp, how)
        assert attention_flops(made.backward_input) * cp == pytest.approx(2.5 * whole), (cp, how)
    masked = lower.layer(kind, resolved(replace(VIT, causal=True), seq_length=seq))
    assert attention_flops(masked.forward) == pytest.approx(whole / 2)


def test_no_vocabulary_leaves_the_final_norm_alone() -> None:
    case = resolved(VIT, seq_length=64800)
    first, last = lower.embedding(case), lower.head(case)
    assert not first.forward
    assert not first.weights
    assert sum(flops(phase) for phase in phases(last)) == 0
    assert last.held.total == 2 * VIT.hidden_size
    learned = lower.embedding(resolved(replace(VIT, position_embedding_type="learned_absolute"), seq_length=64800))
    assert learned.held.total == 64800 * VIT.hidden_size
    found = count(VIT)
    assert found.embedding == 0
    e = VIT.hidden_size
    assert found.main == 48 * (12 * e * e + 13 * e) + 2 * e  # four matrices of e² and two of 4e², biases, norms


def test_it_is_projected_and_costs_more_than_with_a_mask() -> None:
    how = {"sequence_parallel": True, "data_parallel_sharding": "optim", "recompute_granularity": "full"}
    work = workload(VIT, 64, seq_length=64800, tp=8, pp=4, **how)
    cluster = catalogue.cluster("h200")
    full, half = (project(replace(work, model=replace(VIT, causal=c)), cluster) for c in (False, True))
    assert half.step_seconds < full.step_seconds < 2 * half.step_seconds


def test_what_makes_no_sense_without_a_mask_is_refused() -> None:
    def said(**change: object) -> str:
        model = replace(VIT, **change)  # type: ignore[arg-type]
        work = workload(model, 24, global_batch_size=8, seq_length=64800, cp=3)
        return "; ".join(f"{p.key} {p.expected}" for p in problems(work))

    assert said() == ""
    assert "without a causal mask" in said(window_size=1024)
    assert "nothing is predicted" in said(mtp_num_layers=1)
    eager = resolved(VIT, seq_length=64800, cp=2)
    eager = replace(eager, execution=eager.execution.evolve(fusion={"eager_ring": True}))
    refusal(lower.layer, VIT.layer_kinds[0], eager, match="without a causal mask", kind=Unsupported)
    refusal(zoo.load, "vit_era5", causal="no")
    assert LLAMA_70B.causal
