"""Gemma 3n against real modules and its published weights: parameters exactly, FLOP and saved bytes by torch's counters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from projector.layers.lower import layer
from projector.workload.layer_kinds import PerLayer

torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")

from tests.projector.layers import torch_altup as real  # noqa: E402
from tests.projector.layers.test_real_modules import GQA, counted, eager, flops  # noqa: E402

SMALL = replace(
    GQA, num_layers=3, qk_layernorm=True, v_layernorm=True, sandwich_norm=True, altup_num_inputs=4, laurel_rank=16,
    hidden_size_per_layer_input=32, vocab_size_per_layer_input=1024, num_kv_shared_layers=1,
    per_layer=PerLayer(sparse_activation=(1, 0, 0)),
)  # fmt: skip


def test_layers_of_gemma_3n_are_what_real_ones_are() -> None:
    """A gate that is cut, a plain one, and a layer that reads the second one's keys and values."""
    found = counted(real.Layers(SMALL), SMALL.hidden_size)
    blocks = [layer(kind, eager(SMALL)) for kind in SMALL.layer_kinds]
    assert sum(block.held.total for block in blocks) == found.parameters
    backward = sum(flops((*block.backward_input, *block.backward_weight)) for block in blocks)
    assert sum(flops(block.forward) for block in blocks) == pytest.approx(found.forward, rel=0.01)
    assert backward == pytest.approx(found.backward, rel=0.01)
    assert sum(block.saved_bytes for block in blocks) == pytest.approx(found.saved, rel=0.01)
