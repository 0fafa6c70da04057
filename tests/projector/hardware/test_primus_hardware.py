"""Primus hardware files: units, text numbers, mistakes, keys without effect."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line
import pytest
from asked import put, refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.kernels.collectives_score import projected, strange
from harness.kernels.collectives_table import read
from projector import project
from projector.__main__ import main
from projector.collectives.model import seconds_of
from projector.collectives.placement import GroupShape
from projector.hardware import catalogue, primus
from projector.hardware.catalogue import cluster, gpu, gpu_names
from projector.hardware.efficiency import WATTS, load, of, powered, relative
from projector.hardware.efficiency_file import shipped
from projector.hardware.types import Cluster, Gpu
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Gemm
from projector.parameter import Parameter
from projector.search.sweep import grid, points
from projector.settle.workload import settle
from tests.workloads import workload


def write(folder: Path, text: str) -> Path:
    return put(folder / "hw.yaml", text)


def test_bandwidths_latencies_and_topology_reach_the_fabrics(tmp_path) -> None:
    text = """
hardware_config:
  node_bw: "537.6"
  pod_bw: 5e1
  node_lat: 0.45
  pod_lat: 2.0
  node_topology: switch
  nics_per_node: 4
  vector_flops: 3.2e12
  pod_size: 64
  num_nodes: 8
  switch_topology: "false"
  bw_eff: 0.7
  p2p_bw_eff: 0.8
  rccl_overhead_us: 200
