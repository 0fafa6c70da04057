"""Convert cuDNN's own attention figures into ``measured/kernels/<gpu>/attention.csv``, beside the rows of other sources:

    python tools/import_cudnn_tables.py CHECKOUT_OF_NVIDIA_CUDNN_FRONTEND [TARGET_FOLDER]

Reads ``benchmark/sdpa_benchmark_training/results`` (medians of ten runs). Left out: failed and MXFP8 cases, and the
deterministic twin of a backward that was timed both ways. One device's files may time both directions in one row.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from projector.hardware.catalogue import find_gpu
from projector.kernels.tables import sources_of

FOLDER = "benchmark/sdpa_benchmark_training/results"
SOURCE = "NVIDIA/cudnn-frontend@3929da2 sdpa_benchmark_training/results"
COLUMNS = (
    *("family", "dtype", "backward", "causal", "batch", "heads", "kv_heads", "seq_q", "seq_k"),
    *("head_dim_qk", "head_dim_v", "window", "time_us", "condition", "source"),
)
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
_MASKS = {"top_left": "1", "no_mask": "0"}

Row = dict[str, str]


def main(checkout: Path, target: Path) -> None:
    rows = [pair for path in sorted((checkout / FOLDER).rglob("*.csv")) for pair in _rows(path)]
    for gpu, found in groupby(sorted(rows, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        table = target / gpu / "attention.csv"
        made = [row for _, row in found]
        write(table, [*_others(table), *made])
        print(f"{table}: {len(made)} rows")


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """(GPU, row) of every case that ran."""
    with path.open(newline="", encoding="utf-8") as lines:
        for cells in csv.DictReader(lines):
            gpu = find_gpu((cells["gpu_name"] or "").removeprefix("NVIDIA "))
            dtype, mask = _DTYPES.get(cells["data_type"]), _MASKS.get(cells["attn_mask"] or "")
            if gpu is None or dtype is None or mask is None or cells["success"] != "True":
                continue
            for backward, milliseconds, deterministic in _times(cells):
                version = int(float(cells["cudnn_backend_version"]))
                words = f"cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}" + deterministic
                yield gpu, _row(cells, dtype, mask, backward, milliseconds, words)


def _times(cells: Mapping[str, str]) -> Iterator[tuple[bool, float, str]]:
    """(backward, milliseconds, ", deterministic" where there is no other)."""
    twice = cells["profile_pass"] == "both"
    pairs = [(False, "fwd_time_ms"), (True, "bwd_time_ms")] if twice else [(cells["profile_pass"] == "bwd", "time_ms")]
    for backward, name in pairs:
        fixed = backward and cells["deterministic_bwd"] == "True"
        time = float(cells[name])
        if math.isfinite(time) and time > 0 and (twice or not fixed):
            yield backward, time, ", deterministic" if fixed else ""


def _row(cells: Mapping[str, str], dtype: str, mask: str, backward: bool, milliseconds: float, words: str) -> Row:
    return {
        "family": "cudnn",
        "dtype": dtype,
        "backward": str(int(backward)),
        "causal": mask,
        "batch": cells["batch_size"],
        "heads": cells["num_q_heads"],
        "kv_heads": cells["num_kv_heads"],
        "seq_q": cells["q_seqlen"],
        "seq_k": cells["kv_seqlen"],
        "head_dim_qk": cells["head_dim_qk"],
        "head_dim_v": cells["head_dim_vo"],
        "window": cells["sliding_window_size"] or "",
        "time_us": f"{milliseconds * 1e3:.6g}",
        "condition": words,
        "source": SOURCE,
    }


def _others(table: Path) -> list[Row]:
    """Rows of the table that come from elsewhere, with their sources spelt out."""
    if not table.is_file():
        return []
    sources = sources_of(table.with_suffix(".sources.csv"))
    with table.open(newline="", encoding="utf-8") as lines:
        rows = [{**row, "source": sources.get(row["source"], row["source"])} for row in csv.DictReader(lines)]
    return [{name: row.get(name) or "" for name in COLUMNS} for row in rows if row["source"] != SOURCE]


def write(table: Path, rows: list[Row]) -> None:
    table.parent.mkdir(parents=True, exist_ok=True)
    number = {text: str(i) for i, text in enumerate(dict.fromkeys(row["source"] for row in rows), start=1)}
    with table.open("w", newline="", encoding="utf-8") as lines:
        out = csv.DictWriter(lines, fieldnames=COLUMNS, lineterminator="\n")
        out.writeheader()
        out.writerows({**row, "source": number[row["source"]]} for row in rows)
    with table.with_suffix(".sources.csv").open("w", newline="", encoding="utf-8") as lines:
        csv.writer(lines, lineterminator="\n").writerows([("number", "source"), *((i, s) for s, i in number.items())])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("measured/kernels"))
