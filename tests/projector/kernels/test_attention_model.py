"""The attention model: bounds that physics sets, masks, directions, types, families."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels import sets
from projector.hardware import catalogue, efficiency
from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Efficiency
from projector.kernels import attention
from projector.kernels.attention import materialised
from projector.kernels.attention_constants import block, dq_bytes, padded, parent
from projector.kernels.constants import element_bytes
from projector.kernels.simulate import Simulated, selected_seconds
from projector.kernels.tables import Measured
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


@given(where=WHERE, one=shapes)
def test_never_beats_the_peak_nor_the_memory(where: tuple[str, str], one: Attention) -> None:
    took, device = seconds(*where, one)[0], gpu(where[0])
    executed = one.flops if not one.causal else one.flops * 0.999  # `pairs` counts half of the diagonal
    assert took > executed / device.peak_of("bf16")
    queries = one.batch * one.heads * one.seq_q * (one.head_dim_qk + one.head_dim_v)
    keys = one.batch * one.kv_heads * one.seq_k * (one.head_dim_qk + one.head_dim_v)
    assert took > 2.0 * (queries + keys) / device.memory_bandwidth


@given(where=WHERE, one=shapes, times=st.integers(2, 5))
def test_more_work_takes_longer(where: tuple[str, str], one: Attention, times: int) -> None:
    longer = replace(one, seq_q=one.seq_q + 512, seq_k=one.seq_k + 512)
    wider = replace(one, heads=one.heads * 2, kv_heads=one.kv_heads * 2)
    first, *more = seconds(*where, one, longer, wider, replace(one, batch=one.batch * times))
    assert min(more) >= first * (1 - 1e-9)
    assert more[2] <= times * first * (1 + 1e-9)


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


@given(where=WHERE, one=shapes)
def test_backward_takes_longer_than_forward(where: tuple[str, str], one: Attention) -> None:
    """With every unit busy: its smaller tiles spread a lone sequence over more units than the forward's."""
    one = replace(one, batch=256, seq_q=one.seq_q + 1024, seq_k=one.seq_q + 1024)
    forward, backward = seconds(*where, replace(one, backward=False), replace(one, backward=True))
    assert backward >= forward * (1 - 1e-9)


@given(one=shapes)
def test_fp8_is_not_slower_with_the_same_constants(one: Attention) -> None:
    device, plain = gpu("h100_sxm"), Efficiency(gpu="h100_sxm", parameters={})
    one = replace(one, backward=False, head_dim_qk=min(one.head_dim_qk, 128), head_dim_v=min(one.head_dim_v, 128))
    narrow = replace(one, dtype="fp8")  # cuDNN keeps its block up to head_dim 128
    took = [attention.seconds([o], [attention.constants(device, plain, "cudnn", o)])[0] for o in (narrow, one)]
    assert took[0] <= took[1] * (1 + 1e-9)


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


def test_materialised_attention_moves_the_score_matrix() -> None:
    bytes_ = {(): (4, 6), ("dropout",): (9, 11), ("wide",): (12, 16), ("apart",): (12, 10)}  # of a score
    for backward, named in product((False, True), bytes_):
        parts = materialised(op(flash=False, backward=backward, **dict.fromkeys(named, True)))
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


# Which attention rows are fitted together: families before those that resemble them, few parameters, sane priors.


def row(family: str, seq: int, heads: int = 16, condition: str = "published", **changes: int | bool | str) -> Measured:
    cells = {"head_dim_qk": 128, "head_dim_v": 128, "causal": True, "backward": False, "dtype": "bf16", **changes}
    op = Attention(name="", batch=1, heads=heads, kv_heads=heads, seq_q=seq, seq_k=seq, **cells)  # type: ignore[arg-type]
    return Measured(op=op, family=family, seconds=1e-3, condition=condition, source="a paper")


def stems(family: str, rows: list[Measured]) -> list[str]:
    return [key.split(".")[2] for one in sets.attention(rows) if one.family == family for key in one.keys]


def test_a_family_comes_before_those_that_resemble_it() -> None:
    rows = [row(family, seq) for family in ("aiter", "aiter_a16", "asm", "opus") for seq in (512, 1024, 2048)]
    assert next(one.family for one in sets.attention(rows)) == "aiter"


def test_rows_carry_what_they_can_tell() -> None:
    few = [row("fa3", seq) for seq in (1024, 2048, 4096)]
    assert stems("fa3", few) == ["loop"]
    many = [row("fa3", 512 * n, causal=n % 2 == 0, head_dim_qk=d, head_dim_v=d) for n in range(1, 9) for d in (64, 128)]
    assert set(stems("fa3", many)) == {"loop", "overlap", "prologue_us", "mask", "softmax"}
    paired = [row("aiter", 512 * n) for n in range(1, 20)]
    assert set(stems("aiter", paired)) == {"loop", "overlap", "prologue_us", "launch_us", "power"}
    timed = [row("cudnn", 4096, heads, condition="framework average") for heads in (4, 8, 16, 32)]
    assert set(stems("cudnn", timed)) == {"loop", "launch_us"}


