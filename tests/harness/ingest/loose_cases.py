"""A loose record with everything stated, and its conversion."""

from typing import Any

from tabled import tabled

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.importmap import ImportMap
from harness.evidence.ingest.loose import convert
from harness.evidence.ingest.report import RowReport


def one(known: ImportMap | None = None, **record: Any) -> tuple[MeasuredRun, RowReport]:
    made = convert([record], "table.yaml", known)
    return made.runs[0], made.rows[0]


def record(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "id": "r", "gpu": "H100-SXM", "gpus": 8, "framework": "Megatron-LM (mcore)", "model": "Llama 3 8B",
        "precision": "bf16", "seq_length": 8192, "micro_batch_size": 1, "global_batch_size": 128, "tp": 1, "pp": 1,
        "cp": 1, "ep": 1, "dp": 8, "metrics": {"iteration_ms": 10000.0},
    }  # fmt: skip
    return plain | changes


SIMUMAX = tabled("readers", "loose_cases_simumax")
