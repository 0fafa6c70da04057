"""Converts a row of a third-party kernel table to cells of this project's own tables (``measured/kernels/README.md``).

Third-party columns: ``source, gpu, dtype, op, m, n, k, batch, layout, out_dtype, accumulate, library, kernel, metric,
value, tflops, time_us, notes``; attention: ``seq_q, seq_k, heads_q, heads_kv, head_dim_qk, head_dim_v, causal,
flops_convention``; grouped: ``num_groups, m_per_group, m_total, main_grad_dtype``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from harness.kernels import families
from harness.kernels.families import WORDS
from projector.dataclass import dataclass
from projector.errors import Problem
from projector.hardware.types import Gpu

_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


@dataclass(frozen=True)
class Cells:
    """One row of a CSV under validation: cells by column name, the place of the row, and the list to which every wrong
    cell adds a problem, so that all are reported at once."""

    raw: Mapping[str, str]
    where: str
    problems: list[Problem]

    def __getitem__(self, name: str) -> str:
        return (self.raw.get(name) or "").strip()

    def count(self, name: str, default: int | None = None) -> int:
        """Returns a whole number of at least 1. Without a ``default`` an empty cell is a problem as well."""
        text = self[name]
        if not text and default is not None:
            return default
        value = _float(text)
        if value is None or value < 1 or value != int(value):
            return int(self.wrong(name, "a whole number of at least 1"))
        return int(value)

    def positive(self, name: str) -> float | None:
        """Returns a number above zero; None where the cell is empty."""
        if not self[name]:
            return None
        value = _float(self[name])
        return value if value is not None and value > 0.0 else self.wrong(name, "a positive number")

    def flag(self, name: str) -> bool:
        value = _FLAGS.get(self[name].lower())
        return bool(self.wrong(name, "True or False")) if value is None else value

    def wrong(self, name: str, expected: str) -> float:
        self.problems.append(Problem(self.where, name, self[name], expected))
        return 1.0


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


#: Columns that the header must have for each kind of row.
COLUMNS: Mapping[str, Sequence[str]] = WORDS["columns"]


@dataclass(frozen=True, slots=True)
class Converted:
    """A row as ``kind`` and ``cells`` of that kind's table; ``quantised``: the time holds casts of the operands too."""

    kind: str
    cells: Mapping[str, str]
    quantised: bool = False


def kind_of(op: str) -> str | None:
    """Returns ``gemm``, ``gemm_step`` (forward and both gradients in one time), ``attention``, ``grouped``, or None."""
    kind: str | None = WORDS["kinds"].get(op)
    return kind


def convert(row: Cells, gpu: Gpu) -> Converted | str:
    """Returns the row in this project's terms, or why no model here covers it. Wrong cells go to ``row.problems``."""
    kind = kind_of(row["op"])
    if kind is None:
        known = (str(r) for mark, r in WORDS["no_model"].items() if row["op"].startswith(mark))
        return next(known, "an operation that no kernel model covers")
    dtype = families.dtype_of(row.raw)
    if dtype == "int8":
        return "integer operands"
    if dtype not in WORDS["modelled"]:
        return f"no model of operands of type {row['dtype']!r}"
    ceiling = families.unusable(row.raw)
    if ceiling is not None:
        return ceiling
    made = _MAKE[kind](row, gpu)
    if isinstance(made, str):
        return made
    cells, work = made
    time = _time(row, work)
    if time is None:
        return "no time and no rate"
    taken = {"time_us": time, "condition": families.condition(row.raw), "source": families.provenance(row.raw)}
    return Converted(kind, {**cells, **taken}, "quantization" in row["notes"])


#: The cells that describe a kernel, and its FLOP.
_Made = tuple[dict[str, str], float]


