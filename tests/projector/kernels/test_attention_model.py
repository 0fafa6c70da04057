"""The attention model: bounds that physics sets, masks, directions, types, families."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.hardware.types import Efficiency
from projector.kernels import attention
from projector.kernels.attention_tiles import block, dq_bytes, padded, parent
from projector.kernels.constants import element_bytes
from projector.kernels.materialised import expand
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, Stream
from projector.parameter import Parameter

GPUS = (
    ("a100_sxm_80gb", "fa2"),
    ("h100_sxm", "fa3"),
    ("b200", "cudnn"),
    ("b200", "fa4"),
    ("mi300x", "ck"),
    ("mi300x", "aiter"),
    ("mi355x", "aiter_a16"),
)
WHERE = st.sampled_from(GPUS)


def op(**changes: object) -> Attention:
    base = Attention(name="a", batch=2, heads=16, kv_heads=4, seq_q=4096, seq_k=4096, head_dim_qk=128, head_dim_v=128)
    return replace(base, **changes)  # type: ignore[arg-type]


def seconds(name: str, family: str, *ops: Attention) -> np.ndarray:
    """By this kernel, whatever a stack would run."""
    return Simulated(gpu(name), load(name), Execution.of(kernels={"attention": family}), alone=True).times(ops).seconds


shapes = st.builds(
    lambda seq, more, heads, group, dim, causal, backward: op(
        heads=heads * group,
        kv_heads=heads,
        seq_q=seq,
        seq_k=seq + more,
        head_dim_qk=dim,
        head_dim_v=min(dim, 128) if dim == 192 else dim,
        causal=causal,
        backward=backward,
    ),
    st.integers(16, 9000),
    st.sampled_from([0, 0, 1, 4096]),
    st.integers(1, 16),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([64, 80, 128, 192, 256]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(where=WHERE, one=shapes)
def test_never_beats_the_peak_nor_the_memory(where: tuple[str, str], one: Attention) -> None:
    took, device = seconds(*where, one)[0], gpu(where[0])
    executed = one.flops if not one.causal else one.flops * 0.999  # `pairs` counts half of the diagonal
    assert took > executed / device.peak_of("bf16")
    queries = one.batch * one.heads * one.seq_q * (one.head_dim_qk + one.head_dim_v)
    keys = one.batch * one.kv_heads * one.seq_k * (one.head_dim_qk + one.head_dim_v)
    assert took > 2.0 * (queries + keys) / device.memory_bandwidth


@settings(max_examples=150, deadline=None)
@given(where=WHERE, one=shapes, times=st.integers(2, 5))
def test_more_work_takes_longer(where: tuple[str, str], one: Attention, times: int) -> None:
    longer = replace(one, seq_q=one.seq_q + 512, seq_k=one.seq_k + 512)
    wider = replace(one, heads=one.heads * 2, kv_heads=one.kv_heads * 2)
    first, *more = seconds(*where, one, longer, wider, replace(one, batch=one.batch * times))
    assert min(more) >= first * (1 - 1e-9)
    assert more[2] <= times * first * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(where=WHERE, one=shapes, window=st.integers(1, 4096))
def test_a_mask_saves_time(where: tuple[str, str], one: Attention, window: int) -> None:
    """Enough work-groups: two causal tiles in one work-group may outlast one full tile when units stand idle."""
    one = replace(one, batch=2048, causal=True)
    full, causal = seconds(*where, replace(one, causal=False), one)
    narrow, wide = seconds(*where, replace(one, window=window), replace(one, window=2 * window))
    # masked blocks cost more, and short sequences are all diagonal
    diagonal = 1.0 if one.seq_q > 2048 else 1.6 if one.seq_q > 512 else 2.0
    assert causal <= full * diagonal
    # the longest tile of a band is known to one block: its share of whole waves moves by as much
    assert narrow <= wide * 1.02
    assert wide <= causal * 1.02


@settings(max_examples=100, deadline=None)
@given(where=WHERE, one=shapes)
def test_backward_takes_longer_than_forward(where: tuple[str, str], one: Attention) -> None:
    """With every unit busy: its smaller tiles spread a lone sequence over more units than the forward's."""
    one = replace(one, batch=256, seq_q=one.seq_q + 1024, seq_k=one.seq_q + 1024)
    forward, backward = seconds(*where, replace(one, backward=False), replace(one, backward=True))
    assert backward >= forward * (1 - 1e-9)


@settings(max_examples=100, deadline=None)
@given(one=shapes)
def test_fp8_is_not_slower_with_the_same_constants(one: Attention) -> None:
    device, plain = gpu("h100_sxm"), Efficiency(gpu="h100_sxm", parameters={})
    one = replace(one, backward=False, head_dim_qk=min(one.head_dim_qk, 128), head_dim_v=min(one.head_dim_v, 128))
    narrow = replace(one, dtype="fp8")  # cuDNN keeps its block up to head_dim 128
    took = [attention.seconds([o], [attention.constants(device, plain, "cudnn", o)])[0] for o in (narrow, one)]
    assert took[0] <= took[1] * (1 + 1e-9)


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


def test_the_clock_scales_the_loop_and_leaves_the_bandwidth() -> None:
    device, base = gpu("h100_sxm"), load("h100_sxm")

    def at(clock: float) -> attention.AttentionConstants:
        values = {**base.parameters, "clock.attention": Parameter(clock, "derived", "")}
        return attention.constants(device, Efficiency(gpu="h100_sxm", parameters=values), "fa3", op(causal=False))

    slow, fast = at(0.4), at(0.8)
    assert slow.iteration == pytest.approx(2.0 * fast.iteration)
    assert slow.bandwidth == fast.bandwidth


