"""A device that nobody measured: whose constants it takes, and the clock that its power sustains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.hardware.catalogue import cluster, gpu, gpu_names
from projector.hardware.efficiency import WATTS, load, of, powered, relative
from projector.hardware.efficiency_file import shipped
from projector.hardware.types import Gpu
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Gemm
from projector.parameter import Parameter
from projector.settle.workload import settle
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

BIG = Gemm(name="big", m=16384, n=16384, k=16384)


def stranger(name: str, **other: object) -> Gpu:
    return replace(gpu(name), name="stranger", **other)


def seconds(device: Gpu) -> float:
    return float(Simulated(device, of(device), Execution()).times([BIG]).seconds[0])


@given(factor=st.floats(0.2, 5.0), share=st.floats(0.3, 1.0))
def test_the_clock_goes_with_the_cube_root_of_power(factor: float, share: float) -> None:
    stated = {"clock.matrix": Parameter(share), "gemm.loop": Parameter(0.9), WATTS: Parameter(0.5)}
    found = powered(stated, 0.5 * factor)
    assert found["clock.matrix"] == pytest.approx(min(1.0, share * factor ** (1 / 3)), rel=1e-3)
    assert found["gemm.loop"] == 0.9
    assert powered(stated, 0.0) is stated  # no 16-bit peak
    assert powered({"clock.matrix": Parameter(share)}, 3.0)["clock.matrix"] == share


def test_clocks_that_were_found_apart_follow_it() -> None:
    """Each was stated from figures of its own board; the architecture's share as it stands is farther off."""
    far, near = [], []
    for name in ("mi325x", "mi308x", "mi350x", "h100_pcie", "a100_pcie_80gb", "h100_sxm_96gb_500w"):
        own = load(name)["clock.matrix"]
        far.append(abs(shipped(gpu(name).arch)["clock.matrix"] / own - 1.0))
        near.append(abs(of(stranger(name))["clock.matrix"] / own - 1.0))
        assert near[-1] < 0.15, name
        assert near[-1] < far[-1], name
    assert sum(near) < 0.5 * sum(far)


def test_more_power_is_never_slower_and_a_file_of_its_own_stands() -> None:
    times = [seconds(stranger("h100_sxm", tdp_watts=watts)) for watts in (300.0, 500.0, 700.0, 1500.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.2 * times[2]
    assert seconds(replace(gpu("h100_pcie"), tdp_watts=700.0)) == pytest.approx(seconds(gpu("h100_pcie")))


def test_an_unknown_architecture_takes_the_nearest_of_its_vendor() -> None:
    for name in gpu_names():
        device = gpu(name)
        found = relative(device, device.arch)
        assert found != device.arch
        assert not found or {o.vendor for o in map(gpu, gpu_names()) if o.arch == found} == {device.vendor}
    assert relative(gpu("cpu")) == ""
    for like, arch in (("gb300", "blackwell_ultra"), ("mi355x", "gfx950"), ("l40s", "ampere"), ("h200", "hopper")):
        device = stranger(like, arch="not out yet")
        assert relative(device) == arch
        assert of(device)["gemm.perimeter"] == of(stranger(like))["gemm.perimeter"] or like == "l40s"
    assert of(gpu("v100_sxm_32gb"))["clock.matrix"] == 0.85  # Volta stands for itself
    assert of(stranger("mi355x", arch="x", peak={"fp32": 1e14}))["clock.matrix"] == load("mi355x")["clock.matrix"]


def test_a_projection_says_whose_kernels_stand_in() -> None:
    recipe = Recipe(micro_batch_size=1, global_batch_size=8, seq_length=4096)
    run = Workload(model=zoo.load("llama3_8b"), recipe=recipe, gpus=8)
    known = cluster("mi355x")
    assert settle(run, known).assumed == settle(run, replace(known, gpu=stranger("mi355x"))).assumed
    borrowed = settle(run, replace(known, gpu=stranger("mi355x", arch="gfx1250"))).assumed
    assert "kernels of gfx950 (nothing is known of gfx1250)" in borrowed
