"""A loose record with everything stated, and its conversion."""

from __future__ import annotations

from typing import Any

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


SIMUMAX = {
    "id": "simumax-b200-deepseekv2_tp1_ep8_pp1_dp8_l4_mbc4_cef",
    "source": "SimuMax v1.2 B200 formal results, docs/b200/b200_release_v1.2_summary.json @4dcaae513ba7 (2026-05-11)",
    "source_kind": "published table (validation of a projector), measured by Megatron-LM logs",
    "gpu": "B200-SXM",
    "gpus": 8,
    "nodes": 1,
    "framework": "Megatron-LM (mcore)",
    "model": "deepseekv2 (4 layers)",
    "arch": {"layers": 4, "hidden": 5120, "heads": 128, "kv_heads": 128, "vocab": 102400, "dense_layers": 1},
    "precision": "bf16",
    "seq_length": 4096,
    "micro_batch_size": 1,
    "global_batch_size": 32,
    "tp": 1,
    "pp": 1,
    "vpp": 1,
    "cp": 1,
    "ep": 8,
    "dp": 8,
    "zero": "distributed optimizer (ZeRO-1)",
    "recompute": "none",
    "schedule": "no pipeline",
    "other": {
        "tokenizer": "NullTokenizer",
        "vocab_divisible_by": 128,
        "cross_entropy_fusion": "TE fused (case suffix _cef)",
        "attention_backend": "TransformerEngine DotProductAttention",
        "overlap_grad_reduce": False,
        "grad_accum_dtype": "fp32",
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
        "container_family": "nvcr.io/nvidia/pytorch:26.01",
        "recompute_num_layers": 0,
    },
    "metrics": {"tokens_per_s_per_gpu": 44691.8, "iteration_ms": 366.6, "memory_gb": 45.63},
    "note": "tokens_per_s_per_gpu derived = GBS*seq/time/8. memory_gb is GiB max_allocated, max over ranks.",
}
