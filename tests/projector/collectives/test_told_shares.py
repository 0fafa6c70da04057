"""The model turned around: what a cluster reaches is found again in its times, and in the file made of them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import printed
import pytest

from projector.cli import run
from projector.collectives.model import seconds_of
from projector.collectives.nccl_tests import Swept
from projector.collectives.told_shares import told
from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import Cluster, GroupShape

LONG = 2.0**33
#: What a cluster may reach, and the tests that tell it: (constant, share, kind, hosts, ranks of each).
SHARES = (
    ("link.nvls", 0.61, "all_reduce", 1, 8),
    ("link.intra.all_gather", 0.71, "all_gather", 1, 8),
    ("link.intra.reduce_scatter", 0.72, "reduce_scatter", 1, 8),
    ("link.all_to_all.intra", 0.5, "all_to_all", 1, 8),
    ("link.send_recv.intra", 0.77, "send_recv", 1, 2),
    ("link.inter", 0.66, "all_reduce", 4, 8),
    ("link.inter.alone", 0.52, "all_reduce", 4, 1),
    ("link.inter.all_gather", 0.68, "all_gather", 4, 8),
    ("link.inter.reduce_scatter", 0.69, "reduce_scatter", 4, 8),
    ("link.all_to_all.inter", 0.55, "all_to_all", 4, 8),
    ("link.send_recv.inter", 0.81, "send_recv", 2, 1),
)


def swept(kind: str, hosts: int, each: int, cluster: Cluster, algorithm: str = "", slower: float = 1.0) -> Swept:
    shape = GroupShape(hosts * each, each)
    times = [float(seconds_of(kind, size, shape, cluster, algorithm=algorithm)) * slower for size in (2.0**22, LONG)]
    return Swept(
        "here:1", kind, hosts * each, hosts, printed.H100, "", False, tuple(zip((2.0**22, LONG), times, strict=True))
    )


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return catalogue.cluster("h100_sxm")


@pytest.fixture(scope="module")
def other(cluster: Cluster) -> Cluster:
    return replace(cluster, overrides={name: share for name, share, *_ in SHARES})


def test_every_share_is_found_again(cluster: Cluster, other: Cluster) -> None:
    found = told([swept(*test, other) for _, _, *test in reversed(SHARES)], cluster)
    assert {each.name: each.share for each in found.told} == pytest.approx({name: share for name, share, *_ in SHARES})
    assert dict(found.cluster.overrides) == pytest.approx(dict(other.overrides))
    assert not found.notes


@pytest.mark.parametrize("case", SHARES, ids=lambda case: case[0])
def test_one_test_tells_its_own_share_and_gives_its_time_back(cluster: Cluster, case: tuple) -> None:
    name, _, kind, hosts, each = case
    test = swept(kind, hosts, each, cluster, slower=1.3)
    found = told([test], cluster)
    assert [share.name for share in found.told] == [name]
    assert found.told[0].share < found.told[0].before
    again = float(seconds_of(kind, LONG, GroupShape(hosts * each, each), found.cluster))
    assert again == pytest.approx(test.longest[1], rel=1e-6)


def test_the_longest_message_tells_then_the_most_nodes(cluster: Cluster) -> None:
    short = replace(swept("all_reduce", 8, 8, cluster, slower=1.2), seconds=((2.0**30, 1.0),))
    few, many = (swept("all_reduce", hosts, 8, cluster, slower=slower) for hosts, slower in ((4, 1.1), (8, 1.3)))
    for order in ((short, few, many), (many, few, short)):
        (share,) = told(order, cluster).told
        assert share.swept is many


def test_a_switch_that_reduces_nothing_is_found_out(cluster: Cluster) -> None:
    rings = swept("all_reduce", 1, 8, cluster, "ring", slower=1.05)
    found = told([rings], cluster)
    assert [each.name for each in found.told] == ["link.intra"]
    assert not found.cluster.intra.in_switch_reduction
    assert "no faster than rings" in found.notes[0]


def test_two_nodes_tell_of_the_network_only_what_it_binds(cluster: Cluster) -> None:
    """Halves exchanged between two nodes: links inside bind them, and a network is not blamed for what those lose. On a slow
    network the network binds. What is no faster than rings over the whole line went around rings."""
    quick = told([swept("all_reduce", 1, 8, cluster), swept("all_reduce", 2, 8, cluster, slower=1.07)], cluster)
    assert [each.name for each in quick.told] == ["link.nvls"]
    assert "link.inter" in quick.notes[0]
    thin = replace(cluster, inter=replace(cluster.inter, bandwidth=20e9))
    both = (swept("all_reduce", 1, 8, thin), swept("all_reduce", 2, 8, thin, slower=1.2))
    assert {each.name: each.share for each in told(both, thin).told}["link.inter"] == pytest.approx(
        0.96 / 1.2, rel=0.05
    )
    rings = told([swept("all_reduce", 2, 8, cluster, "ring", slower=1.1)], cluster)
    assert not rings.cluster.intra.in_switch_reduction
    assert [(each.name, each.share) for each in rings.told] == [
        ("link.inter", pytest.approx(0.83 * 450 / 400 / 1.1, rel=0.02))
    ]


def test_an_algorithm_that_was_forced(cluster: Cluster) -> None:
    """Forced rings tell of links, and a forced tree, which no node runs, of nothing else than what ran instead."""
    rings = replace(swept("all_reduce", 1, 8, cluster, "ring", slower=1.1), algorithm="ring")
    assert [each.name for each in told([rings], cluster).told] == ["link.intra"]
    tree = replace(swept("all_gather", 1, 8, cluster, slower=1.1), algorithm="tree")
    assert [each.name for each in told([tree], cluster).told] == ["link.intra.all_gather"]


def test_what_another_line_binds_tells_nothing(cluster: Cluster) -> None:
    fast = replace(cluster, inter=replace(cluster.inter, bandwidth=4e12))
    found = told([swept("all_reduce", 4, 8, fast)], fast)
    assert not found.told
    assert "link.inter" in found.notes[0]


def test_short_messages_tell_nothing(cluster: Cluster) -> None:
    short = replace(swept("all_reduce", 1, 8, cluster), seconds=((8192.0, 2e-5),))
    assert "latency alone" in told([short], cluster).notes[0]


def test_lines_that_cannot_be_and_hosts_that_do_not_fit(cluster: Cluster) -> None:
    wrong = [swept(kind, 4, 8, cluster, slower=0.3) for kind in ("all_gather", "reduce_scatter")]
    with pytest.raises(InputError) as caught:
        told(wrong, cluster)
    assert len(caught.value.problems) == 2
    assert "bandwidth_gbs" in str(caught.value)
    with pytest.raises(InputError, match="GPUs of a host"):
        told([replace(wrong[0], hosts=2)], cluster)


def test_the_file_gives_back_what_was_printed(tmp_path, cluster: Cluster, other: Cluster, capsys) -> None:
    """Law of the command: printed bandwidths, to a cluster file, to the same bandwidths."""
    tests = [swept(*test, other) for _, _, *test in SHARES]
    (tmp_path / "out.txt").write_text(
        "\n".join(printed.output(each.kind, each.hosts, each.ranks // each.hosts, each.seconds) for each in tests)
    )
    assert run(["network", str(tmp_path / "out.txt"), "--out", str(tmp_path / "mine.yaml")]) == 0
    assert "link.inter.alone" in capsys.readouterr().out
    made = catalogue.cluster(str(tmp_path / "mine.yaml"))
    assert made.name == "mine"
    assert dict(made.overrides) == pytest.approx(dict(other.overrides), rel=2e-5)
    assert replace(made, name="", overrides={}, sources=()) == replace(cluster, name="", overrides={}, sources=())
    for each in tests:
        shape = GroupShape(each.ranks, each.ranks // each.hosts)
        for nbytes, seconds in each.seconds:
            assert float(seconds_of(each.kind, nbytes, shape, made)) == pytest.approx(seconds, rel=1e-4)
    assert run(["network", str(tmp_path / "out.txt"), "--cluster", str(tmp_path / "mine.yaml"), "--json"]) == 0


def test_a_gpu_of_ones_own_stays_found_from_another_folder(tmp_path, cluster: Cluster) -> None:
    gpu = Path(catalogue.__file__).parent / "gpus" / "h100_sxm.yaml"
    base = Path(catalogue.__file__).parent / "clusters" / "h100_sxm.yaml"
    (tmp_path / "gpu.yaml").write_text(gpu.read_text().replace("name: h100_sxm", "name: ours", 1))
    (tmp_path / "base.yaml").write_text(base.read_text().replace("gpu: h100_sxm", "gpu: gpu.yaml"))
    (tmp_path / "out.txt").write_text(printed.output("all_gather", 1, 8, swept("all_gather", 1, 8, cluster).seconds))
    out = tmp_path / "elsewhere" / "mine.yaml"
    assert run(["network", str(tmp_path / "out.txt"), "--cluster", str(tmp_path / "base.yaml"), "--out", str(out)]) == 0
    assert catalogue.cluster(str(out)).gpu.name == "ours"


def test_bad_input_is_one_line_each(tmp_path, capsys) -> None:
    (tmp_path / "a.txt").write_text(printed.output("all_reduce", 1, 8, [(2.0**20, 1e-4)], device="NVIDIA Nothing"))
    assert run(["network", str(tmp_path / "a.txt")]) == 2
    assert "--cluster" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(["network", str(tmp_path / "a.txt"), "--on", "8"])
    assert "HOSTSxGPUS" in capsys.readouterr().err
    (tmp_path / "b.txt").write_text(printed.output("all_reduce", 1, 8, [(8192.0, 1e-5)]))
    assert run(["network", str(tmp_path / "b.txt"), "--out", str(tmp_path / "c.yaml")]) == 2
    assert "tells a bandwidth" in capsys.readouterr().err


def test_more_of_a_line_is_never_slower(cluster: Cluster) -> None:
    for name, _, kind, hosts, each in SHARES:
        shape = GroupShape(hosts * each, each)
        times = [
            float(seconds_of(kind, LONG, shape, replace(cluster, overrides={name: share})))
            for share in (0.2, 0.4, 0.6, 0.8)
        ]
        assert all(after <= before for before, after in pairwise(times)), name
        assert times[-1] < times[0], name
