"""What nccl-tests print is read whatever stands around it; what is unclear in it is refused by name."""

from pathlib import Path

import printed
import pytest

from projector.collectives import nccl_tests
from projector.errors import InputError

TIMES = [(2.0**20, 50e-6), (2.0**30, 5e-3)]
FLAT = [figure for pair in TIMES for figure in pair]


def timed(swept: nccl_tests.Swept) -> list[float]:
    return [figure for pair in swept.seconds for figure in pair]


def read(folder: Path, text: str, name: str = "out.txt", **settings: object) -> tuple[nccl_tests.Swept, ...]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return nccl_tests.read([path], **settings)


def refused(folder: Path, text: str, **settings: object) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, text, **settings)
    return str(caught.value)


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
    assert "one rank" in text
    assert "MPI=1" in text
    assert len(text.splitlines()) == 2


def test_an_algorithm_that_was_forced(tmp_path) -> None:
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
