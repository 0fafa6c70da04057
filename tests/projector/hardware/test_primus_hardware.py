"""Primus hardware files: units, text numbers, mistakes, keys without effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.errors import InputError
from projector.hardware import catalogue, primus


def write(folder: Path, text: str) -> Path:
    path = folder / "hw.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_bandwidths_latencies_and_topology_reach_the_fabrics(tmp_path: Path) -> None:
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
    assert cluster.outer is not None
    assert cluster.inter.size == 64
    assert cluster.outer.bandwidth == cluster.inter.bandwidth
    assert cluster.inter.topology == "ring"
    assert set(found.ignored) == {"num_nodes"}
    assert "num_nodes" in cluster.sources[-1]
    assert cluster.gpu == base.gpu


def test_fewer_adapters_keep_the_rate_of_one(tmp_path: Path) -> None:
    cluster = primus.apply(write(tmp_path, "hardware_config: {nics_per_node: 2}"), catalogue.cluster("h100"))
    assert cluster.inter.bandwidth == pytest.approx(12.5e9)


@pytest.mark.parametrize("text", ["hardware_config:\n", "hardware_config: {}\nother: 1\n"])
def test_files_without_values_change_nothing(tmp_path: Path, text: str) -> None:
    base = catalogue.cluster("mi300x")
    assert primus.apply(write(tmp_path, text), base) == base


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    text = "hardware_config: {node_bandwith: 3, node_bw: fast, nics_per_node: 2.5, node_topology: torus, bw_eff: 1.7}"
    with pytest.raises(InputError) as caught:
        primus.apply(write(tmp_path, text), catalogue.cluster("mi300x"))
    keys = [problem.key.removeprefix("hardware_config.") for problem in caught.value.problems]
    assert sorted(keys) == ["bw_eff", "nics_per_node", "node_bandwith", "node_bw", "node_topology"]
    assert any("node_bw" in problem.expected for problem in caught.value.problems)


def test_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mapping"):
        primus.apply(write(tmp_path, "hardware_config: [1]"), catalogue.cluster("mi300x"))
