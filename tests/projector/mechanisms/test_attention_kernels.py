"""Which attention kernel runs: what each wants of a call, by architecture, date, widths, lengths, window and sinks."""

import dataclasses
from itertools import product

import pytest
from tabled import tabled

from projector.frameworks.resolve import resolve
from projector.hardware import catalogue, efficiency
from projector.kernels import attention
from projector.kernels.attention import materialised
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.mechanisms.attention_kernels import KERNELS, build_month, choose
from projector.operators.types import Attention
from projector.workload.recipe import Recipe
from tests.workloads import workload

ARCHS = ("gfx942", "gfx950", "ampere", "hopper", "blackwell", "blackwell_ultra")
MONTHS = tuple(f"{year}-{month:02}" for year in range(2022, 2027) for month in range(1, 13))


def op(qk: int = 128, v: int | None = None, **other: object) -> Attention:
    given = {"batch": 1, "heads": 16, "kv_heads": 16, "seq_q": 4096, "seq_k": 4096} | other
    return Attention(name="a", head_dim_qk=qk, head_dim_v=qk if v is None else v, **given)  # type: ignore[arg-type]


def family(preferred: str, arch: str, built: str, call: Attention) -> str:
    return choose(preferred, built, arch, call)[0]


@pytest.mark.parametrize("preferred", sorted(KERNELS))
def test_every_call_finds_a_kernel_and_keeps_its_work(preferred: str) -> None:
    """Whatever is asked, something runs; it never executes narrower heads, other lengths or another direction."""
    kinds = product((64, 96, 128, 192, 256, 512), (64, 128, 192, 256), ("bf16", "fp8"), (None, 128), (False, True))
    for qk, v, dtype, window, flag in kinds:
        call = op(qk, v, dtype=dtype, window=window, backward=flag, sinks=flag)
        for arch, built in product(ARCHS, ("", "2023-01", "2026-12")):
            found, executed = choose(preferred, built, arch, call)
            assert found
            assert executed.head_dim_qk >= qk
            assert executed.head_dim_v >= v
            assert (executed.seq_q, executed.backward, executed.window) == (call.seq_q, call.backward, call.window)


@pytest.mark.parametrize("preferred", sorted(KERNELS))
def test_a_newer_build_never_loses_a_kernel(preferred: str) -> None:
    """The place in the list of what runs never rises with the date, and a build of today is one of the last month."""
    chain = [kernel.family for kernel in KERNELS[preferred]]
    for arch, (qk, v), backward in product(ARCHS, ((64, 64), (128, 128), (192, 128), (256, 256)), (False, True)):
        call = op(qk, v, backward=backward)
        places = [chain.index(family(preferred, arch, month, call)) for month in (*MONTHS, "")]
        assert places == sorted(places, reverse=True)
        assert places[-1] == places[-2]


def test_builds_between_two_additions_run_alike() -> None:
    for preferred, arch, backward in product(KERNELS, ARCHS, (False, True)):
        for month, (qk, v) in product(MONTHS, ((128, 128), (192, 128))):
            call = op(qk, v, backward=backward)
            assert choose(preferred, month, arch, call) == choose(preferred, build_month(month), arch, call)
    assert build_month("") == build_month(None) == ""
    assert build_month("1999-01") < "2000"  # older than every kernel that has a date


@pytest.mark.parametrize(("preferred", "arch", "built", "call", "expected"), tabled("kernels", "attention"))
def test_published_preconditions(preferred: str, arch: str, built: str, call: dict[str, object], expected: str) -> None:
    assert family(preferred, arch, built, op(**call)) == expected


