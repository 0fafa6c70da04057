"""torch's ring attention: what is gathered, what goes round the ring, and what the merges touch."""

from __future__ import annotations

import pytest
from lowering_cases import LLAMA_70B, collectives, named, resolved, with_execution

from projector.layers.lower import layer
from projector.operators.part import Block
from projector.operators.types import Attention, Stream

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


def test_the_area_of_the_mask_is_shared_evenly() -> None:
    whole = next(op for op in ring(1).forward if isinstance(op, Attention)).flops
    for cp in (2, 4, 8):
        mine = sum(op.flops for op in ring(cp).forward if isinstance(op, Attention))
        assert mine == pytest.approx(whole / cp)


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


def test_merges_touch_more_memory_than_fused_corrections() -> None:
    assert touched(ring(4)) > 3 * touched(ring(4, eager=False))
    assert touched(ring(8)) > touched(ring(4))  # a step more, of half the tokens
