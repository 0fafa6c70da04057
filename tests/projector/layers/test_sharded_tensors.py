"""What sharded tensors of torch copy and gather that other tensor parallelism does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowering_cases import LLAMA_70B, collectives, resolved, with_execution

from projector.layers.lower import layer
from projector.operators.part import Block
from projector.operators.types import Operator

SEQ, HEADS, GROUPS, WIDTH = 8192, 64, 8, 128


def block(tp: int, *, gathers: bool, qk_layernorm: bool = True) -> Block:
    model = replace(LLAMA_70B, qk_layernorm=qk_layernorm)
    case = resolved(model, tp=tp, seq_length=SEQ, apply_rope_fusion=False)
    how = {"strategy": "dtensor", "gathers_normed_heads": gathers}
    return layer(model.layer_kinds[0], with_execution(case, tensor_parallel=how))


def rotated(ops: tuple[Operator, ...]) -> float:
    return sum(op.bytes for op in ops if op.name.startswith("rope"))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_gathered_heads_are_rotated_on_every_rank(tp: int) -> None:
    plain, found = block(tp, gathers=False), block(tp, gathers=True)
    (gather,) = [op for op in collectives(found.forward, "all_gather", "tp") if op.name == "qk_norm.ag"]
    assert gather.bytes == 2.0 * SEQ * (HEADS + GROUPS) * WIDTH
    assert rotated(found.forward) == pytest.approx(tp * rotated(plain.forward))
    assert rotated(found.forward) == pytest.approx(rotated(block(1, gathers=True).forward))
    assert found.backward_input == plain.backward_input  # gradients come cut by heads
    assert found.backward_weight == plain.backward_weight


def test_nothing_is_gathered_without_the_norm_or_without_ranks() -> None:
    assert block(8, gathers=True, qk_layernorm=False) == block(8, gathers=False, qk_layernorm=False)
    assert block(1, gathers=True) == block(1, gathers=False)


@pytest.mark.parametrize("views", [True, False])
def test_one_sample_is_gathered_along_its_sequence_by_a_view_or_by_a_copy(views: bool) -> None:
    case = resolved(LLAMA_70B, tp=8, seq_length=SEQ, sequence_parallel=True)
    how = {"strategy": "dtensor", "views_gathered": views}
    found = layer(LLAMA_70B.layer_kinds[0], with_execution(case, tensor_parallel=how))
    gathers = collectives(found.forward, "all_gather", "tp")
    copies = {op.name: op.bytes for op in found.forward if op.name.endswith(".ag.copy")}
    assert copies == ({} if views else {f"{op.name}.copy": 2 * op.bytes for op in gathers})
