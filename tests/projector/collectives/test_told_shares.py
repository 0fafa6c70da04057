"""The model turned around: what a cluster reaches is found again in its times, and in the file made of them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import command_line
import printed
import pytest
from asked import put, refusal, says
from tabled import tabled

from projector.cli import run
from projector.collectives import nccl_tests
from projector.collectives.measured_shares import told
from projector.collectives.model import seconds_of
from projector.collectives.nccl_tests import CollectiveTest
from projector.hardware import catalogue
from projector.hardware.types import Cluster, GroupShape

LONG = 2.0**33
#: What a cluster may reach, and the tests that tell it: (constant, share, kind, hosts, ranks of each).
SHARES = tabled("collectives", "shares")


def swept(
    kind: str, hosts: int, each: int, cluster: Cluster, algorithm: str = "", slower: float = 1.0
) -> CollectiveTest:
    shape = GroupShape(hosts * each, each)
    times = [float(seconds_of(kind, size, shape, cluster, algorithm=algorithm)) * slower for size in (2.0**22, LONG)]
    return CollectiveTest(
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
    caught = refusal(told, wrong, cluster)
    assert len(caught.problems) == 2
    assert "bandwidth_gbs" in str(caught)
    refusal(told, [replace(wrong[0], hosts=2)], cluster, match="GPUs of a host")


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
    assert "--cluster" in command_line.refused("projector", "network", tmp_path / "a.txt")
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


# What nccl-tests print is read whatever stands around it; what is unclear in it is refused by name.


TIMES = [(2.0**20, 50e-6), (2.0**30, 5e-3)]
FLAT = [figure for pair in TIMES for figure in pair]


def timed(swept: nccl_tests.CollectiveTest) -> list[float]:
    return [figure for pair in swept.seconds for figure in pair]


def read(folder: Path, text: str, name: str = "out.txt", **settings: object) -> tuple[nccl_tests.CollectiveTest, ...]:
    return nccl_tests.read([put(folder / name, text)], **settings)


def refused(folder: Path, text: str, **settings: object) -> str:
    return str(refusal(read, folder, text, **settings))


@pytest.mark.parametrize("kind", sorted(printed.NAMES))
@pytest.mark.parametrize("before", ["", "0: ", "[1,0]<stdout>:", "2026-11-23T10:00:00.123Z ", "12:00:00.5 ", "    "])
def test_a_test_behind_whatever_a_launcher_puts_before_a_line(tmp_path, kind: str, before: str) -> None:
    text = "".join(f"{before}{line}\n" for line in printed.output(kind, 2, 4, TIMES).splitlines())
    (found,) = read(tmp_path, text)
    assert (found.kind, found.ranks, found.hosts, found.device) == (kind, 8, 2, printed.H100)
    assert timed(found) == pytest.approx(FLAT)
    assert found.longest == (FLAT[-2], pytest.approx(FLAT[-1]))


def test_several_tests_of_a_file_and_of_several_files(tmp_path) -> None:
    kinds = ("all_gather", "all_to_all", "all_reduce")
    text = "\n".join(printed.output(kind, 1, 8, TIMES) for kind in kinds)
    assert tuple(each.kind for each in read(tmp_path, text)) == kinds


def test_what_is_no_figure_is_left_out(tmp_path) -> None:
    """Rows without bytes, sums that nobody checked, one column of times only, a size timed several times."""
    empty = printed.row(1.0, 9e-6, "all_reduce", 8).replace("           1  ", "           0  ", 1)
    text = printed.output("all_reduce", 1, 8, [(2.0**20, 4e-5), *TIMES, (2.0**20, 6e-5)], wrong="N/A", again=False)
    (found,) = read(tmp_path, text.replace("# Out of", f"{empty}\n# Out of"))
    assert timed(found) == pytest.approx(FLAT)


def test_columns_of_other_releases(tmp_path) -> None:
    """Without ``root`` and with ``error`` (2020), without ``redop``, and with figures of single iterations (2026)."""
    text = printed.output("all_reduce", 1, 8, TIMES)
    old = (
        text.replace("redop    root", "redop")
        .replace("#wrong", "error")
        .replace("sum      -1", "sum")
        .replace(" Group  0", "")
    )
    assert timed(read(tmp_path, old)[0]) == pytest.approx(FLAT)
    bare = printed.output("all_gather", 1, 8, TIMES).replace("redop    root", "").replace("none      -1", "")
    assert timed(read(tmp_path, bare)[0]) == pytest.approx(FLAT)
    wide = text.replace("#wrong     time", "#wrong  i_min  i_max  time")
    rows = [
        line.replace("      0  ", "      0  1.0  2.0  ", 1) if line.endswith("0") else line
        for line in wide.splitlines()
    ]
    assert timed(read(tmp_path, "\n".join(rows))[0]) == pytest.approx(FLAT)


def test_in_place_where_nothing_was_timed_out_of_place(tmp_path) -> None:
    (found,) = read(tmp_path, printed.output("all_reduce", 1, 8, TIMES).replace("  5000.0000", "      n/a ", 1))
    assert timed(found) == pytest.approx(FLAT)


def test_the_collective_by_its_file_by_its_command_and_by_its_rates(tmp_path) -> None:
    text = printed.output("all_gather", 1, 8, TIMES, named=False)
    assert read(tmp_path, text, "all_gather_h100.txt")[0].kind == "all_gather"
    assert read(tmp_path, f"+ srun ./build/alltoall_perf -b 8 -e 1G\n{text}")[0].kind == "all_to_all"
    assert "all_gather or all_to_all" in refused(tmp_path, text)
    for kind in ("all_reduce", "reduce_scatter"):
        assert read(tmp_path, printed.output(kind, 1, 8, TIMES, named=False))[0].kind == kind


def test_ranks_are_as_listed_or_as_told(tmp_path) -> None:
    text = printed.output("all_reduce", 2, 4, TIMES)
    bare = "\n".join(line for line in text.splitlines() if "Rank" not in line)
    assert "--on" in refused(tmp_path, bare)
    (found,) = read(tmp_path, bare, on=(2, 4))
    assert (found.ranks, found.hosts, found.device) == (8, 2, "")


def test_two_communicators_at_once_count_as_one(tmp_path) -> None:
    """One rank a host in each, as ``NCCL_TESTS_SPLIT`` makes them."""
    lines = printed.ranks(2, 2)
    both = [line.replace("Group  0", "Group  1") if "device  1" in line else line for line in lines]
    text = printed.output("all_reduce", 2, 1, TIMES).replace("\n".join(printed.ranks(2, 1)), "\n".join(both))
    (found,) = read(tmp_path, text)
    assert (found.ranks, found.hosts) == (2, 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda text: "nothing", "nThread"),
        (lambda text: text.replace("Rank  1", "Rank  0"), "MPI=1"),
        (lambda text: text.replace("host-1", "host-2", 1), "equally many ranks"),
        (lambda text: text.replace("H100 80GB HBM3", "H200", 1), "one type of GPU"),
        (
            lambda text: text.replace("starting: all_reduce", "starting: reduce").replace("concluded", "ended"),
            "reduce_perf",
        ),
        (lambda text: text.replace("all_reduce", "all_gather"), "0.875 of all_gather"),
        (lambda text: text.replace("    0  ", "    3  "), "sums were wrong"),
        (lambda text: text.replace("float", "?"), "no row with a time"),
    ],
)
def test_what_is_unclear_is_named(tmp_path, wrong: object, said: str) -> None:
    assert said in refused(tmp_path, wrong(printed.output("all_reduce", 2, 4, TIMES)))


def test_every_mistake_at_once(tmp_path) -> None:
    good, bad = printed.output("all_reduce", 1, 8, TIMES), printed.output("all_reduce", 1, 1, TIMES[:0])
    text = refused(tmp_path, f"{good}\n{bad}\n{good.replace('Rank  1', 'Rank  7')}")
    says(text, "one rank", "MPI=1")
    assert len(text.splitlines()) == 2


def test_an_algorithm_that_the_output_forces(tmp_path) -> None:
    text = printed.output("all_reduce", 1, 8, TIMES)
    assert read(tmp_path, text)[0].algorithm == ""
    assert read(tmp_path, f"NCCL_ALGO=Ring mpirun all_reduce_perf\n{text}")[0].algorithm == "ring"
    assert (
        read(tmp_path, text.replace("#\n", "NCCL INFO NCCL_ALGO set by environment to Tree\n#\n", 1))[0].algorithm
        == "tree"
    )


def test_one_thread_for_several_devices(tmp_path) -> None:
    assert read(tmp_path, printed.output("all_reduce", 1, 8, TIMES, gpus=8))[0].one_thread
    assert not read(tmp_path, printed.output("all_reduce", 1, 8, TIMES))[0].one_thread
    graph = printed.output("all_reduce", 1, 8, TIMES, gpus=8).replace("graph: 0", "graph: 20")
    assert not read(tmp_path, graph)[0].one_thread
