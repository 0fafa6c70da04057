"""Reads and writes measured collectives: ``measured/collectives/<cluster>.csv``, and the output of nccl-tests. One row
is one collective at one size; columns are described in ``measured/collectives/README.md``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from harness.evidence import csvcell
from projector.collectives import nccl_tests
from projector.collectives.measured_shares import shape_of
from projector.collectives.model import KINDS
from projector.dataclass import dataclass
from projector.errors import Problem, collecting_into, raise_all
from projector.hardware import catalogue
from projector.io import csv_file
from projector.io.table import values

TOKENS, LOW_LATENCY = "tokens", "tokens_low_latency"
CONDITIONS = ("nccl-tests", "one host thread", "torch.distributed", "threshold", "kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One measured time of a collective. ``bytes`` as the collective model counts them; ``nodes_bytes``: bytes of a
    token kernel that leave the node. ``algorithm``: forced on the library, or empty; ``sms``: multiprocessors of a token
    kernel, where stated; ``condition``: one of :data:`CONDITIONS`."""

    cluster: str
    kind: str
    gpus: int
    nodes: int
    bytes: float
    nodes_bytes: float | None = None
    time_us: float
    algorithm: str = ""
    sms: float | None = None
    condition: str
    source: str


_WHAT = "a table of collectives"
COLUMNS = tuple(field.name for field in fields(CollectiveRecord) if field.name != "cluster")


def read(folder: Path) -> tuple[CollectiveRecord, ...]:
    """Returns every record of a folder of tables. Raises InputError with every mistake in them."""
    problems: list[Problem] = []
    records: list[CollectiveRecord] = []
    for path in sorted(folder.glob("*.csv")):
        columns, rows = csv_file.read(path, _WHAT)
        if columns != COLUMNS:
            problems.append(Problem(str(path), "columns", ", ".join(columns), ", ".join(COLUMNS)))
            continue
        with collecting_into(problems):
            found = csvcell.parsed(CollectiveRecord, ({**row, "cluster": path.stem} for row in rows), str(path))
            records += found
            for line, record in enumerate(found, 2):
                for name, known in (("kind", (*KINDS, TOKENS, LOW_LATENCY)), ("condition", CONDITIONS)):
                    if (word := getattr(record, name)) not in known:
                        problems.append(Problem(str(path), f"line {line}, {name}", word, f"one of {', '.join(known)}"))
    raise_all(problems)
    return tuple(records)


def read_tests(paths: Iterable[Path], cluster: str = "") -> tuple[CollectiveRecord, ...]:
    """Returns every time that nccl-tests or rccl-tests printed, on ``cluster`` (default: the usual one of the device
    that a test names). Raises InputError with every mistake in the texts, and for a device that is not known."""
    tests = nccl_tests.read(paths)
    clusters = [cluster or nccl_tests.usual_cluster([swept]) for swept in tests]
    return tuple(
        CollectiveRecord(
            **values(swept, "kind gpus=ranks algorithm"),
            cluster=name,
            nodes=shape_of(swept, catalogue.cluster(name)).nodes,
            bytes=nbytes,
            time_us=seconds * 1e6,
            condition="one host thread" if swept.one_thread else "nccl-tests",
            source=swept.where.rpartition(":")[0],
        )
        for swept, name in zip(tests, clusters, strict=True)
        for nbytes, seconds in swept.seconds
    )


def text(records: Iterable[CollectiveRecord]) -> str:
    """Returns one table, sorted by source, kind and size."""
    ordered = sorted(records, key=lambda r: (r.source, r.kind, r.gpus, r.algorithm, r.bytes, r.time_us))
    cells = ([getattr(record, name) for name in COLUMNS] for record in ordered)
    return csv_file.text(COLUMNS, *([f"{v:.10g}" if isinstance(v, float) else v for v in row] for row in cells))
