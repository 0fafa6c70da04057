"""Reads reports of Primus' preflight: collectives that it timed, and devices and groups that fall behind the others.

A report is Markdown of tables, each behind a title in ``=``: microseconds of a collective for each group of ranks by
message size, and the rate of square products of each rank. Source: AMD-AGI/Primus@fd1eeabb primus/tools/preflight
(intra_node_comm.py, inter_node_comm.py, square_gemm.py); message sizes are those of a rank's tensor, as in nccl-tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import median

from projector.collectives import nccl_tests
from projector.collectives.nccl_tests import CollectiveTest
from projector.dataclass import dataclass
from projector.errors import Problem, collecting_into, raise_all
from projector.io.files import read_text
from projector.parameter import parameter

_KINDS = {"allreduce": "all_reduce", "alltoall": "all_to_all"}
_TITLE = re.compile(r"^=+\s*(Intra|Inter)NodeComm - (\w+)-(\d+)(?:gpu|nodes) \(us\)\s*=+$")
_PRODUCTS = re.compile(r"^=+\s*Square GEMM TFLOPS\s*=+$")
_SIZE = re.compile(r"(\d+)\s*MB")
_BEHIND = parameter(
    0.95, kind="assumed", source="products of healthy devices of one type lie within a few percent of their median"
)
_BEHIND_GROUP = parameter(
    0.85, kind="assumed", source="collectives of healthy groups lie within some ten percent of their median"
)


@dataclass(frozen=True, slots=True)
class Straggler:
    """A device or group slower than the median of its kind: ``what`` and where, ``ranks``, ``share`` of the median rate."""

    what: str
    host: str
    ranks: tuple[int, ...]
    share: float


@dataclass(frozen=True, slots=True)
class _Row:
    host: str
    ranks: tuple[int, ...]
    values: tuple[float, ...]


def is_report(text: str) -> bool:
    """Returns whether ``text`` is a preflight report and not what nccl-tests print."""
    return any(_TITLE.match(line) or _PRODUCTS.match(line) for line in text.splitlines())


def read(
    paths: Iterable[Path], on: tuple[int, int] | None = None
) -> tuple[tuple[CollectiveTest, ...], tuple[Straggler, ...]]:
    """Returns every test of every file, reports and output of nccl-tests, and what falls behind in the reports.

    ``on``: see :func:`nccl_tests.read`. Raises :class:`InputError` with every mistake.
    """
    problems: list[Problem] = []
    tests, behind, printed = list[CollectiveTest](), list[Straggler](), list[Path]()
    for path in paths:
        text = read_text(path)
        if is_report(text):
            report_tests, slow = _report(text, path, problems)
            tests += report_tests
            behind += slow
        else:
            printed.append(path)
    with collecting_into(problems):
        tests += nccl_tests.read(printed, on)
    raise_all(problems)
    return tuple(tests), tuple(behind)


def _report(text: str, path: Path, problems: list[Problem]) -> tuple[list[CollectiveTest], list[Straggler]]:
    lines = text.splitlines()
    tests, behind = list[CollectiveTest](), list[Straggler]()
    for number, line in enumerate(lines):
        where = f"{path}:{number + 1}"
        try:
            if title := _TITLE.match(line):
                heads, rows = _table(lines[number + 1 :])
                tests += _swept(title, heads, rows, where)
                behind += _slow(f"{title[2]} of {len(rows[0].ranks)} ranks", rows, _BEHIND_GROUP, inverse=True)
            elif _PRODUCTS.match(line):
                behind += _slow("products", _table(lines[number + 1 :])[1], _BEHIND)
        except ValueError as error:
            expected = "Hostname, Node, Rank and a number for each size, in columns"
            problems.append(Problem(where, "table", str(error) or "none", expected))
    if not tests and not problems:
        problems.append(Problem(str(path), "", "no collective of a report", "--tests intra-allreduce,inter-allreduce"))
    return tests, behind


def _table(lines: Sequence[str]) -> tuple[list[str], list[_Row]]:
    """Returns the heads of the sizes, and a row for each rank or group of ranks. Raises ValueError without a table."""
    block = takewhile(lambda line: line.lstrip().startswith("|"), lines)
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block]
    if len(cells) < 3:
        raise ValueError("no row of figures")
    heads = cells[0][3:]
    rows = [_Row(row[0], _ranks(row[2]), tuple(map(float, row[3:]))) for row in cells[2:]]
    wrong = [row for row in rows if len(row.values) != len(heads) or not all(value > 0 for value in row.values)]
    if wrong:
        raise ValueError(f"{wrong[0].values} of {wrong[0].host}")
    return heads, rows


def _ranks(text: str) -> tuple[int, ...]:
    """Returns the numbers of a text such as ``0-7,16``."""
    ranks = list[int]()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)


def _swept(title: re.Match[str], heads: Sequence[str], rows: Sequence[_Row], where: str) -> list[CollectiveTest]:
    """Returns one test: the median of the groups that are as large as the title says."""
    kind, ranks = _KINDS.get(title[2]), len(rows[0].ranks)
    sizes = [_SIZE.fullmatch(head) for head in heads]
    if kind is None or not all(sizes):
        raise ValueError(f"{title[2]} by {', '.join(heads)}")
    whole_groups = [row for row in rows if len(row.ranks) == ranks]
    seconds = tuple(
        sorted(
            (float(size[1]) * 2**20, median(row.values[place] for row in whole_groups) * 1e-6)
            for place, size in enumerate(sizes)
            if size
        )
    )
    hosts = int(title[3]) if title[1] == "Inter" else 1
    return (
        [CollectiveTest(where, kind, ranks, hosts, "", "", False, seconds)] if ranks % hosts == 0 and ranks > 1 else []
    )


def _slow(what: str, rows: Sequence[_Row], least: float, inverse: bool = False) -> list[Straggler]:
    """Returns the rows whose rate of the largest size (``inverse``: seconds) is less than ``least`` of the median's."""
    usual = median(row.values[-1] for row in rows)
    shares = [usual / row.values[-1] if inverse else row.values[-1] / usual for row in rows]
    return [
        Straggler(what, row.host, row.ranks, share) for row, share in zip(rows, shares, strict=True) if share < least
    ]
