"""Offload is paid in the memory of hosts, which ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from projector.errors import InputError
from projector.hardware import catalogue, host_link
from projector.hardware.types import Cluster
from projector.memory.host import OFFLOADS, host_bytes
from projector.memory.plan import plan
from projector.projection import project
from projector.search.remedies import remedies
from projector.settle.workload import settle
from tests import workloads

_H100 = catalogue.default_cluster("h100_sxm")
_ON_HOST = {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True, "overlap_cpu_optimizer_d2h_h2d": True}


def _with(capacity: float, base: Cluster = _H100) -> Cluster:
    return replace(base, host_capacity=capacity)


def test_an_optimizer_on_the_host_puts_its_state_there() -> None:
    """fp32 copies and both moments of all parameters, shared out over the eight ranks of one host: 12 bytes each."""
    load = workloads.sharded("llama3.1_8b", 8, tp=4, sequence_parallel=True, **_ON_HOST)
    resolved = settle(load, _with(1e15))
    (rank,) = plan(resolved, _H100.gpu).ranks
    assert host_bytes(resolved, _H100) == pytest.approx(12 * load.recipe.tp * rank.parameters, rel=0.02)


@pytest.mark.parametrize(("gpus", "hosts"), [(8, 1), (16, 2), (64, 8)])
def test_more_hosts_share_one_optimizer(gpus: int, hosts: int) -> None:
    one, many = (
        host_bytes(
            settle(workloads.sharded("llama3.1_8b", n, tp=4, sequence_parallel=True, **_ON_HOST), _with(1e15)), _H100
        )
        for n in (8, gpus)
    )
    assert many == pytest.approx(one / hosts, rel=0.01)


def test_a_host_holds_what_layers_leave_there() -> None:
    said = {"tp": 8, "sequence_parallel": True}
    found = [
        host_bytes(settle(workloads.sharded("llama3.1_8b", 8, cpu_offloading_num_layers=n, **said), _with(1e15)), _H100)
        for n in (4, 8, 16)
    ]
    assert 0 < found[0] < found[1] < found[2]
    assert (found[2] - found[1]) == pytest.approx(2 * (found[1] - found[0]), rel=0.05)


def test_a_plan_beyond_its_hosts_is_refused_and_a_run_is_a_doubt() -> None:
    load = workloads.sharded("llama3.1_70b", 16, tp=8, sequence_parallel=True, **_ON_HOST)
    needed = host_bytes(settle(load, _with(1e15)), _H100)
    assert settle(load, _with(1.01 * needed))
    with pytest.raises(InputError) as raised:
        settle(load, _with(0.99 * needed))
    (problem,) = raised.value.problems
    assert problem.key == "recipe.optimizer_cpu_offload"
    assert "host_memory_gib" in problem.expected
    assert any("as the run says" in text for text in settle(load, _with(0.99 * needed), published=True).assumed)


@pytest.mark.parametrize("capacity", [1e9, 0.5e12, 2e12])
def test_no_remedy_puts_more_on_a_host_than_it_has(capacity: float) -> None:
    cluster = _with(capacity)
    load = workloads.workload("llama3.1_70b", 8, tp=8, sequence_parallel=True, data_parallel_sharding="optim")
    found = remedies(load, cluster, lambda each: project(each, cluster), wanted=6).found
    assert found
    for remedy in found:
        assert host_bytes(remedy.projection.resolved, cluster) <= capacity
        assert capacity > 1e9 or not any(dict(remedy.change.fields).get(name) for name in OFFLOADS)


def test_every_cluster_knows_its_hosts_memory() -> None:
    for name in catalogue.cluster_names():
        assert 2**37 <= host_link.capacity(catalogue.cluster(name)) <= 2**43, name
