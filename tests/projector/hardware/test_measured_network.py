"""A cluster file that states what nccl-tests measured between its nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.kernels.collectives_score import projected, strange
from harness.kernels.collectives_table import read
from projector.collectives.model import seconds_of
from projector.collectives.placement import GroupShape
from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import Cluster

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
    path = folder / "mine.yaml"
    path.write_text(_FILE.format(more=more))
    return catalogue.cluster(str(path))


def _busbw(cluster: Cluster, gpus: int, per_node: int) -> float:
    """GB/s, as nccl-tests count the bus bandwidth of an all-reduce."""
    took = float(seconds_of("all_reduce", _LONGEST, GroupShape(gpus, per_node), cluster))
    return _LONGEST / took * 2 * (gpus - 1) / gpus / 1e9


@pytest.mark.parametrize("stated", [150.0, 250.0, 350.0])
def test_what_was_measured_is_what_is_projected(tmp_path: Path, stated: float) -> None:
    made = _cluster(tmp_path, f", busbw_gbs: {stated}, busbw_one_rank_gbs: {stated / 10}")
    assert _busbw(made, 32, 8) == pytest.approx(stated, rel=0.05)
    assert _busbw(made, 4, 1) == pytest.approx(stated / 10, rel=0.05)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "send_recv"])
def test_a_faster_network_is_never_slower(tmp_path: Path, kind: str) -> None:
    rates = (100, 200, 300, 400)
    made = [_cluster(tmp_path, f", busbw_gbs: {rate}") for rate in rates]
    took = [float(seconds_of(kind, 2.0**28, GroupShape(32, 8), each)) for each in made]
    assert took == sorted(took, reverse=True)
    assert took[-1] < took[0]


def test_a_rate_above_the_lines_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _cluster(tmp_path, ", busbw_gbs: 401, busbw_one_rank_gbs: 51")
    assert [problem.key for problem in caught.value.problems] == ["inter.busbw_gbs", "inter.busbw_one_rank_gbs"]


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