@pytest.mark.parametrize(
    ("call", "least", "most"),
    [
        # AMD-AGI/Primus@7e45b589 pilot/pilot/state/runs: FmhaBwdDQDKDVKernel and its helpers, ms a call
        (op(192, 128, batch=14, backward=True), 22.0, 24.5),
        (op(64, batch=4, heads=32, kv_heads=8, seq_q=8192, seq_k=8192, backward=True), 11.4, 13.0),
    ],
)
def test_composable_kernels_backward_takes_what_traces_on_mi355x_show(
    call: Attention, least: float, most: float
) -> None:
    gpu = catalogue.gpu("mi355x")
    known = efficiency.of(gpu)
    [seconds] = attention.seconds([call], [attention.constants(gpu, known, "ck", call)])
    [assembly] = attention.seconds([call], [attention.constants(gpu, known, "aiter_a16", call)])
    assert 0.92 * least < 1e3 * seconds < 1.08 * most
    assert assembly < 0.35 * seconds  # ROCm/TransformerEngine PR 706: about eight times at 192/128


def test_flash_attention_2_pads_the_narrower_width() -> None:
    assert choose("fa2", "", "ampere", op(192, 128)) == ("fa2", op(192, 192))


def test_eight_bit_attention_falls_back_to_sixteen() -> None:
    """cuDNN on sm90 trains 8-bit attention at 128 alone."""
    assert choose("cudnn", "", "hopper", op(dtype="fp8")) == ("cudnn", op(dtype="fp8"))
    assert choose("cudnn", "", "hopper", op(192, 128, dtype="fp8")) == ("cudnn", op(192, 128))


def seconds(gpu: str, preferred: str, built: str, call: Attention) -> float:
    device = catalogue.gpu(gpu)
    execution = Execution.of(kernels={"attention": preferred, "built": built})
    return float(Simulated(device, efficiency.of(device), execution).times([call]).seconds[0])


def test_the_generic_kernel_is_slower() -> None:
    """Composable Kernel computes a 192/128 backward at 256/256."""
    call = op(192, 128, backward=True)
    assert seconds("mi355x", "aiter_a16", "2025-10", call) > 1.4 * seconds("mi355x", "aiter_a16", "2025-11", call)
    wide = op(256, backward=True)
    assert seconds("mi355x", "ck", "", call) == pytest.approx(seconds("mi355x", "ck", "", wide), rel=0.1)


def test_without_a_flash_kernel_scores_are_written() -> None:
    device, call = catalogue.gpu("b200"), op(512)
    model = Simulated(device, efficiency.of(device), Execution.of(kernels={"attention": "cudnn"}))
    assert float(model.times([call]).seconds[0]) == pytest.approx(float(model.times(materialised(call)).seconds.sum()))


def test_the_eight_bit_backward_of_cudnn_ignores_a_window() -> None:
    for backward, alike in ((True, True), (False, False)):
        call = op(64, window=128, dtype="fp8", backward=backward)
        whole = dataclasses.replace(call, window=None)
        assert (seconds("gb200", "cudnn", "", call) == seconds("gb200", "cudnn", "", whole)) is alike


def test_a_run_carries_the_date_of_its_build() -> None:
    run = dataclasses.replace(workload("llama2_7b", framework="primus"), framework_date="2025-06")
    old = resolve(run, "amd", "gfx942")
    new = resolve(dataclasses.replace(run, framework_date="2026-03"), "amd", "gfx942")
    assert (old.execution.kernels.built, new.execution.kernels.built) == ("2025-05", "2026-03")


def test_a_recipe_may_name_the_flash_attention_that_runs() -> None:
    """FlashAttention-3 is for Hopper, 4 for Blackwell; elsewhere 2 runs. What is not named stays the profile's."""

    def runs(said: str | None, arch: str) -> str:
        kernels = Execution.of(kernels={"attention": "cudnn"}).configured_by(_naming(said)).kernels
        return family(kernels.attention, arch, "", op())

    assert [runs("fa3", arch) for arch in ("ampere", "hopper", "blackwell")] == ["fa2", "fa3", "fa2"]
    assert [runs("fa4", arch) for arch in ("hopper", "blackwell", "blackwell_ultra")] == ["fa2", "fa4", "fa4"]
    assert {runs(said, "blackwell") for said in (None, "flash", "auto")} == {"cudnn"}


def _naming(said: str | None) -> Recipe:
    return Recipe(micro_batch_size=1, global_batch_size=8, seq_length=4096, attention_backend=said)
