"""Sweeps of collectives: their table, what is not timed again, and the fabric that explains them."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asked import put, refusal

from projector.benchmark import collectives, fabric, processes
from projector.benchmark.collectives import Swept
from projector.benchmark.device import Device
from projector.benchmark.launcher import Launched
from projector.benchmark.prices import Price, placed, possible
from projector.benchmark.timings import CollectiveWanted, Seconds
from projector.cli import run as projector
from projector.collectives.model import Pricing, seconds_of
from projector.collectives.placement import groups
from projector.hardware import catalogue, efficiency
from projector.hardware.types import Efficiency, Fabric, GroupShape
from projector.operators.types import Collective
from projector.projection import project
from projector.workload import zoo
from tests.workloads import workload


def _swept(kind: str, nbytes: int, seconds: float, ranks: int = 2) -> Swept:
    return Swept(CollectiveWanted(kind, "world", ranks, nbytes, 4), Seconds(seconds, 0.1, 7))


def test_sizes_grow_fourfold() -> None:
    assert collectives.sizes(100_000) == (1024, 4096, 16384, 65536)


def test_rows_are_added_and_known_after(tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    assert collectives.known(path) == frozenset()
    collectives.add_rows(path, [_swept("all_reduce", 1024, 1e-4)], "torch")
    collectives.add_rows(path, [_swept("all_gather", 4096, 2e-4)], "torch")
    with path.open() as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == collectives.COLUMNS
    assert [(row["kind"], row["time_us"]) for row in rows] == [("all_reduce", "100"), ("all_gather", "200")]
    assert collectives.known(path) == {("all_reduce", 2, 1, 1024), ("all_gather", 2, 1, 4096)}
    assert list(tmp_path.iterdir()) == [path]


def test_another_table_is_left_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "cpu.csv", "a,b\n1,2\n")
    refusal(collectives.add_rows, path, [_swept("all_reduce", 1024, 1e-4)], "torch", match="columns")
    assert path.read_text() == "a,b\n1,2\n"


def test_one_device_has_nobody_to_talk_to(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "available", lambda _: 1)
    refusal(collectives.timed, cpu, 1024, 0.1, match="two devices")


def test_a_fabric_is_found_from_the_times_that_it_gives() -> None:
    """Times by the models on a known fabric lead back to it, as near as the search is fine."""
    gpu, shape = catalogue.gpu("cpu"), GroupShape(4, 4)
    plain = catalogue.cluster("cpu")
    inside = Fabric(name="", topology="switch", size=4, bandwidth=3e9, latency=2e-5)
    cluster = replace(plain, gpus_per_node=4, gpus_per_host=4, intra=inside)
    swept = [
        _swept(kind, n, float(seconds_of(kind, np.array([float(n)]), shape, cluster)[0]), 4)
        for kind in ("all_reduce", "all_gather", "all_to_all")
        for n in collectives.sizes(2**24)
    ]
    found = fabric.fitted(swept, gpu)
    assert found.ranks == 4
    assert found.error < 0.2
    assert found.bandwidth == pytest.approx(3e9, rel=0.35)
    assert found.latency == pytest.approx(2e-5, rel=0.35)


def test_kinds_with_a_rate_and_a_cost_of_their_own_keep_them() -> None:
    """Times a + b·n with another a and b for each kind come back within a quarter from the models with what was found."""
    gpu, nbytes = catalogue.gpu("cpu"), np.array([float(n) for n in collectives.sizes(2**24)])
    lines = {"all_reduce": (3e-3, 1e-9), "all_gather": (1e-3, 2e-9), "send_recv": (5e-4, 4e-10)}
    swept = [_swept(k, int(n), a + b * n, 2) for k, (a, b) in lines.items() for n in nbytes]
    found = fabric.fitted(swept, gpu)
    inside = Fabric(name="", topology="switch", size=2, bandwidth=found.bandwidth, latency=found.latency)
    cluster = replace(catalogue.cluster("cpu"), gpus_per_node=2, gpus_per_host=2, intra=inside)
    ours = Efficiency(gpu=gpu.name, parameters=found.parameters)
    for kind, (a, b) in lines.items():
        assert seconds_of(kind, nbytes, GroupShape(2, 2), cluster, ours) == pytest.approx(a + b * nbytes, rel=0.25)


@pytest.mark.slow
def test_two_processes_sweep_and_do_not_repeat(cpu: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if processes.available(cpu) < 2:
        pytest.skip("needs two cores")
    flags = ["record", "--kinds", "collectives", "--largest-message", "4096", "--device", "cpu", "--out", str(tmp_path)]
    assert projector(flags) == 0
    ranks = processes.available(cpu)
    assert "10 timed, 0 were there" in capsys.readouterr().out
    assert {size for _, size, *_ in collectives.known(tmp_path / "cpu.csv")} == {2, ranks}
    assert projector(flags) == 0
    assert "0 timed, 10 were there" in capsys.readouterr().out


# A collective that was timed tells of others as far as its ranks lay on nodes as theirs do.

H100 = catalogue.cluster("h100")
SUM = Collective(name="", kind="all_reduce", group="dp", bytes=1e9)
HOP = Collective(name="", kind="send_recv", group="pp_beyond", bytes=1e8)
TWO_NODES = Launched("srun", 0, 16, 0, 8, 2)


def _resolved(gpus: int) -> Any:
    work = workload(zoo.load("llama3_8b", num_layers=4), gpus, tp=8, pp=2, seq_length=1024)
    return project(work, H100).resolved


def _price(gpus: int, timed: Mapping[CollectiveWanted, float]) -> Price:
    found: Any = SimpleNamespace(collectives=tuple((each, Seconds(value)) for each, value in timed.items()))
    asked: Any = SimpleNamespace(sharded=False, ranks=16)
    return Price(_resolved(gpus), H100, found, asked)


def _wanted(op: Collective) -> CollectiveWanted:
    resolved = _resolved(32)
    found = possible(op, groups(resolved.workload.recipe, 32, H100), 16, resolved)
    assert found is not None
    return found


def test_a_sum_over_two_nodes_tells_of_more_nodes() -> None:
    """What two nodes took three times longer for than the models say, thirty-two do, too."""
    plain, each = _price(32, {})(SUM), placed(_wanted(SUM), TWO_NODES, tp=8)
    assert (each.size, each.per_node) == (2, 1)
    timed = {each: 3.0 * plain}
    assert _price(32, timed)(SUM) == pytest.approx(3.0 * plain)
    for gpus in (64, 512):
        assert _price(gpus, timed)(SUM) == pytest.approx(3.0 * _price(gpus, {})(SUM)), gpus


def test_what_one_node_took_is_not_taken_for_two() -> None:
    for op in (SUM, HOP):
        each = placed(_wanted(op), None, tp=8)
        assert each.per_node == 2
        inside = Pricing({each.group: GroupShape(2, 2)}, H100, efficiency.of(H100.gpu))
        said = inside.seconds(Collective(name="", kind=op.kind, group=each.group, bytes=float(each.bytes)))
        between = _price(32, {})(op)
        assert between > 2.0 * said
        assert _price(32, {each: said})(op) == pytest.approx(between)
        assert _price(32, {each: 2.0 * said})(op) == pytest.approx(2.0 * between)
    near = Collective(name="", kind="send_recv", group="pp_node", bytes=HOP.bytes)
    assert _price(32, {placed(_wanted(near), None, tp=8): 7.0})(near) == 7.0


def test_where_ranks_lie_follows_their_order() -> None:
    each = CollectiveWanted("all_reduce", "dp", 8, 1024, 4)
    assert [placed(each, TWO_NODES, tp).per_node for tp in (2, 4)] == [4, 8]  # of all, and of neighbours
    assert placed(CollectiveWanted("all_reduce", "world", 16, 1024, 4), TWO_NODES, 1).per_node == 8
    assert placed(each, None, 1) == each
