"""A stated clock or power limit: rates of the units follow it, the memory and the device's own figures do not."""

import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st

from projector.hardware import clock
from projector.hardware.catalogue import gpu, gpu_names
from projector.hardware.efficiency import load
from projector.hardware.types import Efficiency, Gpu
from projector.kernels.settings import Settings
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, Operator, Stream
from projector.parameter import Parameter

GPUS = st.sampled_from(gpu_names())
BIG = Gemm(name="big", m=16384, n=16384, k=16384, dtype="fp16")
COPY = Stream(name="copy", kind="copy", read=1e9, write=1e9)
FLASH = Attention(name="core", batch=8, heads=32, kv_heads=32, seq_q=8192, seq_k=8192, head_dim_qk=128, head_dim_v=128)


def seconds(device: Gpu, efficiency: Efficiency, op: Operator) -> float:
    return float(Simulated(device, efficiency, Execution()).times([op]).seconds[0])  # type: ignore[list-item]


@given(name=GPUS)
def test_the_clock_that_it_sustains_changes_nothing(name: str) -> None:
    device, efficiency = gpu(name), load(name)
    held, shares = clock.settle(device, efficiency, mhz=clock.sustained_mhz(device, efficiency))
    assert held == device
    assert shares["clock.matrix"] == pytest.approx(efficiency.get("clock.matrix", 0.85))
    assert seconds(held, shares, BIG) == pytest.approx(seconds(device, efficiency, BIG))


@given(name=GPUS, mhz=st.floats(200.0, 5000.0))
def test_a_held_clock_is_the_clock_up_to_boost(name: str, mhz: float) -> None:
    device, efficiency = gpu(name), load(name)
    held, shares = clock.settle(device, efficiency, mhz=mhz)
    assert clock.sustained_mhz(held, shares) == pytest.approx(min(mhz, device.boost_clock_mhz))
    for key, parameter in shares.parameters.items():
        if key.startswith("clock."):
            assert parameter.value == shares["clock.matrix"] <= 1.0
            assert parameter.source
        elif ".power" in key or (".burst" in key and "_us" not in key):
            assert parameter.value == 0.0  # nothing rises above a held clock
        else:
            assert parameter == efficiency.parameters[key]
    assert (held.memory_bandwidth, held.vector_flops, held.boost_clock_mhz) == (
        device.memory_bandwidth,
        device.vector_flops,
        device.boost_clock_mhz,
    )
    for dtype, rate in held.peak.items():
        assert rate <= device.peak[dtype] * device.boost_clock_mhz / device.peak_clock_mhz * (1.0 + 1e-9)


def test_peaks_follow_a_clock_above_the_one_they_are_stated_at() -> None:
    device, efficiency = gpu("h100_sxm"), load("h100_sxm")
    held, shares = clock.settle(device, efficiency, mhz=device.boost_clock_mhz)
    gain = device.boost_clock_mhz / device.peak_clock_mhz
    assert gain > 1.0
    assert shares["clock.matrix"] == 1.0
    assert held.peak["bf16"] == pytest.approx(gain * device.peak["bf16"])
    assert held.peak["fp32"] == device.peak["fp32"]  # vector units: stated at boost already


def test_variants_of_the_clock_follow_too() -> None:
    stated = {"clock.matrix": 0.6, "clock.matrix.fp8": 0.5, "clock.attention": 0.9, "gemm.loop": 0.8}
    efficiency = Efficiency(gpu="x", parameters={k: Parameter(v, "published", "here") for k, v in stated.items()})
    _, held = clock.settle(gpu("mi300x"), efficiency, mhz=1050.0)
    assert {k: held[k] for k in stated} == {
        "clock.matrix": 0.5, "clock.matrix.fp8": 0.5, "clock.attention": 0.5, "gemm.loop": 0.8,
    }  # fmt: skip
    _, capped = clock.settle(gpu("mi300x"), efficiency, watts=gpu("mi300x").tdp_watts / 8.0)
    assert [capped[k] for k in stated] == pytest.approx([0.3, 0.25, 0.45, 0.8])