def _gemm(row: Cells, gpu: Gpu) -> _Made:
    sizes = {"m": row.count("m"), "n": row.count("n"), "k": row.count("k"), "batch": row.count("batch", 1)}
    work = 2.0 * sizes["m"] * sizes["n"] * sizes["k"] * sizes["batch"]
    cells = {
        "family": families.gemm_family(row.raw, gpu.vendor),
        "dtype": families.dtype_of(row.raw),
        "scaling": families.scaling_of(row.raw),
        "layout": _layout(row),
        "accumulate": str(int(row.flag("accumulate"))),
        "out_bytes": str(WORDS["out_bytes"].get(row["out_dtype"], 2)),
        **{name: str(size) for name, size in sizes.items()},
        "tile": families.tile_of(row["kernel"]),
        "split_k": families.split_of(row["kernel"]),
    }
    return cells, work * (3.0 if kind_of(row["op"]) == "gemm_step" else 1.0)


def _layout(row: Cells) -> str:
    word = row["layout"].upper() or "TN"
    if word not in ("TN", "NN", "NT", "TT"):
        row.wrong("layout", "TN, NN, NT or TT")
    return word


def _attention(row: Cells, gpu: Gpu) -> _Made:
    queries, width = row.count("seq_q"), row.count("head_dim_qk")
    sizes = {
        "batch": row.count("batch", 1),
        "heads": row.count("heads_q"),
        "kv_heads": row.count("heads_kv", row.count("heads_q")),
        "seq_q": queries,
        "seq_k": row.count("seq_k", queries),
        "head_dim_qk": width,
        "head_dim_v": row.count("head_dim_v", width),
    }
    backward, causal = row["op"] == "attn_bwd", row.flag("causal")
    work = 2.0 * sizes["batch"] * sizes["heads"] * queries * sizes["seq_k"] * (width + sizes["head_dim_v"])
    work *= 2.5 if backward else 1.0
    if row["flops_convention"] == "causal half" or (causal and not row["flops_convention"]):
        work /= 2.0
    cells = {
        "family": families.attention_family(row.raw, gpu.vendor, gpu.arch),
        "dtype": families.dtype_of(row.raw),
        "backward": str(int(backward)),
        "causal": str(int(causal)),
        **{name: str(size) for name, size in sizes.items()},
    }
    return cells, work


def _grouped(row: Cells, _: Gpu) -> _Made | str:
    layout: str = WORDS["grouped_layouts"][row["op"].removeprefix("grouped_gemm_")]
    groups, wide, deep = row.count("num_groups"), row.count("n"), row.count("k")
    per_group, total = row.positive("m_per_group"), row.positive("m_total")
    rows = int(groups * per_group) if per_group else int(total or 0)
    if rows < 1:
        return "no rows stated"
    accumulate = layout == "NT" and row.flag("accumulate")
    scaling = "blockwise" if "DeepGEMM" in row["library"] else families.scaling_of(row.raw)
    cells = {
        "family": families.family(row["library"]),
        "dtype": families.dtype_of(row.raw),
        "scaling": scaling,
        "layout": layout,
        "accumulate": str(int(accumulate)),
        "out_bytes": str(WORDS["out_bytes"].get(row["main_grad_dtype"], 2) if accumulate else 2),
        "backend": families.backend(row["library"]),
        "groups": str(groups),
        "rows": str(rows),
        **({"n": str(deep), "k": str(wide)} if layout == "NN" else {"n": str(wide), "k": str(deep)}),
    }
    return cells, 2.0 * rows * wide * deep


def _time(row: Cells, work: float) -> str | None:
    """Returns microseconds as text of six digits: as stated, else from the rate, else from the source's value."""
    time, rate = row.positive("time_us"), row.positive("tflops")
    if time is None and rate is None and row["metric"] in ("time_us", "tflops"):
        value = row.positive("value")
        time, rate = (value, None) if row["metric"] == "time_us" else (None, value)
    if time is None and rate is not None:
        time = work / rate * 1e-6
    return None if time is None else f"{time:.6g}"


_MAKE: Mapping[str, Callable[[Cells, Gpu], _Made | str]] = {
    "gemm": _gemm,
    "gemm_step": _gemm,
    "attention": _attention,
    "grouped": _grouped,
}
