"""Dispatch, memory and the memory-bound kernels of the analytical model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from projector.errors import InputError
from projector.hardware.catalogue import gpu, gpu_names
from projector.hardware.efficiency import load
from projector.hardware.efficiency_file import parse
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

FLASH = Attention(name="a", batch=1, heads=32, kv_heads=8, seq_q=4096, seq_k=4096, head_dim_qk=128, head_dim_v=128)
GROUPED = GroupedGemm(name="e", groups=32, rows=32768, n=4096, k=7168, backend="multi_stream")
MIXED = (
    Gemm(name="g", m=4096, n=4096, k=4096),
    GROUPED,
    FLASH,
    Stream(name="n", kind="norm", read=1e8, write=1e8),
    replace(FLASH, flash=False, seq_q=1024, seq_k=1024),
)


def model(name: str = "h100_sxm") -> Simulated:
    return Simulated(gpu(name), load(name), Execution())


def test_order_does_not_matter_and_nothing_is_measured() -> None:
    alone = [model().times([op]).seconds[0] for op in MIXED]
    together = model().times(MIXED)
    backwards = model().times(MIXED[::-1])
    np.testing.assert_allclose(together.seconds, alone, rtol=1e-12)
    np.testing.assert_allclose(backwards.seconds[::-1], alone, rtol=1e-12)
    assert not together.measured.any()
    assert (together.seconds > 0).all()


def test_every_catalogue_gpu_has_times() -> None:
    for name in gpu_names():
        times = model(name).times(MIXED).seconds
        assert np.isfinite(times).all(), name
        assert (times > 0).all(), name


def test_a_list_seen_before_is_the_same_object() -> None:
    simulated = model()
    assert simulated.times(MIXED) is simulated.times(list(MIXED))
    with pytest.raises(ValueError):
        simulated.times(MIXED).seconds[0] = 0.0


def test_streams_ramp_to_their_share_of_bandwidth() -> None:
    small, large = (Stream(name="s", kind="elementwise", read=x, write=x) for x in (1e4, 1e10))
    times = model().times([small, large]).seconds
    bandwidth = gpu("h100_sxm").memory_bandwidth
    share = load("h100_sxm")["stream.elementwise"]
    assert small.bytes / times[0] < 0.05 * bandwidth
    assert large.bytes / times[1] == pytest.approx(share * bandwidth, rel=0.01)


def test_grouped_backends_order_by_cost_per_group() -> None:
    few = replace(GROUPED, groups=64, rows=8192)
    for name in ("h100_sxm", "b200", "mi355x"):
        fused, looped = model(name).times([replace(few, backend="fused"), replace(few, backend="loop")]).seconds
        assert fused < looped, name


def test_grouped_gemm_reads_every_expert_once() -> None:
    starved = replace(GROUPED, groups=256, rows=256)
    took = model("h100_sxm").times([starved]).seconds[0]
    assert took > 256 * 4096 * 7168 * 2 / gpu("h100_sxm").memory_bandwidth


def test_grouped_never_beats_the_dense_peak() -> None:
    for backend in ("fused", "multi_stream", "loop"):
        for layout in ("TN", "NN", "NT"):
            ops = [replace(GROUPED, backend=backend, layout=layout, rows=rows) for rows in (32, 8192, 262144)]
            for op, took in zip(ops, model("b200").times(ops).seconds, strict=True):
                assert took > op.flops / gpu("b200").peak_of("bf16")


def test_uneven_experts_pay_for_padding() -> None:
    even, odd = model().times([replace(GROUPED, rows=32 * 128), replace(GROUPED, rows=32 * 129)]).seconds
    assert odd > even


def test_efficiency_files_give_shares_between_low_and_high() -> None:
    for name in gpu_names():
        for key, parameter in load(name).parameters.items():
            assert parameter.source, (name, key)
            assert parameter.low is not None, (name, key)
            assert parameter.high is not None, (name, key)
            assert parameter.low <= parameter.value <= parameter.high, (name, key)


def test_a_broken_efficiency_file_names_every_mistake() -> None:
    text = "parameters:\n  a: {value: fast, kind: guessed, source: x}\n  b: {value: 1, kind: derived, sauce: y}\n"
    with pytest.raises(InputError) as caught:
        parse(text, "x.yaml")
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {"parameters.a.value", "parameters.a.kind", "parameters.b.sauce", "parameters.b.source"}
    with pytest.raises(InputError):
        parse("parameters: [", "x.yaml")
    with pytest.raises(InputError):
        parse("", "x.yaml")