@pytest.mark.parametrize("name", ["a100_sxm_80gb", "h100_sxm", "b200", "gb300", "mi300x", "mi355x"])
def test_twice_the_exponentials_are_never_slower_and_show_where_softmax_binds(name: str) -> None:
    """A data sheet that doubles them (Blackwell Ultra, CDNA 4) must be heard: vector work does not hide all of them."""
    device = gpu(name)
    twice = replace(device, exp_per_clock_per_cu=2.0 * device.exp_per_clock_per_cu)
    half = replace(device, exp_per_clock_per_cu=device.exp_per_clock_per_cu / 2.0)
    for backward in (False, True):
        one = op(head_dim_qk=64, head_dim_v=64, backward=backward)
        slow, own, fast = (
            attention.constants(each, load(name), "fa2", one).iteration for each in (half, device, twice)
        )
        assert fast <= own < slow
        assert own - fast <= slow - own


def test_sixteen_bit_gradients_move_less() -> None:
    wide, narrow = (
        attention.constants(gpu("mi355x"), load("mi355x"), family, op(backward=True))
        for family in ("aiter", "aiter_a16")
    )
    assert (wide.dq_bytes, narrow.dq_bytes) == (4.0, 2.0) == (dq_bytes("aiter"), dq_bytes("aiter_a16"))
    shape = attention.columns_of([op(backward=True)])
    index = np.zeros(1, dtype=np.int64)
    same = replace(wide, dq_bytes=2.0)
    assert attention.seconds_of(shape, [same], index)[0] < attention.seconds_of(shape, [wide], index)[0]


def test_kernels_differ_where_their_sources_do() -> None:
    assert block("aiter", "gfx942", 128, "bf16", True, True).rows == 192
    assert block("aiter", "gfx950", 128, "bf16", True, True).rows == 256
    assert block("fa3", "hopper", 128, "bf16", False, False).columns == 176
    assert block("fa3", "hopper", 128, "bf16", True, False).columns == 128
    assert block("unheard_of", "hopper", 128, "bf16", True, False) == block("fa2", "hopper", 128, "bf16", True, False)
    assert (padded(80), padded(300)) == (96, 320)
    assert (parent("aiter_a16"), parent("fa3")) == ("aiter", "")


def test_a_family_without_constants_takes_its_parents() -> None:
    values = {"attention.forward.prologue_us.aiter.bf16": Parameter(9.0, "fitted", "")}
    values["attention.forward.prologue_us"] = Parameter(1.0, "derived", "")
    made = [
        attention.constants(gpu("mi355x"), Efficiency(gpu="x", parameters=values), family, op(causal=False)).prologue
        for family in ("opus", "ck")
    ]
    assert made == pytest.approx([9e-6, 1e-6])


@settings(max_examples=50, deadline=None)
@given(ones=st.lists(shapes, min_size=1, max_size=12))
def test_columns_equal_operators(ones: list[Attention]) -> None:
    device, efficiency = gpu("mi300x"), load("mi300x")
    classes = [attention.constants(device, efficiency, "aiter", one) for one in ones]
    cells = [
        (
            *(o.batch, o.heads, o.kv_heads, o.seq_q, o.seq_k, o.head_dim_qk, o.head_dim_v, o.causal),
            *(np.inf, o.backward, element_bytes(o.dtype)),
        )
        for o in ones
    ]
    columns = attention.AttentionShapes(*np.array(cells, dtype=np.float64).T)
    together = attention.seconds_of(columns, classes, np.arange(len(ones)))
    assert together == pytest.approx(attention.seconds(ones, classes))
    assert together == pytest.approx([attention.seconds([o], [c])[0] for o, c in zip(ones, classes, strict=True)])


def test_nothing_takes_no_time() -> None:
    assert attention.seconds([], []).shape == (0,)


def test_materialised_attention_moves_the_score_matrix() -> None:
    bytes_ = {(): (4, 6), ("dropout",): (9, 11), ("wide",): (12, 16)}  # of a score, forward and backward
    for backward, named in product((False, True), bytes_):
        parts = expand(op(flash=False, backward=backward, **dict.fromkeys(named, True)))
        scores = 2 * 16 * 4096 * 4096
        moved = sum(part.bytes for part in parts if isinstance(part, Stream))
        assert moved == bytes_[named][backward] * scores
        products = sum(part.flops for part in parts if isinstance(part, Gemm))
        assert products == (4 if not backward else 8) * scores * 128  # the whole square, no mask skipped
    for where in GPUS:
        flash, plain = seconds(*where, op(), op(flash=False))
        assert plain > 1.5 * flash, where


@pytest.mark.parametrize(("name", "family"), [("h200", "fa3"), ("b200", "fa4")])
@pytest.mark.parametrize("backward", [False, True])
def test_a_kernel_that_keeps_a_head_in_cache_does_not_slow_down_with_length(
    name: str, family: str, backward: bool
) -> None:
    """Dao-AILab/flash-attention hopper/tile_scheduler.hpp: its rate only rises with the sequence, whatever L2 holds."""
    lengths = [2**i for i in range(12, 19)]
    ops = [op(batch=1, seq_q=s, seq_k=s, backward=backward) for s in lengths]
    rates = [o.flops / t for o, t in zip(ops, seconds(name, family, *ops), strict=True)]
    assert all(b >= 0.99 * a for a, b in pairwise(rates))
