"""Reports of Primus' preflight: what they time is what the model gets back, what is slow is named, damage is refused."""

from collections.abc import Callable
from pathlib import Path

import command_line
import pytest
from asked import put, refusal
from tabled import tabled

from projector.collectives import measured_shares, preflight
from projector.collectives.nccl_tests import CollectiveTest
from projector.hardware import catalogue

CLUSTER = catalogue.cluster("mi300x")
SIZES = (64, 1024)
NODES, GPUS = 2, 8


def table(
    title: str, rows: list[tuple[int, str, float]], shown: Callable[[float, int], float], heads: list[str]
) -> str:
    """Rows of (node, ranks, share of the usual rate) as the tool prints them."""
    lines = [f"======={title}=======", f"| Leader hostname | Node | Rank | {' | '.join(heads)}|"]
    lines.append("|----------|----------|----------" + "|----------" * len(heads) + "|")
    for node, ranks, share in rows:
        values = " | ".join(f"{shown(share, place):<6.2f}" for place in range(len(heads)))
        lines.append(f"| host{node} | {node} | {ranks} | {values}|")
    return "\n".join((*lines, "", ""))


def seconds(kind: str, hosts: int, place: int) -> float:
    swept = CollectiveTest("", kind, hosts * GPUS, hosts, "", "", False, ())
    return measured_shares.modelled(swept, CLUSTER, SIZES[place] * 2.0**20)


def report() -> str:
    """A report of two nodes whose collectives take what the model says; the second node and rank 13 are slow."""
    heads = [f"{size}MB" for size in SIZES]
    made = ["# Square Gemm Perf\n\n"]
    ranks = [(rank // GPUS, str(rank), 0.8 if rank == 13 else 1.0) for rank in range(NODES * GPUS)]
    made.append(table("Square GEMM TFLOPS ", ranks, lambda share, _: 600 * share, ["8192x8192x8192"]))
    for name, kind in (("allreduce", "all_reduce"), ("alltoall", "all_to_all")):
        groups = [(0, "0-7", 1.0), (0, "8-15", 1.0), (1, "16-23", 0.7)]
        us = lambda share, place, kind=kind: 1e6 * seconds(kind, 1, place) / share  # noqa: E731
        made.append(table(f"IntraNodeComm - {name}-8gpu (us)", groups, us, heads))
        between = lambda share, place, kind=kind: 1e6 * seconds(kind, 2, place)  # noqa: E731
        made.append(table(f"InterNodeComm - {name}-2nodes (us)", [(0, "0-15", 1.0)], between, heads))
    return "".join(made)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return put(tmp_path / "preflight_report_perf.md", report())


def test_what_a_report_times_is_what_the_model_gets_back(path: Path) -> None:
    tests, behind = preflight.read([path])
    assert {(each.kind, each.ranks, each.hosts) for each in tests} == {
        (kind, hosts * GPUS, hosts) for kind in ("all_reduce", "all_to_all") for hosts in (1, 2)
    }
    for each in tests:
        for place, (nbytes, took) in enumerate(each.seconds):
            assert nbytes == SIZES[place] * 2**20
            assert took == pytest.approx(seconds(each.kind, each.hosts, place), rel=1e-3)
    for each in measured_shares.told(tests, CLUSTER).told:
        assert each.share == pytest.approx(each.before, rel=0.02)
    slow = {(each.what, each.ranks): each.share for each in behind}
    assert slow == {
        ("products", (13,)): pytest.approx(0.8),
        ("allreduce of 8 ranks", tuple(range(16, 24))): pytest.approx(0.7, rel=1e-3),
        ("alltoall of 8 ranks", tuple(range(16, 24))): pytest.approx(0.7, rel=1e-3),
    }


def test_the_command_writes_a_cluster_and_says_what_a_slow_rank_costs(path: Path, tmp_path: Path) -> None:
    words = ["network", str(path), "--cluster", "mi300x"]
    assert "--slow-rank 13=1.25" in command_line.told("projector", *words, "--out", tmp_path / "mine.yaml")
    assert catalogue.cluster(str(tmp_path / "mine.yaml")).gpu.name == "mi300x"
    assert len(command_line.document("projector", *words)["behind"]) == 3


@pytest.mark.parametrize(("old", "new", "found"), tabled("refusals", "preflight_reports"))
def test_a_damaged_report_is_refused(path: Path, old: str, new: str, found: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))
    refusal(preflight.read, [path], match=found)
