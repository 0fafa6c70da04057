"""Fit the kernel constants of each GPU on its measured tables and write them, with their errors, into its efficiency
file.

    python tools/fit_kernel_constants.py [GPU...]

Few parameters per kernel class, robust loss on log time, a weak pull to the prior. Every error printed is held out:
whole (n, k) groups of GEMMs, whole (sequence, head_dim) groups of attention, whole (n, k, groups) of grouped GEMMs
are left out in turn. ``low`` and ``high`` are the value ± two jackknife standard errors over the same folds. Needs
scipy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml
from scipy.optimize import least_squares

from projector.frameworks.types import Execution
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import load, parse
from projector.hardware.types import Efficiency, Gpu, Parameter
from projector.kernels.simulate import Simulated
from projector.kernels.tables import Measured, read
from projector.operators.types import Attention, Gemm, GroupedGemm

Array = npt.NDArray[np.float64]
FOLDER = Path(__file__).resolve().parents[1] / "projector" / "hardware" / "efficiency"
TABLES = Path(__file__).resolve().parents[1] / "measured" / "kernels"
HOST_FREE = (
    12.0  # microseconds that a few small kernels can take on a device; figures timed through a framework hold more
)
# The best-measured device of an architecture speaks for its siblings in all but BF16 GEMMs, where each board's power
# decides.
REFERENCE = {
    "a100_pcie_80gb": "ampere",
    "h100_sxm": "hopper",
    "b200": "blackwell",
    "gb300": "blackwell_ultra",
    "mi300x": "gfx942",
    "mi355x": "gfx950",
}
FEW, WORST = 12, 0.2  # a fit of fewer rows than FEW with a held-out error above WORST is worth less than its prior
ROWS = 1000  # per fit; a table of 15 000 neighbours carries no more information

# name: (prior, lowest, highest)
GEMM = {
    "gemm.loop": (0.85, 0.3, 1.0),
    "gemm.prologue_us": (3.0, 0.0, 14.0),
    "gemm.launch_us": (3.0, 1.0, 10.0),
    "gemm.waves": (0.4, 0.0, 1.0),
    "gemm.small_tile": (30.0, 0.0, 400.0),
    "gemm.exposed": (0.3, 0.15, 1.0),  # no table without accumulating rows can show that output costs nothing
    "gemm.memory": (0.75, 0.45, 0.95),
}
GEMM_FEW = {name: GEMM[name] for name in ("gemm.loop",)}
ATTENTION = {
    "loop": (0.75, 0.3, 1.0),
    "overlap": (0.6, 0.0, 1.0),
    "prologue_us": (4.0, 0.0, 40.0),
    "launch_us": (6.0, 1.0, 40.0),
    "waves": (0.4, 0.0, 1.0),
    "softmax": (1.2, 0.3, 3.0),
}
GROUPED = {
    "grouped.loop": (1.0, 0.5, 1.4),
    "grouped.group_us": (1.0, 0.1, 6.0),
    "grouped.issue_us": (6.0, 0.0, 20.0),
    "grouped.memory": (0.8, 0.5, 0.95),
    "grouped.exposed": (0.4, 0.0, 1.0),
}


@dataclass(frozen=True)
class Set:
    """One fit: rows of one kernel class and the keys that its parameters are written to (prior, lowest, highest)."""

    title: str
    rows: tuple[Measured, ...]
    family: str
    keys: Mapping[str, tuple[float, float, float]]
    group: Callable[[Measured], object]


@dataclass(frozen=True)
class Outcome:
    title: str
    values: Mapping[str, Parameter]
    heldout: Array
    flops: Array


def main(names: Sequence[str]) -> None:
    for name in names or sorted(p.name for p in TABLES.iterdir() if p.is_dir()):
        device, base = catalogue_gpu(name), unfitted(name)
        rows = read(TABLES / name)
        fitted: dict[str, Parameter] = {}
        for make in (gemm_sets, attention_sets, grouped_sets):
            sets = make(rows)
            for each in sets:
                outcome = fit(each, device, Efficiency(gpu=name, parameters={**base.parameters, **fitted}))
                kept = len(each.rows) >= FEW or float(np.abs(outcome.heldout).mean()) <= WORST
                fitted.update(outcome.values if kept else {})
                print(f"{name:15s} {report(outcome)}{'' if kept else '  not kept'}", flush=True)
        shared = {
            k: p for k, p in fitted.items() if name in REFERENCE and not (k.startswith("gemm.") and k.endswith(".bf16"))
        }
        store(REFERENCE.get(name, name), shared)
        store(name, {k: p for k, p in fitted.items() if k not in shared})


def unfitted(name: str) -> Efficiency:
    """The GPU's parameters without those of an earlier run, so that a fit does not start from its own result."""
    earlier = {k for stem in (name, REFERENCE.get(name, name)) for k, p in stored(stem).items() if p.kind == "fitted"}
    return Efficiency(gpu=name, parameters={k: p for k, p in load(name).parameters.items() if k not in earlier})


