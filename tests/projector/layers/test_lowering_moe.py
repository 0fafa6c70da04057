"""Every switch of a mixture-of-experts layer changes the operators that it is about, and only those."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_cases import (
    DEEPSEEK_V3,
    EXPERTS,
    MIXTRAL,
    collectives,
    named,
    names,
    resolved,
    syncs,
)

from projector.errors import Unsupported
from projector.layers.local import local
from projector.layers.lower import layer
from projector.operators.types import GroupedGemm


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "flex"])
def test_host_waits_once_in_every_forward_and_replay_and_never_backward(dispatcher):
    case = resolved(DEEPSEEK_V3, ep=8, moe_token_dispatcher_type=dispatcher, recompute_granularity="full")
    block = layer(EXPERTS, case)
    assert [syncs(ops) for ops in (block.forward, block.recompute, block.backward_input)] == [1, 1, 0]


@pytest.mark.parametrize(("stage", "waits"), [(0, 1), (1, 1), (2, 1), (3, 0)])
def test_sync_free_stages(stage, waits):
    case = resolved(DEEPSEEK_V3, ep=8, moe_token_dispatcher_type="flex", sync_free_stage=stage)
    assert syncs(layer(EXPERTS, case).forward) == waits


def test_capacity_fixes_shapes():
    case = resolved(DEEPSEEK_V3, ep=8, moe_expert_capacity_factor=1.25, moe_pad_expert_input_to_capacity=True)
    block = layer(EXPERTS, case)
    assert syncs(block.forward) == 0
    assert named(block.forward, "experts.fc1").rows == 160 * 256  # ceil(4096·8/256·1.25) rows for each of 256 experts


def test_one_local_expert_needs_no_sort():
    block = layer(EXPERTS, resolved(MIXTRAL, ep=8))
    assert not {"moe.sort", "moe.unsort"} & names(block.forward)


def test_quantised_experts_are_padded():
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, seq_length=4100, precision="fp8"))
    rows = named(block.forward, "experts.fc1").rows
    assert rows >= 4100 * 8
    assert rows % (16 * 32) == 0
    assert {"moe.pad", "moe.unpad"} <= names(block.forward)


def test_expert_tensor_parallelism_gathers_and_scatters_received_rows():
    block = layer(EXPERTS, resolved(MIXTRAL, tp=2, ep=4, etp=2))
    received = 4096 // 2 * 2 * 2
    assert named(block.forward, "experts.fc1").rows == received
    assert named(block.forward, "moe.etp_ag").bytes == 2 * 7168 * received
    assert named(block.forward, "moe.etp_rs").bytes == 4 * 7168 * received


def test_overlaps_of_the_exchange():
    shared = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, moe_shared_expert_overlap=True))
    dispatch = named(shared.forward, "moe.dispatch")
    assert "shared.fc1" in dispatch.hides_behind
    assert set(dispatch.hides_behind) <= names(shared.forward)
    batch = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, overlap_moe_expert_parallel_comm=True))
    for ops in (batch.forward, batch.backward_input):
        # what runs beside them is a neighbouring micro-batch, in no phase of this one (projector.step.neighbours)
        assert all(c.hides_behind == () for c in collectives(ops, "all_to_all"))


@pytest.mark.parametrize(("backend", "per_product"), [("fused", 1), ("multi_stream", 32), ("loop", 32)])
def test_grouped_gemm_launches(backend, per_product):
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, moe_grouped_gemm=backend))
    grouped = [op for op in block.forward if isinstance(op, GroupedGemm)]
    assert [op.launches for op in grouped] == [per_product] * 2
    assert {op.backend for op in grouped} == {backend}


HYBRIDEP = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}


@pytest.mark.parametrize("fusion", [True, False])
def test_hybridep_permutes_by_kernels_of_its_own(fusion):
    """dispatch_with_permute: what landed is read once and written to each expert, and the way back is its mirror image."""
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8, moe_permute_fusion=fusion, **HYBRIDEP))
    there, back = named(block.forward, "moe.permute"), named(block.forward, "moe.unpermute")
    assert (there.kind, back.kind) == ("permute", "permute")
    assert (there.read, there.write) == (back.write, back.read)
    assert there.write == 2 * 7168 * 8 * 4096  # every routed copy
    assert there.read < there.write  # a token lands once on a rank, however many of its experts want it
    assert named(block.forward, "moe.dispatch").transport == "hybridep"


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([2, 4, 8, 16, 32, 64]))
def test_hybridep_gathers_the_routes_of_the_group(ep):
    """One byte for each token and expert, so it grows with the group where the tokens' bytes level off."""
    block = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=ep, **HYBRIDEP))
    assert named(block.forward, "moe.routes_ag").bytes == 4096 * 256 * ep
    sent, summed = named(block.forward, "moe.dispatch"), named(block.forward, "moe.combine")
    weights = 4 * 256 * min(1.0, 8 / ep)  # fp32 weights of the experts of a node, on the way there only
    assert sent.bytes / summed.bytes == pytest.approx(1 + weights / (2 * 7168))


