"""A row of a third-party table of memory rates as cells of this project's ``stream.csv``.

Third-party columns: ``source, gpu, op, params, metric, value, unit, notes``. What each operation moves:

* BabelStream (UoB-HPC/BabelStream README): copy and mul read one array and write one, add and triad read two and write
  one, dot reads two; 2^25 FP64 elements an array unless the row states ``array_bytes=…``. It prints the bytes of all
  arrays over the best time.
* A device's copy within its own memory (NVIDIA p2pBandwidthLatencyTest, diagonal): 40 million 4-byte elements, read
  and written.
* Microbenchmarks that only read or only write device memory: rates over long buffers.
* SimuMax fits (configs/system/*.json): a share of the peak that the row names, for a class of operations; its fixed
  latency is host time and left out, so the row stands for a long kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ARRAY = 2.0**25 * 8.0  # published: BabelStream's default array, 268.4 MB
_COPIED = 4e7 * 4.0  # published: NVIDIA/cuda-samples p2pBandwidthLatencyTest, numElems of int
_LONG = 2.0**30  # derived: long enough for the fill to vanish beside it
_RATES = {"B/s": 1.0, "GB/s": 1e9, "TB/s": 1e12}
# operation: (kind, bytes read, bytes written, condition)
_MOVES: dict[str, tuple[str, float, float, str]] = {
    "babelstream_copy": ("copy", _ARRAY, _ARRAY, "published"),
    "babelstream_mul": ("copy", _ARRAY, _ARRAY, "published"),
    "babelstream_add": ("copy", 2 * _ARRAY, _ARRAY, "published"),
    "babelstream_triad": ("copy", 2 * _ARRAY, _ARRAY, "published"),
    "babelstream_dot": ("reduce", 2 * _ARRAY, 0.0, "published"),
    "d2d_local_copy": ("copy", _COPIED, _COPIED, "published"),
    "hbm_read": ("reduce", _LONG, 0.0, "published"),
    "hbm_write": ("fill", 0.0, _LONG, "published"),
    "memory_op_default": ("elementwise", _LONG, _LONG, "framework fit"),
    "memory_op_permute_fwd": ("permute", _LONG, _LONG, "framework fit"),
    "memory_op_permute_bwd": ("permute", _LONG, _LONG, "framework fit"),
    "memory_op_ce": ("loss", _LONG, _LONG, "framework fit"),
    "memory_op_ce_fusion": ("loss", _LONG, _LONG, "framework fit"),
}


def stream(row: Mapping[str, str]) -> dict[str, str] | None:
    """The row's cells, None for an operation that is no kernel of one device's own memory.

    Raises ``ValueError`` for a rate that is no positive number, or one in a unit that this does not know.
    """
    found = _MOVES.get(row["op"])
    if found is None:
        return None
    kind, read, write, condition = found
    stated = re.search(r"array_bytes=([\d.e+]+)", row.get("params") or "")
    if stated and row["op"].startswith("babelstream_"):
        read, write = (part / _ARRAY * float(stated[1]) for part in (read, write))
    return {
        "kind": kind,
        "read_bytes": f"{read:.0f}",
        "write_bytes": f"{write:.0f}",
        "launches": "1",
        "time_us": f"{(read + write) / _rate(row) * 1e6:.6g}",
        "condition": condition,
        "source": row["source"],
    }


def _rate(row: Mapping[str, str]) -> float:
    """Bytes per second of a row."""
    value = float(row["value"])
    if row["unit"] == "fraction":
        peak = re.search(r"peak ([\d.]+) GB/s", row["params"])
        if peak is None:
            raise ValueError(f"a fraction of no stated peak: {row['params']!r}")
        value *= float(peak[1]) * 1e9
    elif row["unit"] in _RATES:
        value *= _RATES[row["unit"]]
    else:
        raise ValueError(f"unit {row['unit']!r}, expected one of {', '.join(_RATES)} or fraction")
    if not value > 0.0:
        raise ValueError(f"rate {row['value']!r}, expected above 0")
    return value
