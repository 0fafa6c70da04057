"""Fit all classes of a GPU on its measured tables, and write their constants into its efficiency file, keeping what was
not fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
import yaml

from harness.kernels import attention_sets, sets
from harness.kernels.fit import Outcome, Set, fit
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import load
from projector.hardware.efficiency_file import parse
from projector.hardware.types import Efficiency
from projector.io.files import write_whole, writing
from projector.kernels.tables import Measured, read, tables_dir
from projector.parameter import FIELDS, Parameter, named_unit

P = TypeVar("P")
T = TypeVar("T")
Progress = Callable[[int, int], None]

FOLDER = Path(__file__).resolve().parents[2] / "projector" / "hardware" / "efficiency"
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

KINDS: dict[str, Callable[[Sequence[Measured]], list[Set]]] = {
    "gemm": sets.gemm,
    "attention": attention_sets.sets,
    "grouped": sets.grouped,
    "stream": sets.stream,
}


@dataclass(frozen=True)
class Fitted:
    """One class of kernels: its rows, the fit, and whether the fit is worth more than the prior (``kept``)."""

    rows: tuple[Measured, ...]
    outcome: Outcome
    kept: bool


def fit_gpu(name: str, rows: Sequence[Measured], kinds: Sequence[str] = tuple(KINDS)) -> list[Fitted]:
    """Every class of the GPU that ``rows`` can fit, in order; later ones stand on the constants of earlier ones."""
    device, base = catalogue_gpu(name), unfitted(name)
    found: dict[str, Parameter] = {}
    made = []
    for kind in kinds:
        for each in KINDS[kind](rows):
            outcome = fit(each, device, Efficiency(gpu=name, parameters={**base.parameters, **found}))
            kept = len(each.rows) >= FEW or float(np.abs(outcome.heldout).mean()) <= WORST
            found.update(outcome.values if kept else {})
            made.append(Fitted(each.rows, outcome, kept))
    return made


def calibrate(
    names: Sequence[str],
    kinds: Sequence[str] = tuple(KINDS),
    write: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[tuple[str, list[Fitted]]]:
    """Fit these GPUs (all that have tables where none is named) and write their files; ``progress(done, total)`` is called
    after each GPU.

    Raises ``InputError`` for a file that cannot be written; a file is replaced whole or not at all.
    """
    chosen = list(names) or measured_gpus()
    fits = of_each(_fit_folder, chosen, [tuple(kinds)] * len(chosen), jobs, progress)
    made = list(zip(chosen, fits, strict=True))
    if write:
        for name, fitted in made:
            _write(name, kinds, {k: p for each in fitted if each.kept for k, p in each.outcome.values.items()})
    return made


def of_each(
    function: Callable[[str, P], T], names: Sequence[str], parts: Sequence[P], jobs: int, progress: Progress | None
) -> list[T]:
    """``function`` of every GPU and its part, in as many processes as ``jobs``; ``progress(done, total)`` after each."""
    found = []
    most = min(jobs, len(names))
    with ProcessPoolExecutor(max_workers=most) if most > 1 else nullcontext() as pool:
        for each in (map if pool is None else pool.map)(function, names, parts):
            found.append(each)
            if progress:
                progress(len(found), len(names))
    return found


def measured_gpus() -> list[str]:
    """GPUs with a folder of tables. Raises ``InputError`` where there is no such folder."""
    folder = tables_dir()
    if folder is None:
        raise InputError([Problem("measured/kernels", "", "no such folder", "kernel tables, one folder a GPU")])
    return sorted(p.name for p in folder.iterdir() if p.is_dir())


def _fit_folder(name: str, kinds: Sequence[str]) -> list[Fitted]:
    folder = tables_dir()
    return fit_gpu(name, read(folder / name) if folder else (), kinds)


def _write(name: str, kinds: Sequence[str], fitted: Mapping[str, Parameter]) -> None:
    shared = {k: p for k, p in fitted.items() if name in REFERENCE and is_shared(k)}
    store(REFERENCE.get(name, name), shared, kinds)
    store(name, {k: p for k, p in fitted.items() if k not in shared}, kinds)


def is_shared(key: str) -> bool:
    """Whether a constant speaks for relatives of the GPU that it was fitted on: not in BF16 GEMMs, which power decides."""
    return not (key.startswith("gemm.") and key.endswith(".bf16"))


def unfitted(name: str) -> Efficiency:
    """The GPU's parameters without those of an earlier run, so that a fit does not start from its own result."""
    earlier = {k for stem in (name, REFERENCE.get(name, name)) for k, p in stored(stem).items() if p.kind == "fitted"}
    return Efficiency(gpu=name, parameters={k: p for k, p in load(name).parameters.items() if k not in earlier})


def stored(stem: str) -> Mapping[str, Parameter]:
    path = FOLDER / f"{stem}.yaml"
    return parse(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else {}


def store(name: str, fitted: Mapping[str, Parameter], kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Write the fitted rows of one file beside those that were written by hand and those of other kinds than ``kinds``."""
    of_these = tuple(f"{kind}." for kind in kinds)
    kept = {k: p for k, p in stored(name).items() if p.kind != "fitted" or not k.startswith(of_these)}
    if not fitted:
        return
    path = FOLDER / f"{name}.yaml"
    lines = [
        '# Rows of kind "fitted" are written by `harness calibrate --kernels`; all others by hand, and kept by it.',
        "parameters:",
    ]
    for key, p in sorted({**fitted, **kept}.items()):
        cell = {name: getattr(p, name) for name in FIELDS}
        said = {"unit": named_unit(key), "scored": False}
        text = yaml.safe_dump(
            {k: v for k, v in cell.items() if v is not None and v != said.get(k)},
            default_flow_style=True,
            width=10_000,
            sort_keys=False,
        )
        lines.append(f"  {key}: {text.strip()}")
    with writing(path):
        write_whole(path, "\n".join(lines) + "\n")
