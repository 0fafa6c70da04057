"""Writes ``measured/collectives/<cluster>.csv`` from a third-party table of collectives, or from one of nccl-tests' columns.

    python tools/import_collectives.py COLLECTIVES.csv [TARGET]

Columns and rules: measured/collectives/README.md, harness/kernels/collectives_table.py. Only figures and their source
are kept.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from harness.kernels.collectives_table import CollectiveRecord, convert, convert_nccl_tests, text

TARGET = Path(__file__).resolve().parents[1] / "measured" / "collectives"


def main(source: Path, target: Path = TARGET) -> None:
    """Converts ``source`` and writes one file a cluster into ``target``."""
    by_cluster: dict[str, list[CollectiveRecord]] = defaultdict(list)
    printed = "busbw-o" in source.read_text(encoding="utf-8").partition("\n")[0]
    for record in (convert_nccl_tests if printed else convert)(source):
        by_cluster[record.cluster].append(record)
    target.mkdir(parents=True, exist_ok=True)
    for cluster, records in by_cluster.items():
        (target / f"{cluster}.csv").write_text(text(records), encoding="utf-8")
        print(f"{cluster}: {len(records)} rows")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