def stored(stem: str) -> Mapping[str, Parameter]:
    path = FOLDER / f"{stem}.yaml"
    return parse(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else {}


# Which library's figures become the device's constants for every family that has none of its own.
GENERAL = (
    ("cublaslt", "bf16", ""),
    ("hipblaslt", "bf16", ""),
    ("cublaslt", "fp8", "tensorwise"),
    ("flydsl", "fp8", "rowwise"),
    ("ck", "fp8", "blockwise"),
    ("deepgemm", "fp8", "blockwise"),
    ("asm", "mxfp4", "mxfp4"),
    ("cublaslt", "fp4", ""),
    ("hipkittens", "mxfp8", "mxfp8"),
)


def gemm_sets(rows: Sequence[Measured]) -> list[Set]:
    chosen: dict[tuple[str, str, str], list[Measured]] = {}
    for row in rows:
        if isinstance(row.op, Gemm):
            dtype = "bf16" if row.op.dtype == "fp16" else row.op.dtype
            chosen.setdefault((row.family, dtype, row.op.scaling), []).append(row)
    sets = []
    for (family, dtype, scaling), few in sorted(chosen.items()):
        general = (family, dtype, scaling) in GENERAL
        big = [r for r in few if r.op.flops > 1e11] if len(few) < 40 else few  # type: ignore[union-attr]
        if (len(few) < 40 and not general) or len(big) < 3:
            continue
        plain = scaling == dtype or (general and scaling in ("rowwise", "tensorwise"))
        tail = ".".join(word for word in ("" if general else family, dtype, "" if plain else scaling) if word)
        names = GEMM if len(few) >= 40 else GEMM_FEW
        sets.append(
            Set(
                f"gemm {family} {dtype} {scaling}", tuple(big), family, {f"{n}.{tail}": p for n, p in names.items()}, nk
            )
        )
    return sets


def nk(row: Measured) -> object:
    return (row.op.n, row.op.k, row.op.layout) if isinstance(row.op, Gemm) else None


def attention_sets(rows: Sequence[Measured]) -> list[Set]:
    chosen: dict[tuple[str, str, bool, int], list[Measured]] = {}
    for row in rows:
        if isinstance(row.op, Attention):
            dtype = "bf16" if row.op.dtype == "fp16" else row.op.dtype
            dim = row.op.head_dim_qk if row.op.head_dim_qk != row.op.head_dim_v else 0
            chosen.setdefault((row.family, dtype, row.op.backward, dim), []).append(row)
    sets = []
    for (family, dtype, backward, dim), few in sorted(chosen.items()):
        if len(few) < 3:
            continue
        stem = f"attention.{'backward' if backward else 'forward'}"
        tail = f"{family}.{dtype}" + (f".d{dim}" if dim else "")
        names = ATTENTION if len(few) > 12 else {n: p for n, p in ATTENTION.items() if n not in ("waves", "softmax")}
        if len(few) < 5:
            names = {"loop": ATTENTION["loop"]}
        if all(row.condition == "framework average" for row in few):
            names = {**names, "launch_us": (6.0, 1.0, 90.0)}
        keys = {f"{stem}.{n}.{tail}": p for n, p in names.items()}
        sets.append(Set(f"{stem} {tail}", tuple(few), family, keys, lists))
    return sets


def lists(row: Measured) -> object:
    return (row.op.seq_q, row.op.heads * row.op.batch, row.op.head_dim_v) if isinstance(row.op, Attention) else None


def grouped_sets(rows: Sequence[Measured]) -> list[Set]:
    chosen: dict[str, list[Measured]] = {}
    for row in rows:
        if isinstance(row.op, GroupedGemm):
            chosen.setdefault(row.op.backend, []).append(row)
    sets = []
    for backend, few in sorted(chosen.items()):
        layouts = sorted({row.op.layout for row in few if isinstance(row.op, GroupedGemm)})
        keys = {f"grouped.loop.{backend}.{layout}": GROUPED["grouped.loop"] for layout in layouts}
        keys[f"grouped.group_us.{backend}"] = GROUPED["grouped.group_us"]
        if len(few) >= 40:
            keys |= {f"{n}.{backend}": GROUPED[n] for n in ("grouped.memory", "grouped.exposed")}
        if all(row.condition == "framework average" for row in few):
            keys[f"grouped.issue_us.{backend}"] = GROUPED["grouped.issue_us"]
        group: Callable[[Measured], object] = lambda row: (row.op.flops, getattr(row.op, "groups", 0))  # type: ignore[union-attr]  # noqa: E731
        sets.append(Set(f"grouped {backend}", tuple(few), "", keys, group))
    return sets


def fit(data: Set, device: Gpu, base: Efficiency) -> Outcome:
    times = np.array([row.seconds for row in data.rows])
    groups = [data.group(row) for row in data.rows]
    order = {g: i for i, g in enumerate(sorted(set(groups), key=repr))}
    label = np.array([order[g] for g in groups])
    shuffled = np.random.default_rng(7).permutation(len(order))
    fold = shuffled[label] % min(5, len(order))
    everything = np.arange(len(times))
    values = solve(data, times, everything, device, base)
    heldout, folds = np.zeros(len(times)), []
    for number in range(fold.max() + 1):
        kept, left = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        found = solve(data, times, kept if len(kept) else left, device, base)
        heldout[left] = predict(data, found, left, device, base) / times[left] - 1.0
        folds.append(found)
    flops = np.array([row.op.flops for row in data.rows])  # type: ignore[union-attr]
    return Outcome(data.title, parameters(data, values, np.array(folds), heldout), heldout, flops)


def predict(data: Set, values: Array, which: npt.NDArray[np.intp], device: Gpu, base: Efficiency) -> Array:
    overlay = {key: Parameter(float(v), "fitted", "") for key, v in zip(data.keys, values, strict=True)}
    efficiency = Efficiency(gpu=device.name, parameters={**base.parameters, **overlay})
    execution = Execution(gemm_family=data.family, attention_family=data.family)
    return Simulated(device, efficiency, execution).times([data.rows[i].op for i in which]).seconds


def solve(data: Set, times: Array, which: npt.NDArray[np.intp], device: Gpu, base: Efficiency) -> Array:
    if len(which) > ROWS:
        which = np.random.default_rng(1).choice(which, ROWS, replace=False)
    prior, low, high = np.array(list(data.keys.values())).T
    start = (prior - low) / (high - low)

    def residual(unit: Array) -> Array:
        ratio = predict(data, low + (high - low) * unit, which, device, base) / times[which]
        return np.concatenate([np.log(ratio), 0.05 * (unit - start)])

    # the waves blend and the tile penalty trade against each other: more than one valley, so more than one start
    tries = [
        least_squares(residual, first, bounds=(0, 1), loss="soft_l1", f_scale=0.05, diff_step=1e-3, max_nfev=40)
        for first in (start, np.full(len(start), 0.5), np.clip(1.0 - start, 0.1, 0.9))
    ]
    return np.asarray(low + (high - low) * min(tries, key=lambda one: float(one.cost)).x)


def parameters(data: Set, values: Array, folds: Array, heldout: Array) -> dict[str, Parameter]:
    error = np.sqrt((len(folds) - 1) / len(folds) * ((folds - folds.mean(axis=0)) ** 2).sum(axis=0))
    origin = ", ".join(sorted({row.source.split(" ")[0] for row in data.rows})[:3])
    source = f"{origin}: {len(data.rows)} rows, held-out MAPE {100 * np.abs(heldout).mean():.1f} %"
    framework = all(row.condition == "framework average" for row in data.rows)
    out = {}
    for key, value, se, (_, low, high) in zip(data.keys, values, error, data.keys.values(), strict=True):
        if "issue_us" in key:  # the host that was measured, not the device
            source += f"; experts issued every {value:.1f} us"
            continue
        if framework and "launch_us" in key and value > HOST_FREE:
            text = f"{source}; the fit gives {value:.0f} us, which holds host time, so it is capped"
            out[key] = Parameter(HOST_FREE, "fitted", text, 3.0, round(float(value), 1))
            continue
        ends = (max(value - 2 * se, low), min(value + 2 * se, high))
        out[key] = Parameter(
            round(float(value), 4), "fitted", source, round(float(ends[0]), 4), round(float(ends[1]), 4)
        )
    return out


def report(outcome: Outcome) -> str:
    error = np.abs(outcome.heldout)
    parts = [f"{outcome.title:42s} n={len(error):6d}"]
    for title, least in (("all", 0.0), (">1e10", 1e10), (">1e11", 1e11)):
        some = error[outcome.flops > least]
        if len(some):
            parts.append(f"{title} {100 * some.mean():.1f} (median {100 * np.median(some):.1f}, n={len(some)})")
    return "  ".join(parts)


def store(name: str, fitted: Mapping[str, Parameter]) -> None:
    kept = {k: p for k, p in stored(name).items() if p.kind != "fitted"}
    if not fitted:
        return
    path = FOLDER / f"{name}.yaml"
    lines = [
        '# Rows of kind "fitted" are written by tools/fit_kernel_constants.py; all others by hand, and kept by it.',
        "parameters:",
    ]
    for key, p in sorted({**fitted, **kept}.items()):
        cell = {"value": p.value, "kind": p.kind, "source": p.source, "low": p.low, "high": p.high}
        text = yaml.safe_dump(
            {k: v for k, v in cell.items() if v is not None}, default_flow_style=True, width=10_000, sort_keys=False
        )
        lines.append(f"  {key}: {text.strip()}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
