"""``kernels.csv`` (a line a row) and ``kernels.json`` (a line a class): the same tables, the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from harness.kernels.score import CLASSES, FITS, Score, class_of, errors
from harness.kernels.table import Loaded
from projector.io import csv_file

SCHEMA_VERSION = 1
DIGITS = 6
SHAPE = (
    *("m", "n", "k", "batch", "layout", "accumulate", "groups", "rows", "backend"),
    *("heads", "kv_heads", "seq_q", "seq_k", "head_dim_qk", "head_dim_v", "causal", "backward"),
)


def csv_text(score: Score) -> str:
    """One line a row: where it stands, its class and shape, measured and modelled microseconds, signed errors."""
    modelled = [f"{fit}_us" for fit in FITS] + [f"{fit}_error" for fit in FITS]
    head = ("where", "gpu", "kind", "dtype", "scaling", "family", *SHAPE, "flops", "measured_us", *modelled)
    rows: list[tuple[object, ...]] = [(*head, "heldout_by", "constants", "source_fitted", "condition", "source")]
    times = [1e6 * score.seconds[fit] for fit in FITS]
    wrong = [score.error(fit) for fit in FITS]
    for i, row in enumerate(score.rows):
        op = row.measured.op
        shape = [_cell(getattr(op, name, "")) for name in SHAPE]
        values = (1e6 * score.measured[i], *(column[i] for column in (*times, *wrong)))
        tail = (score.how[i], score.constants[i], int(score.seen[i]), row.measured.condition, row.measured.source)
        named = (row.where, row.gpu, row.kind, row.dtype, row.scaling, row.measured.family)
        rows.append((*named, *shape, *map(_number, (score.flops[i], *values)), *tail))
    return csv_file.text(*rows)


def json_text(score: Score, loaded: Loaded) -> str:
    """Statistics of every class, whole and by size, and the skipped rows by reason."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "tables": [str(path) for path in loaded.paths],
        "rows": len(score.rows),
        "skipped": skipped(loaded),
        "classes": list(_classes(score)),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def skipped(loaded: Loaded) -> dict[str, int]:
    """Rows that cannot be modelled, by reason, the most frequent first."""
    counts: dict[str, int] = {}
    for row in loaded.skipped:
        counts[row.reason] = counts.get(row.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _classes(score: Score) -> Iterator[dict[str, Any]]:
    wrong = {fit: score.error(fit) for fit in FITS}
    for key, where in score.members(class_of).items():
        sizes: dict[str, Any] = {"all": where, "> 1e10": where[score.large[where]]}
        for name, least, most in CLASSES:
            sizes[name] = where[(score.flops[where] >= least) & (score.flops[where] < most)]
        made = {name: {fit: _statistics(wrong[fit][some]) for fit in FITS} for name, some in sizes.items() if len(some)}
        words = {
            "heldout_by": sorted({score.how[i] for i in where}),
            "constants": sorted({score.constants[i] for i in where}),
        }
        yield {
            **key._asdict(),
            "n": len(where),
            "source_fitted": bool(score.seen[where].all()),
            **words,
            "errors": made,
        }


def _statistics(signed: Any) -> dict[str, float] | None:
    found = errors(signed)
    return None if found is None else {k: _round(v) for k, v in asdict(found).items()}


def _round(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def _number(value: float) -> str:
    return f"{value:.{DIGITS}g}" if math.isfinite(value) else ""


def _cell(value: object) -> object:
    return int(value) if isinstance(value, bool) else value