"""
    base = catalogue.cluster("mi355x")
    found = primus.read(write(tmp_path, text), base)
    cluster = found.cluster
    assert cluster.intra.bandwidth == pytest.approx(537.6e9)
    assert cluster.intra.latency == pytest.approx(0.45e-6)
    assert cluster.intra.topology == "switch"
    assert cluster.inter.bandwidth == pytest.approx(25e9)
    assert cluster.inter.nics_per_node == 4
    assert cluster.overrides["link.intra"] == 0.7
    assert cluster.overrides["link.send_recv.inter"] == 0.8
    assert cluster.overrides["overhead_us.all_reduce"] == 200
    assert cluster.overrides["reduction.flops"] == 3.2e12
    assert cluster.inter.size == 64
    assert cluster.outer.bandwidth == cluster.inter.bandwidth
    assert cluster.inter.topology == "ring"
    assert set(found.ignored) == {"num_nodes"}
    assert "num_nodes" in cluster.sources[-1]
    assert cluster.gpu == base.gpu


def test_fewer_adapters_keep_the_rate_of_one(tmp_path) -> None:
    cluster = primus.read(write(tmp_path, "hardware_config: {nics_per_node: 2}"), catalogue.cluster("h100")).cluster
    assert cluster.inter.bandwidth == pytest.approx(12.5e9)


@pytest.mark.parametrize("text", ["hardware_config:\n", "hardware_config: {}\nother: 1\n"])
def test_files_without_values_change_nothing(tmp_path, text: str) -> None:
    base = catalogue.cluster("mi300x")
    assert primus.read(write(tmp_path, text), base).cluster == base


def test_all_mistakes_at_once(tmp_path) -> None:
    text = "hardware_config: {node_bandwith: 3, node_bw: fast, nics_per_node: 2.5, node_topology: torus, bw_eff: 1.7}"
    caught = refusal(primus.read, write(tmp_path, text), catalogue.cluster("mi300x"))
    keys = [problem.key.removeprefix("hardware_config.") for problem in caught.problems]
    assert sorted(keys) == ["bw_eff", "nics_per_node", "node_bandwith", "node_bw", "node_topology"]
    assert any("node_bw" in problem.expected for problem in caught.problems)


def test_a_list_is_refused(tmp_path) -> None:
    refusal(primus.read, write(tmp_path, "hardware_config: [1]"), catalogue.cluster("mi300x"), match="mapping")


# Systems of transformer-perf-estimates: read in their own words, refused in one error, and as fast as they say.

B200 = tabled("published", "tpe_b200")
CASE = ("--model", "llama3.1_8b", "--gpus", "64", "--tp", "2", "--mbs", "1", "--gbs", "256", "--seq-length", "4096")


def described(folder: Path, **changed: Any) -> str:
    return str(put(folder / "mine.json", json.dumps({**B200, **changed})))


def step(cluster: Cluster) -> float:
    graphed = {"cuda_graph_scope": ("full_iteration",)}  # a larger NVLink domain has other hosts, which are slower
    load = workload("llama3.1_8b", 64, global_batch_size=256, micro_batch_size=4, tp=8, **graphed)
    return project(load, cluster).step_seconds


def test_its_figures_are_ours(tmp_path) -> None:
    found = catalogue.cluster(described(tmp_path, nic_factor=2))
    assert found.gpu.peak_of("bf16") == pytest.approx(2.5e15)
    assert (found.gpu.memory_bandwidth, found.gpu.memory_bytes) == (8e12, 192e9)
    assert (found.intra.bandwidth, found.intra.size, found.intra.latency) == (9e11, 8, 2.5e-6)
    assert (found.inter.bandwidth, found.inter.latency, found.gpus_per_node, found.gpus_per_host) == (2e11, 5e-6, 8, 8)
    assert catalogue.gpu(described(tmp_path)).vendor == "nvidia"


def test_a_better_system_is_never_slower(tmp_path) -> None:
    usual = step(catalogue.cluster(described(tmp_path)))
    for key, value in (
        ("matrix_flops_fp16", 5000),
        ("hbm_bandwidth", 16000),
        ("ib_bandwidth", 200),
        ("nvlink_size", 64),
    ):
        assert step(catalogue.cluster(described(tmp_path, **{key: value}))) <= usual * (1 + 1e-9)
    assert step(catalogue.cluster(described(tmp_path, nvlink_size=1))) > usual


def test_it_is_taken_wherever_a_cluster_is(tmp_path) -> None:
    file = described(tmp_path)
    for flag in ("--gpu", "--cluster"):
        said = command_line.document("projector", "performance", *CASE, flag, file)
        assert said["projections"]["simulate"]["step_seconds"] > 0
    (tmp_path / "grid.yaml").write_text(
        "{sweep: 1, model: llama3.1_8b, system: mine.json, gpus: 8, "
        "recipe: {micro_batch_size: 1, global_batch_size: 16, seq_length: 4096}}"
    )
    made = grid.read(tmp_path / "grid.yaml")
    (row,) = points.rows(list(made.points()))
    assert row["status"] == "ok"
    before = grid.key_of(next(made.points()))
    described(tmp_path, hbm_bandwidth=4000)
    grid._FILES.clear()
    assert grid.key_of(next(made.points())) != before


def test_a_wrong_system_is_one_clear_error(tmp_path, capsys) -> None:
    wrong = described(tmp_path, hbm_bandwidth=-1, colour="red", nvlink_size=7.5)
    assert main(["performance", *CASE, "--cluster", wrong]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 3)
    for key in ("hbm_bandwidth", "colour", "nvlink_size"):
        assert f"{wrong}: {key}" in said.err


# A cluster file that states what nccl-tests measured between its nodes.

_FILE = """
name: mine
title: "Eight H100, 400G a GPU"
gpu: h100_sxm
gpus_per_node: 8
gpus_per_host: 8
intra: {{name: NVLink, topology: switch, size: 8, bandwidth_gbs: 450, latency_us: 0.6}}
inter: {{name: Ethernet, topology: switch, bandwidth_gbs: 50, latency_us: 4.0{more}}}
sources:
  - {{title: "its data sheet", kind: datasheet, values: [intra.bandwidth_gbs, inter.bandwidth_gbs]}}
  - {{title: "as its relatives", kind: assumed, values: [intra.latency_us, inter.latency_us]}}
