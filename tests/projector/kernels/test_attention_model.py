"""The work-list model of attention: closed forms against counting, bounds, masks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.frameworks.types import Execution
from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels.attention import iterations
from projector.kernels.materialised import expand
from projector.kernels.simulate import Simulated
from projector.operators.types import Attention, Gemm, Stream

GPUS = (("a100_sxm_80gb", "fa2"), ("h100_sxm", "fa3"), ("b200", "cudnn"), ("mi300x", "ck"), ("mi355x", "aiter"))


def op(**changes: object) -> Attention:
    base = Attention(name="a", batch=2, heads=16, kv_heads=4, seq_q=4096, seq_k=4096, head_dim_qk=128, head_dim_v=128)
    return replace(base, **changes)  # type: ignore[arg-type]


def seconds(name: str, family: str, *ops: Attention) -> np.ndarray:
    return Simulated(gpu(name), load(name), Execution(attention_family=family)).times(ops).seconds


def counted(own: int, other: int, rows: int, columns: int, causal: bool, window: int) -> int:
    """Blocks met by every work-group, by counting: the reference for the closed form."""
    total = 0
    for group in range(math.ceil(own / rows)):
        met = math.ceil(other / columns)
        if causal:
            end = min((group + 1) * rows + max(other - own, 0), other)
            met = min(met, math.ceil(end / columns), math.ceil((window + rows) / columns))
        total += met
    return total


@settings(max_examples=200, deadline=None)
@given(
    own=st.integers(1, 64).map(lambda x: x * 256),
    more=st.integers(0, 16).map(lambda x: x * 256),
    rows=st.sampled_from([64, 128, 256]),
    columns=st.sampled_from([16, 64, 128]),
    causal=st.booleans(),
    window=st.sampled_from([512, 1024, 4096, 10**6]),
)
def test_closed_form_counts_the_blocks(own: int, more: int, rows: int, columns: int, causal: bool, window: int) -> None:
    cells = [np.array([float(x)]) for x in (own, own + more, rows, columns, causal, window)]
    groups, total, longest = iterations(*cells)
    exact = counted(own, own + more, rows, columns, causal, window)
    assert groups[0] == math.ceil(own / rows)
    assert total[0] == pytest.approx(exact, rel=0.03, abs=groups[0])
    assert longest[0] <= math.ceil((own + more) / columns)


def test_a_square_causal_mask_executes_more_than_half() -> None:
    cells = [np.array([float(x)]) for x in (1024, 1024, 256, 64, 1, 1e9)]
    _, total, _ = iterations(*cells)
    assert total[0] / (4 * 16) == pytest.approx(0.625)  # ½ + rows/(2·S)


@settings(max_examples=120, deadline=None)
@given(
    where=st.sampled_from(GPUS),
    seq=st.integers(64, 16384),
    heads=st.integers(1, 64),
    dim=st.sampled_from([64, 80, 128, 192, 256]),
    causal=st.booleans(),
    backward=st.booleans(),
)
def test_never_beats_the_peak(
    where: tuple[str, str], seq: int, heads: int, dim: int, causal: bool, backward: bool
) -> None:
    one = op(
        heads=heads,
        kv_heads=1,
        seq_q=seq,
        seq_k=seq,
        head_dim_qk=dim,
        head_dim_v=dim,
        causal=causal,
        backward=backward,
    )
    took = seconds(*where, one)[0]
    device = gpu(where[0])
    assert took > one.flops / device.peak_of("bf16")
    assert took > 2.0 * one.batch * (2 * seq * heads * dim + 2 * seq * dim) / device.memory_bandwidth


@settings(max_examples=80, deadline=None)
@given(where=st.sampled_from(GPUS), seq=st.integers(256, 8192), heads=st.integers(1, 48), backward=st.booleans())
def test_more_work_takes_longer(where: tuple[str, str], seq: int, heads: int, backward: bool) -> None:
    one = op(heads=heads, kv_heads=1, seq_q=seq, seq_k=seq, backward=backward)
    longer = replace(one, seq_q=seq + 512, seq_k=seq + 512)
    wider, batched = replace(one, heads=heads + 8), replace(one, batch=one.batch * 3)
    first, *more = seconds(*where, one, longer, wider, batched)
    assert min(more) >= first * (1 - 1e-12)
    assert more[2] <= 3 * first * (1 + 1e-12)


def test_masks_and_directions_order_as_they_should() -> None:
    for where in GPUS:
        full, causal, window, backward = seconds(*where, op(causal=False), op(), op(window=512), op(backward=True))
        assert window < causal < full, where
        assert 0.5 * full < causal < 0.75 * full, where
        assert 1.8 * causal < backward < 4.5 * causal, where


def test_mla_costs_by_both_head_dimensions() -> None:
    for where in GPUS:
        small, mla = seconds(*where, op(kv_heads=16), op(kv_heads=16, head_dim_qk=192))
        assert small < mla < 2.2 * small, where


def test_materialised_attention_moves_the_score_matrix() -> None:
    for backward in (False, True):
        parts = expand(op(flash=False, backward=backward))
        scores = 2 * 16 * 4096 * 4096
        moved = sum(part.bytes for part in parts if isinstance(part, Stream))
        assert moved >= (8 if not backward else 10) * scores
        products = sum(part.flops for part in parts if isinstance(part, Gemm))
        assert products == (4 if not backward else 8) * scores * 128  # the whole square, no mask skipped
    for where in GPUS:
        flash, plain = seconds(*where, op(), op(flash=False))
        assert plain > 1.5 * flash, where