def test_hybridep_pads_while_it_permutes():
    case = {"ep": 8, "seq_length": 4000, "precision": "mxfp8"}  # 1,000 rows an expert, which are rounded up to 1,024
    assert "moe.pad" in names(layer(EXPERTS, resolved(DEEPSEEK_V3, **case)).forward)
    assert "moe.pad" not in names(layer(EXPERTS, resolved(DEEPSEEK_V3, **case, **HYBRIDEP)).forward)


def test_mega_moe_hides_the_exchange_of_deepep_in_the_products_and_permutes_nothing():
    flex = {"ep": 8, "moe_token_dispatcher_type": "flex", "moe_grouped_gemm": "fused"}
    mega = layer(EXPERTS, resolved(DEEPSEEK_V3, **flex, moe_flex_dispatcher_backend="mega_moe"))
    deepep = layer(EXPERTS, resolved(DEEPSEEK_V3, **flex))
    assert syncs(mega.forward) == 0 < syncs(deepep.forward)
    assert not {"moe.permute", "moe.unpermute.bwd"} & (names(mega.forward) | names(mega.backward_input))
    for own, other in ((mega.forward, deepep.forward), (mega.backward_input, deepep.backward_input)):
        exchanged = {c.name: c for c in collectives(other) if c.group == "ep"}
        for message in (c for c in collectives(own) if c.group == "ep"):
            assert message.bytes == exchanged.pop(message.name).bytes
            assert message.launches == 0  # inside the kernel of the product
            assert set(message.hides_behind) <= names(own)
            assert message.hides_behind
        assert not exchanged
    with pytest.raises(Unsupported, match="one node"):
        layer(EXPERTS, resolved(DEEPSEEK_V3, **(flex | {"ep": 16}), moe_flex_dispatcher_backend="mega_moe"))


@pytest.mark.parametrize(("ep", "copies"), [(4, 8), (8, 8)])
def test_mega_moe_has_rows_for_every_copy_on_one_rank(ep: int, copies: int) -> None:
    """Primus-Turbo flydsl/mega/symm_buffer.py: rows of the pool; a layer keeps the first linear's output for all of them and
    neither the dispatched rows nor the activated ones; two pools and the slots of the combine lie in a heap."""
    flex = {"ep": ep, "moe_token_dispatcher_type": "flex", "moe_grouped_gemm": "fused"}
    case = resolved(DEEPSEEK_V3, **flex, moe_flex_dispatcher_backend="mega_moe")
    lo, here = local(case), 256 // ep
    rows = -(-(ep * lo.shard_tokens * copies + here * 255) // 256) * 256
    saved = {each.tensor: each.bytes for each in layer(EXPERTS, case).saves if each.since == "forward"}
    assert saved["experts.fc1.out"] == pytest.approx(2 * rows * 2 * 2048)
    assert not {"experts.in", "experts.act.out", "experts.act.unweighted", "experts.act.gate"} & saved.keys()
    (moment,) = {each.bytes for each in layer(EXPERTS, case).backward_transients if each.bytes > 3 * rows * 2048}
    assert moment == pytest.approx(2 * rows * 4 * 2048)
    heap = case.execution.dispatch.device_bytes(lo)
    assert heap == pytest.approx(2 * 7168 * (2 * rows + 8 * lo.shard_tokens) + 16 * rows)
    assert case.execution.dispatch.device_bytes(local(resolved(DEEPSEEK_V3, **(flex | {"ep": 1})))) == 0.0


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_deduplicated_dispatch_never_sends_more_than_every_copy(ep):
    flex = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=ep, moe_token_dispatcher_type="flex"))
    copies = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=ep))
    sent = [sum(c.bytes for c in collectives(b.forward) if c.name == "moe.dispatch") for b in (flex, copies)]
    assert sent[0] <= sent[1]
