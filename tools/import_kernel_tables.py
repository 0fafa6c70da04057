"""Convert third-party kernel figures into this project's own tables:
``measured/kernels/<gpu>/{gemm,attention,grouped,stream}.csv``.

    python tools/import_kernel_tables.py SOURCE_FOLDER [TARGET_FOLDER]

Only figures and their provenance are kept. Left out: rows that are the best of a shape sweep (ceilings), power-capped
machines, steps of three products in one time, integer GEMMs, fused MoE, figures without a time. Columns:
measured/kernels/README.md; the rules: harness/kernels/{families,convert,schema}.py.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from harness.kernels.convert import Cells, convert
from harness.kernels.schema import read_csv, stream
from projector.errors import InputError, Problem
from projector.hardware.catalogue import find_gpu
from projector.hardware.catalogue import gpu as catalogue_gpu

Row = Mapping[str, str]

PATTERNS = {"gemm": "gemm_*.csv", "attention": "attention_*.csv", "grouped": "grouped_gemm_*.csv"}


def main(source: Path, target: Path) -> None:
    tables: dict[tuple[str, str], list[Row]] = defaultdict(list)
    problems: list[Problem] = []
    for kind, pattern in PATTERNS.items():
        for path in sorted(source.glob(pattern)):
            for number, raw in read_csv(path).rows:
                gpu = find_gpu(raw["gpu"])
                if gpu is None:
                    continue
                made = convert(Cells(raw, f"{path}:{number}", problems), catalogue_gpu(gpu))
                if not isinstance(made, str) and made.kind == kind:
                    tables[gpu, kind].append(made.cells)
    for path in sorted(source.glob("memory_*.csv")):
        for number, raw in read_csv(path).rows:
            gpu = find_gpu(raw["gpu"])
            try:
                cells = stream(raw) if gpu else None
            except ValueError as error:
                problems.append(Problem(f"{path}:{number}", "value", raw["value"], str(error)))
                continue
            if gpu and cells:
                tables[gpu, "stream"].append(cells)
    if problems:
        raise InputError(problems)
    for (gpu, kind), rows in tables.items():
        write(target / gpu / f"{kind}.csv", rows)
        print(f"{gpu}/{kind}.csv: {len(rows)} rows")


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unique = {tuple(row.items()): row for row in rows}
    sources = list(dict.fromkeys(row["source"] for row in rows))
    number = {text: str(i) for i, text in enumerate(sources, start=1)}
    with path.open("w", newline="", encoding="utf-8") as lines:
        out = csv.DictWriter(lines, fieldnames=list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows({**row, "source": number[row["source"]]} for row in unique.values())
    with path.with_suffix(".sources.csv").open("w", newline="", encoding="utf-8") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerows([("number", "source"), *((i, text) for text, i in number.items())])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("measured/kernels"))