def test_unequal_head_dimensions_are_another_kernel_where_nothing_explains_them() -> None:
    def titles(family: str) -> list[str]:
        rows = [row(family, 1024 * n, head_dim_qk=d) for n in range(1, 4) for d in (128, 192)]
        return [one.title for one in sets.attention(rows)]

    assert [t.endswith("d192") for t in titles("cudnn")] == [False, True]
    assert len(titles("fa2")) == len(titles("opus")) == 1  # operand fetch explains it; scaled from another family


def test_priors_lie_inside_their_bounds_and_are_few() -> None:
    dims = (64, 128, 192, 256)
    rows = [
        row(f, 512 * n, head_dim_qk=d, head_dim_v=d) for f in ("fa2", "fa3", "aiter") for n in (1, 2, 8) for d in dims
    ]
    for one in sets.attention(rows):
        assert len(one.keys) <= 6
        assert all(low <= prior <= high and low < high for prior, low, high in one.keys.values())


# torch's attention on ROCm against its published rates.


def rate(
    gpu: str, family: str, seq: int, *, causal: bool, backward: bool, heads: int = 64, kv_heads: int = 64
) -> float:
    """TFLOP/s."""
    device = catalogue.gpu(gpu)
    op = Attention(
        name="a", batch=16384 // seq, heads=heads, kv_heads=kv_heads, seq_q=seq, seq_k=seq, head_dim_qk=128,
        head_dim_v=128, causal=causal, backward=backward, dtype="bf16",
    )  # fmt: skip
    model = Simulated(device, efficiency.of(device), Execution.of(kernels={"attention": family}), alone=True)
    return op.flops / float(model.times([op]).seconds[0]) / 1e12


@pytest.mark.parametrize(("seq", "published"), [(512, 385.7), (1024, 489.5), (2048, 569.2), (4096, 608.5)])
def test_forward_on_mi355x(seq: int, published: float) -> None:
    """facebookexperimental/triton#1782: 64 heads, no mask; constants were chosen on these four rows."""
    assert rate("mi355x", "aotriton", seq, causal=False, backward=False) == pytest.approx(published, rel=0.15)


def test_backward_with_grouped_queries_on_mi355x() -> None:
    """A quarter of the best kernel (arXiv 2511.08083), which does 1,053 TFLOP/s (ROCm/aiter#815)."""
    made = rate("mi355x", "aotriton", 8192, causal=True, backward=True, kv_heads=8)
    assert made == pytest.approx(0.24 * 1053, rel=0.05)


@pytest.mark.parametrize("gpu", ["mi300x", "mi325x", "mi355x"])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("seq", [1024, 4096, 16384])
def test_never_faster_than_the_assembly_kernels(gpu: str, backward: bool, seq: int) -> None:
    ours, best = (rate(gpu, family, seq, causal=True, backward=backward) for family in ("aotriton", "aiter"))
    assert ours < best < catalogue.gpu(gpu).peak_of("bf16") / 1e12


# Attention of queries that choose their keys: linear in the keys, and never free of its own rows.

# Milliseconds by keys and heads of NVIDIA/cudnn-frontend pull request 318, backward of 4096 queries on SM100.
PUBLISHED = {
    (128, 64): 0.560, (512, 64): 1.233, (1024, 64): 2.155, (2048, 64): 4.019, (128, 128): 1.066, (1024, 128): 4.303,
}  # fmt: skip


def seconds_of_selected(gpu: str, keys: float, heads: int = 64, backward: bool = True) -> float:
    device = catalogue.default_cluster(gpu).gpu
    sizes = {
        "batch": 1, "heads": heads, "kv_heads": 1, "seq_q": 4096, "seq_k": 4096, "head_dim_qk": 512, "head_dim_v": 512,
    }  # fmt: skip
    op = Attention(name="core_attn", keys=keys, backward=backward, **sizes)  # type: ignore[arg-type]
    return selected_seconds(op, device, efficiency_of(device))


@pytest.mark.parametrize("gpu", ["b200", "gb200"])
def test_the_published_backward_comes_out(gpu: str) -> None:
    for (keys, heads), milliseconds in PUBLISHED.items():
        assert seconds_of_selected(gpu, keys, heads) * 1e3 == pytest.approx(milliseconds, rel=0.1)


@pytest.mark.parametrize("gpu", ["gb300", "h100_sxm", "mi355x"])
@pytest.mark.parametrize("backward", [False, True])
def test_time_is_linear_in_keys_and_rows_of_queries_remain(gpu: str, backward: bool) -> None:
    none, some, twice = (seconds_of_selected(gpu, keys, backward=backward) for keys in (0.0, 512.0, 1024.0))
    assert twice - some == pytest.approx(some - none)
    rows = (2 if backward else 1) * 2.0 * 4096 * 64 * 1024
    assert none >= rows / catalogue.default_cluster(gpu).gpu.memory_bandwidth
