"""Recurrent mixers against real modules: parameters exactly, products by torch's counter, bytes that their kernels save."""

from __future__ import annotations

from dataclasses import replace

import pytest

from projector.layers.lower import layer
from projector.operators.types import Scan
from projector.workload.layer_kinds import KimiDelta, Mamba1, Mamba2, SharedBlocks

torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")

from tests.projector.layers import torch_layers as real  # noqa: E402
from tests.projector.layers import torch_recurrent as recurrent  # noqa: E402
from tests.projector.layers.test_real_modules import BATCH, GQA, LENGTH, eager, same  # noqa: E402

SCAN = Mamba1(inner=512, dt_rank=16)
DUAL = Mamba2(mamba_num_heads=8, mamba_num_groups=2, mamba_state_dim=32)
DELTA = KimiDelta(num_heads=4, head_dim=32)
MODELS = {
    "Mamba-1": replace(GQA, mixer_pattern="S", mamba1=SCAN),
    "Mamba-1 with norms": replace(GQA, mixer_pattern="S", mamba1=replace(SCAN, norms=True)),
    "Mamba-2": replace(GQA, mixer_pattern="M", mamba=DUAL),
    "attention beside Mamba-2": replace(GQA, mixer_pattern="P", mamba=replace(DUAL, grouped_norm=False)),
}


@pytest.mark.parametrize("what", MODELS)
def test_a_recurrent_layer_is_what_a_real_one_is(what: str) -> None:
    model = MODELS[what]
    (kind,) = model.layer_kinds
    same(layer(kind, eager(model)), real.Layer(model, kind), model)


@pytest.mark.parametrize(
    "sizes", [{}, {"value_dim": 64, "num_key_heads": 2, "gate_rank": 64, "gate_bias": True, "fused": True}]
)
def test_delta_attention_has_the_products_of_a_real_one(sizes: dict[str, object]) -> None:
    """Keys and values of one width and of two; what an eager recurrence saves is not what its kernels do."""
    model = replace(GQA, mixer_pattern="K", kda=replace(DELTA, **sizes))  # type: ignore[arg-type]
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
    same(layer(kind, eager(model)), recurrent.SharedBlockMixer(model, kind.mixer), model)  # type: ignore[arg-type]
