"""Sweeps of collectives: their table, what is not timed again, and the fabric that explains them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from projector.benchmark import collectives, fabric, processes
from projector.benchmark.collectives import Swept
from projector.benchmark.device import Device
from projector.benchmark.timings import CollectiveWanted, Seconds
from projector.cli import run as projector
from projector.collectives.model import seconds_of
from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import Efficiency, Fabric, GroupShape


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
    path = tmp_path / "cpu.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="columns"):
        collectives.add_rows(path, [_swept("all_reduce", 1024, 1e-4)], "torch")
    assert path.read_text() == "a,b\n1,2\n"


def test_one_device_has_nobody_to_talk_to(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "available", lambda _: 1)
    with pytest.raises(InputError, match="two devices"):
        collectives.timed(cpu, 1024, 0.1)


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