@given(name=GPUS, share=st.floats(0.05, 3.0))
def test_power_is_the_cube_of_the_clock(name: str, share: float) -> None:
    device, efficiency = gpu(name), load(name)
    held, shares = clock.settle(device, efficiency, watts=share * device.tdp_watts)
    assert held == device
    if share >= 1.0:
        assert shares == efficiency
    else:
        ratio = clock.sustained_mhz(held, shares) / clock.sustained_mhz(device, efficiency)
        assert ratio**3 == pytest.approx(share)


@given(name=GPUS, mhz=st.floats(200.0, 3000.0), share=st.floats(0.1, 1.5))
def test_of_two_limits_the_lower_holds(name: str, mhz: float, share: float) -> None:
    device, efficiency = gpu(name), load(name)
    watts = share * device.tdp_watts
    both = clock.settle(device, efficiency, mhz=mhz, watts=watts)
    held = clock.sustained_mhz(*clock.settle(device, efficiency, mhz=mhz))
    capped = clock.sustained_mhz(*clock.settle(device, efficiency, watts=watts))
    expected = held if share >= 1.0 else min(held, capped)
    assert clock.sustained_mhz(*both) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_clock_and_no_power_is_refused(value: float) -> None:
    device, efficiency = gpu("mi300x"), load("mi300x")
    refusal(clock.settle, device, efficiency, mhz=value, match="gpu_clock_mhz")
    refusal(clock.settle, device, efficiency, watts=value, match="power_cap_watts")


@given(name=GPUS, low=st.floats(300.0, 2000.0), gain=st.floats(1.0, 3.0))
def test_compute_follows_the_clock_and_memory_does_not(name: str, low: float, gain: float) -> None:
    device, efficiency = gpu(name), load(name)
    slow, fast = (clock.settle(device, efficiency, mhz=mhz) for mhz in (low, low * gain))
    for op in (BIG, FLASH, COPY):
        assert seconds(*fast, op) <= seconds(*slow, op) * (1.0 + 1e-9)
    assert seconds(*fast, COPY) == seconds(*slow, COPY)


def test_settings_say_what_they_come_to() -> None:
    device, efficiency = gpu("h100_sxm"), load("h100_sxm")
    assert Settings().stated(device, efficiency) == ()
    both = Settings(gemm_backend="mine", gpu_clock_mhz=3000.0, power_cap_watts=900.0).stated(device, efficiency)
    assert both == (
        "gemm_backend=mine",
        "gpu_clock_mhz=3000 (above boost)",
        "power_cap_watts=900 (not below the TDP: no effect)",
        "sustained_clock_mhz=1980",
    )


def test_a_held_clock_does_not_rise_where_units_stand_idle() -> None:
    device, efficiency = gpu("mi300x"), load("mi300x")
    execution = Execution.of(kernels={"attention": "aiter"})
    few = Attention(name="a", batch=1, heads=4, kv_heads=4, seq_q=4096, seq_k=4096, head_dim_qk=128, head_dim_v=128)
    own = clock.sustained_mhz(device, efficiency)
    free = Simulated(device, efficiency, execution).times([few]).seconds[0]
    held = Simulated(*clock.settle(device, efficiency, mhz=own), execution).times([few]).seconds[0]
    assert held > 1.05 * free


def test_boards_of_one_chip_differ_by_their_power() -> None:
    """ROCm/FlyDSL#225: 732.6 TFLOP/s on MI350X (1,000 W) where MI355X (1,400 W) reaches 928.4; no deeper than P ∝ f."""
    small, large = ((gpu(name), load(name)) for name in ("mi350x", "mi355x"))
    ratio = clock.sustained_mhz(*small) / clock.sustained_mhz(*large)
    assert ratio == pytest.approx(732.6 / 928.4, rel=0.01)
    assert 1000 / 1400 < ratio < (1000 / 1400) ** (1 / 3)
