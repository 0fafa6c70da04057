"""Convert third-party kernel figures into this project's own tables:
``measured/kernels/<gpu>/{gemm,attention,grouped}.csv``.

    python tools/import_kernel_tables.py SOURCE_FOLDER [TARGET_FOLDER]

Only figures and their provenance are kept. Left out: rows that are the best of a shape sweep (ceilings), power-capped
machines, steps of three products in one time, integer GEMMs, fused MoE, figures without a time. Columns:
measured/kernels/README.md.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Row = dict[str, str]

GPUS = {
    "A100-PCIe-80GB": "a100_pcie_80gb",
    "A100-SXM-80GB": "a100_sxm_80gb",
    "H100-SXM": "h100_sxm",
    "H100-PCIe": "h100_pcie",
    "H200-SXM": "h200",
    "H800-SXM": "h800",
    "B200-SXM": "b200",
    "B300-SXM": "b300",
    "GB200": "gb200",
    "GB300": "gb300",
    "MI300X": "mi300x",
    "MI308X": "mi308x",
    "MI325X": "mi325x",
    "MI355X": "mi355x",
}
FAMILIES = (
    ("transformerengine grouped", "multi_stream"),
    ("transformerengine", "cublaslt"),
    ("cublas", "cublaslt"),
    ("torch.matmul hipblaslt", "hipblaslt"),
    ("aiter torch", "hipblaslt"),
    ("hipblaslt", "hipblaslt"),
    ("best of backends", "tuned"),
    ("cutlass", "cutlass"),
    ("deepgemm", "deepgemm"),
    ("hipkittens", "hipkittens"),
    ("torch.m", "cublaslt"),
    ("flashattention-2", "fa2"),
    ("flashattention-3", "fa3"),
    ("flashattention-4", "fa4"),
    ("cudnn", "cudnn"),
    ("bwd_v3 asm a16", "aiter_a16"),
    ("bwd_v3 asm a32", "aiter"),
    ("fmha_v3", "aiter"),
    ("aiter asm", "asm"),
    ("opus", "opus"),
    ("flydsl", "flydsl"),
    ("cktile", "cktile"),
    ("triton", "triton"),
    ("skinny", "skinny"),
    ("(gmm)", "ck"),
    ("ck", "ck"),
)
OUT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "": 2}
UNUSABLE = ("best shape of a sweep", "power cap", "power-limited", "combined training step")


def main(source: Path, target: Path) -> None:
    tables: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for kind, pattern, convert in (
        ("gemm", "gemm_*.csv", gemm),
        ("attention", "attention_*.csv", attention),
        ("grouped", "grouped_gemm_*.csv", grouped),
    ):
        for path in sorted(source.glob(pattern)):
            for row in read(path):
                out = convert(row)
                if out is not None:
                    tables[GPUS[row["gpu"]], kind].append(out)
    for (gpu, kind), rows in tables.items():
        write(target / gpu / f"{kind}.csv", rows)
        print(f"{gpu}/{kind}.csv: {len(rows)} rows")


def read(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            usable = row["gpu"] in GPUS and row["dtype"] != "int8"
            if usable and not any(word in row["notes"] for word in UNUSABLE):
                yield row


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unique = {tuple(row.items()): row for row in rows}
    with path.open("w", newline="", encoding="utf-8") as lines:
        out = csv.DictWriter(lines, fieldnames=list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(unique.values())


def family(library: str) -> str:
    low = library.lower()
    return next((name for mark, name in FAMILIES if mark in low), low.replace(" ", "_"))


def dtype_of(row: Row) -> str:
    return "fp8" if row["dtype"].startswith("fp8") else row["dtype"]


def scaling_of(row: Row) -> str:
    notes, kind = row["notes"], dtype_of(row)
    if kind == "fp8":
        if "block" in notes:
            return "blockwise"
        return "rowwise" if "rowwise" in notes else "tensorwise"
    return kind if kind.startswith("mx") else ""


def provenance(row: Row) -> str:
    """The source, without the folders of a repository that every row of it shares."""
    return re.sub(r"(aiter/configs/model_configs/|aiter/configs/|configs/system/)", "", row["source"])


def condition(row: Row) -> str:
    notes, source = row["notes"], row["source"]
    if "SimuMax" in source:
        return "framework average"
    if "aiter@" in source:
        return "tuned winner, profiled"
    if "warm-up" in notes:
        return "sustained clocks"
    return "gpu inferred" if "GPU inferred" in notes else "published"


def gemm(row: Row) -> Row | None:
    if row["op"] not in ("gemm", "batched_gemm") or not row["time_us"]:
        return None
    accumulate = row["accumulate"] == "True"
    return {
        "family": family(row["library"]),
        "dtype": dtype_of(row),
        "scaling": scaling_of(row),
        "layout": row["layout"] or "TN",
        "accumulate": str(int(accumulate)),
        "out_bytes": str(OUT_BYTES.get(row["out_dtype"], 2)),
        **{name: str(int(float(row[name] or 1))) for name in ("m", "n", "k", "batch")},
        "time_us": f"{float(row['time_us']):.6g}",
        "condition": condition(row),
        "source": provenance(row),
    }


def attention(row: Row) -> Row | None:
    if not row["tflops"]:
        return None
    batch, heads, q, s = (float(row[name]) for name in ("batch", "heads_q", "seq_q", "seq_k"))
    depth = float(row["head_dim_qk"]) + float(row["head_dim_v"])
    backward = row["op"] == "attn_bwd"
    work = 2.0 * batch * heads * q * s * depth * (2.5 if backward else 1.0)
    if row["flops_convention"] == "causal half":
        work /= 2.0
    name = family(row["library"])
    if "SimuMax" in row["source"]:  # TransformerEngine picks FlashAttention-2 on Ampere and cuDNN on Blackwell
        name = "fa2" if row["gpu"].startswith("A100") else "cudnn"
    return {
        "family": name,
        "dtype": dtype_of(row),
        "backward": str(int(backward)),
        "causal": str(int(row["causal"] == "True")),
        **{a: str(int(float(row[b]))) for a, b in ATTENTION_COLUMNS},
        "time_us": f"{work / float(row['tflops']) * 1e-6:.6g}",
        "condition": condition(row),
        "source": provenance(row),
    }


ATTENTION_COLUMNS = (
    ("batch", "batch"),
    ("heads", "heads_q"),
    ("kv_heads", "heads_kv"),
    ("seq_q", "seq_q"),
    ("seq_k", "seq_k"),
    ("head_dim_qk", "head_dim_qk"),
    ("head_dim_v", "head_dim_v"),
)


def grouped(row: Row) -> Row | None:
    op = row["op"].removeprefix("grouped_gemm_")
    layout = {"fwd": "TN", "bwd_grad_act": "NN", "dgrad": "NN", "bwd_grad_w": "NT", "wgrad": "NT"}.get(op)
    if layout is None or not row["time_us"]:
        return None
    n, k = (row["k"], row["n"]) if layout == "NN" else (row["n"], row["k"])
    accumulate = layout == "NT" and row["accumulate"] == "True"
    fused = "DeepGEMM" in row["library"] or row["library"] in ("Triton", "grouped_gemm (GMM)")
    return {
        "family": family(row["library"]),
        "dtype": dtype_of(row),
        "scaling": "blockwise" if "DeepGEMM" in row["library"] else "",
        "layout": layout,
        "accumulate": str(int(accumulate)),
        "out_bytes": str(OUT_BYTES.get(row["main_grad_dtype"], 2) if accumulate else 2),
        "backend": "fused" if fused else "multi_stream",
        "groups": row["num_groups"],
        "rows": str(int(float(row["num_groups"]) * float(row["m_per_group"]))),
        "n": n,
        "k": k,
        "time_us": f"{float(row['time_us']):.6g}",
        "condition": condition(row),
        "source": provenance(row),
    }


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("measured/kernels"))
