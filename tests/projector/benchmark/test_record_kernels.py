"""Every kind of kernel really runs on the CPU at tiny sizes, and says what it ran."""

import dataclasses

import pytest
from asked import refusal

from projector.benchmark import attention, gemm, grouped
from projector.benchmark.device import Device, open_device
from projector.benchmark.job import Skip
from projector.benchmark.passes import PASSES
from projector.benchmark.record import chosen, stream_jobs
from projector.benchmark.stopwatch import Stopwatch
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

LAYOUTS = ("TN", "NN", "NT")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_products_of_every_layout_run(cpu: Device, quick: Stopwatch, layout: str, dtype: str, accumulate: bool) -> None:
    op = Gemm(
        name="fc1", m=24, n=40, k=16, dtype=dtype, layout=layout, out_bytes=4.0, accumulate=accumulate, launches=2
    )
    (job,) = gemm.jobs(op, cpu)
    assert job.op == dataclasses.replace(op, name="", launches=1)
    ready = job.build()
    assert tuple(ready.call().shape) == (24, 40)  # type: ignore[attr-defined]
    assert quick.time(ready.call).median > 0
    assert ("two kernels" in ready.note) == (dtype == "bf16")  # a CPU has no bf16 product with an fp32 output


@pytest.mark.parametrize("scaling", ["", "tensorwise", "rowwise"])
def test_eight_bit_products_run_where_torch_has_them(cpu: Device, quick: Stopwatch, scaling: str) -> None:
    (job,) = gemm.jobs(Gemm(name="", m=32, n=32, k=32, dtype="fp8", scaling=scaling), cpu)
    assert isinstance(job.op, Gemm)
    assert job.op.scaling == (scaling or "tensorwise")
    try:
        assert quick.time(job.build().call).median > 0
    except (Skip, RuntimeError) as error:
        pytest.skip(f"not in this build of torch: {error}")


def test_types_that_torch_has_no_products_of_are_skipped(cpu: Device) -> None:
    with pytest.raises(Skip, match="nvfp4"):
        gemm.jobs(Gemm(name="", m=8, n=8, k=8, dtype="nvfp4"), cpu)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["fused", "multi_stream", "loop"])
def test_grouped_products_run_and_state_their_backend(cpu: Device, quick: Stopwatch, layout: str, backend: str) -> None:
    op = GroupedGemm(name="fc1", groups=4, rows=64, n=32, k=16, layout=layout, backend=backend)
    (job,) = grouped.jobs(op, cpu)
    assert isinstance(job.op, GroupedGemm)
    kernel = hasattr(cpu.torch, "_grouped_mm")
    assert job.op.backend == ("loop" if backend == "fused" and not kernel else backend)
    ready = job.build()
    assert ("expert after expert" in ready.note) == (backend == "multi_stream")  # a CPU has no streams
    assert quick.time(ready.call).median > 0


def test_uneven_rows_and_accumulation_run(cpu: Device, quick: Stopwatch) -> None:
    op = GroupedGemm(name="", groups=3, rows=50, n=8, k=16, layout="NT", backend="loop", out_bytes=4.0, accumulate=True)
    (job,) = grouped.jobs(op, cpu)
    assert quick.time(job.build().call).median > 0


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_attention_runs_forward_and_backward(cpu: Device, quick: Stopwatch, backward: bool, kv_heads: int) -> None:
    op = Attention(
        name="core", batch=2, heads=2, kv_heads=kv_heads, seq_q=32, seq_k=32, head_dim_qk=16, head_dim_v=16,
        backward=backward,
    )  # fmt: skip
    (job,) = attention.jobs(op, cpu)
    assert job.family == "sdpa_cpu"
    assert quick.time(job.build().call).median > 0


def test_attention_that_tables_cannot_hold_is_skipped(cpu: Device) -> None:
    op = Attention(name="", batch=1, heads=2, kv_heads=2, seq_q=32, seq_k=32, head_dim_qk=16, head_dim_v=16)
    for other in (
        dataclasses.replace(op, window=8),
        dataclasses.replace(op, flash=False),
        dataclasses.replace(op, seq_k=64),
        dataclasses.replace(op, dtype="fp8"),
    ):
        with pytest.raises(Skip):
            attention.jobs(other, cpu)


@pytest.mark.parametrize("each", PASSES, ids=lambda each: f"{each.kind}-{each.name}")
def test_every_pass_runs(cpu: Device, quick: Stopwatch, each: object) -> None:
    setup = each.setup  # type: ignore[attr-defined]
    try:
        assert quick.time(setup(cpu, 16, min(each.width, 64))).median > 0  # type: ignore[attr-defined]
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"not in this build of torch: {error}")


@pytest.mark.parametrize("kind", sorted({each.kind for each in PASSES}))
@pytest.mark.parametrize("launches", [0, 1, 6])
def test_a_stream_moves_about_the_bytes_of_its_operator(cpu: Device, kind: str, launches: int) -> None:
    op = Stream(name="x", kind=kind, read=6e6, write=0.0 if kind == "reduce" else 4e6, launches=launches)
    (job,) = stream_jobs(op, cpu)
    assert isinstance(job.op, Stream)
    assert job.op.kind == kind
    assert 0.6 < job.op.bytes / op.bytes < 1.6  # sizes are rounded to powers of the square root of two
    assert job.op.launches >= 1


def test_a_stream_is_the_pass_that_reads_as_large_a_share(cpu: Device) -> None:
    assert chosen(Stream(name="", kind="optimizer", read=0.0, write=4e6)).name == "zero"
    assert chosen(Stream(name="", kind="norm", read=4e6, write=2e6)).name == "LayerNorm backward"
    with pytest.raises(Skip):
        chosen(Stream(name="", kind="unheard of", read=1.0, write=1.0))


@pytest.mark.parametrize("text", ["tpu", "cuda:x", "cpu:3", ""])
def test_an_unknown_device_is_an_input_error(cpu: Device, text: str) -> None:
    refusal(open_device, text, match="--device")


def test_a_flush_is_longer_than_the_cache(cpu: Device) -> None:
    watch = Stopwatch(cpu, samples=3, flush=True, most=0.01)
    assert watch._buffer.numel() >= 2 * cpu.cache_bytes()
    assert watch.condition == "live, cold cache"
    assert watch.time(lambda: None).median >= 0