"""
_LONGEST = 8 * 2.0**30


def _cluster(folder: Path, more: str = "") -> Cluster:
    return catalogue.cluster(str(put(folder / "mine.yaml", _FILE.format(more=more))))


def _busbw(cluster: Cluster, gpus: int, per_node: int) -> float:
    """GB/s, as nccl-tests count the bus bandwidth of an all-reduce."""
    took = float(seconds_of("all_reduce", _LONGEST, GroupShape(gpus, per_node), cluster))
    return _LONGEST / took * 2 * (gpus - 1) / gpus / 1e9


@pytest.mark.parametrize("stated", [150.0, 250.0, 350.0])
def test_what_was_measured_is_what_is_projected(tmp_path, stated: float) -> None:
    made = _cluster(tmp_path, f", busbw_gbs: {stated}, busbw_one_rank_gbs: {stated / 10}")
    assert _busbw(made, 32, 8) == pytest.approx(stated, rel=0.05)
    assert _busbw(made, 4, 1) == pytest.approx(stated / 10, rel=0.05)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "send_recv"])
def test_a_faster_network_is_never_slower(tmp_path, kind: str) -> None:
    rates = (100, 200, 300, 400)
    made = [_cluster(tmp_path, f", busbw_gbs: {rate}") for rate in rates]
    took = [float(seconds_of(kind, 2.0**28, GroupShape(32, 8), each)) for each in made]
    assert took == sorted(took, reverse=True)
    assert took[-1] < took[0]


def test_a_rate_above_the_lines_is_a_mistake(tmp_path) -> None:
    caught = refusal(_cluster, tmp_path, ", busbw_gbs: 401, busbw_one_rank_gbs: 51")
    assert [problem.key for problem in caught.problems] == ["inter.busbw_gbs", "inter.busbw_one_rank_gbs"]


def test_two_figures_of_two_nodes_hold_on_a_hundred_and_twenty_eight(root: Path) -> None:
    """Slingshot as a network that no table covers, but for what two of its nodes measured."""
    perlmutter = catalogue.cluster("a100_sxm_40gb_slingshot4")
    large = [r for r in read(root / "measured" / "collectives") if r.cluster == perlmutter.name and r.bytes >= 2**20]
    bare = strange(perlmutter)

    def busbw(gpus: int) -> float:
        first = max((r for r in large if (r.kind, r.nodes, r.gpus) == ("all_reduce", 2, gpus)), key=lambda r: r.bytes)
        return first.bytes / first.time_us * 1e-3 * 2 * (gpus - 1) / gpus

    told = {"link.inter": 1.02 * busbw(8) / 100, "link.inter.alone": 1.02 * busbw(2) / 25}
    both = replace(bare, overrides={**bare.overrides, **told})
    beyond = [r for r in large if r.nodes > 2]
    errors = [sorted(abs(projected(r, each) / r.time_us * 1e6 - 1) for r in beyond) for each in (bare, both)]
    before, after = (each[len(each) // 2] for each in errors)
    assert before > 0.3
    assert after < 0.12


# A device that nobody measured: whose constants it takes, and the clock that its power sustains.

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
    run = workload("llama3_8b", 8, global_batch_size=8)
    known = cluster("mi355x")
    assert settle(run, known).assumed == settle(run, replace(known, gpu=stranger("mi355x"))).assumed
    borrowed = settle(run, replace(known, gpu=stranger("mi355x", arch="gfx1250"))).assumed
    assert "kernels of gfx950 (nothing is known of gfx1250)" in borrowed


@pytest.mark.parametrize("clock", ["clock.matrix", "clock.attention"])
def test_a_gpu_that_shares_its_power_with_a_cpu_is_slower_than_one_that_has_it_alone(clock: str) -> None:
    """It holds the clock of its measured products, and no more than the cube root of the power that is left would allow."""
    shared, alone = (of(gpu(name))[clock] for name in ("gh200", "h100_sxm"))
    device, fp64_flops_a_clock = gpu("gh200"), 256
    measured = 42.7e12 / (0.98 * device.compute_units * fp64_flops_a_clock) / (device.peak_clock_mhz * 1e6)
    assert shared / alone == pytest.approx(measured / of(gpu("h100_sxm"))["clock.matrix"], rel=0.001)
    assert shared < alone * (570 / 700) ** (1 / 3)
