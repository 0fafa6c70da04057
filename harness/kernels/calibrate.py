"""Fits all classes of a GPU on its measured tables, and writes their constants into its efficiency file, keeping the
parameters that were not fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

import numpy as np
import yaml

from harness.kernels import sets
from harness.kernels.fit import Outcome, Set, fit
from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.efficiency import load
from projector.hardware.efficiency_file import FOLDER, stored
from projector.hardware.types import Efficiency
from projector.io.files import write_whole, writing
from projector.kernels.tables import Measured, read, tables_dir
from projector.parameter import FIELDS, Parameter, named_unit

P = TypeVar("P")
T = TypeVar("T")
Progress = Callable[[int, int], None]

# The best-measured device of an architecture gives its siblings all constants but those of BF16 GEMMs, which depend on
# each board's power.
REFERENCE = {
    "a100_pcie_80gb": "ampere",
    "h100_sxm": "hopper",
    "b200": "blackwell",
    "gb300": "blackwell_ultra",
    "mi300x": "gfx942",
    "mi355x": "gfx950",
}
FEW, WORST = 12, 0.2  # a fit of fewer rows than FEW with a held-out error above WORST is dropped for its prior

KINDS: dict[str, Callable[[Sequence[Measured]], list[Set]]] = {
    "gemm": sets.gemm,
    "attention": sets.attention,
    "grouped": sets.grouped,
    "stream": sets.stream,
}


@dataclass(frozen=True)
class Fitted:
    """One class of kernels: its rows, the fit, and whether the fit replaces the prior (``kept``)."""

    rows: tuple[Measured, ...]
    outcome: Outcome
    kept: bool


def fit_gpu(name: str, rows: Sequence[Measured], kinds: Sequence[str]) -> list[Fitted]:
    """Fits every class of the GPU for which ``rows`` suffice, in order; later ones use the constants of earlier ones."""
    device, base = catalogue_gpu(name), unfitted(name)
    constants: dict[str, Parameter] = {}
    fits = []
    for kind in kinds:
        for data in KINDS[kind](rows):
            outcome = fit(data, device, Efficiency(gpu=name, parameters={**base.parameters, **constants}))
            better = len(data.rows) >= FEW or float(np.abs(outcome.heldout).mean()) <= WORST
            constants.update(outcome.values if better else {})
            fits.append(Fitted(data.rows, outcome, better))
    return fits


def calibrate(
    names: Sequence[str],
    kinds: Sequence[str] = tuple(KINDS),
    write: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[tuple[str, list[Fitted]]]:
    """Fits these GPUs (all that have tables where none is named) and writes their files; ``progress(done, total)`` is
    called after each GPU. Raises ``InputError`` for a file that cannot be written; a file is replaced whole or not at
    all."""
    chosen = list(names) or measured_gpus()
    fits = of_each(_fit_folder, chosen, [tuple(kinds)] * len(chosen), jobs, progress)
    by_gpu = list(zip(chosen, fits, strict=True))
    if write:
        for name, fitted in by_gpu:
            kept = {k: p for fit in fitted if fit.kept for k, p in fit.outcome.values.items()}
            shared = {k: p for k, p in kept.items() if name in REFERENCE and is_shared(k)}
            store(REFERENCE.get(name, name), shared, kinds)
            store(name, {k: p for k, p in kept.items() if k not in shared}, kinds)
    return by_gpu


def of_each(
    function: Callable[[str, P], T], names: Sequence[str], parts: Sequence[P], jobs: int, progress: Progress | None
) -> list[T]:
    """Returns ``function`` of every GPU and its part, from up to ``jobs`` processes; ``progress(done, total)`` after
    each."""
    results = []
    most = min(jobs, len(names))
    with ProcessPoolExecutor(max_workers=most) if most > 1 else nullcontext() as pool:
        for result in (map if pool is None else pool.map)(function, names, parts):
            results.append(result)
            if progress:
                progress(len(results), len(names))
    return results


def measured_gpus() -> list[str]:
    """Returns the GPUs with a folder of tables. Raises ``InputError`` where there is no such folder."""
    folder = tables_dir()
    if folder is None:
        raise InputError([Problem("measured/kernels", "", "no such folder", "kernel tables, one folder a GPU")])
    return sorted(p.name for p in folder.iterdir() if p.is_dir())


def _fit_folder(name: str, kinds: Sequence[str]) -> list[Fitted]:
    folder = tables_dir()
    return fit_gpu(name, read(folder / name) if folder else (), kinds)


def is_shared(key: str) -> bool:
    """Tells whether a constant is valid for relatives of its GPU: not in BF16 GEMMs, which power decides."""
    return not (key.startswith("gemm.") and key.endswith(".bf16"))


def unfitted(name: str) -> Efficiency:
    """Returns the GPU's parameters without those of an earlier run, so that a fit does not start from its own result."""
    files = {FOLDER / f"{stem}.yaml" for stem in (name, REFERENCE.get(name, name))}
    earlier = {k for path in files for k, p in stored(path).items() if p.kind == "fitted"}
    return Efficiency(gpu=name, parameters={k: p for k, p in load(name).parameters.items() if k not in earlier})


def store(name: str, fitted: Mapping[str, Parameter], kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Writes the fitted rows of one file beside those that were written by hand and those of other kinds than ``kinds``."""
    stems = tuple(f"{kind}." for kind in kinds)
    path = FOLDER / f"{name}.yaml"
    others = {k: p for k, p in stored(path).items() if p.kind != "fitted" or not k.startswith(stems)}
    if not fitted:
        return
    lines = [
        '# Rows of kind "fitted" are written by `harness calibrate --kernels`; all others by hand, and kept by it.',
        "parameters:",
    ]
    for key, p in sorted({**fitted, **others}.items()):
        cell = {name: getattr(p, name) for name in FIELDS}
        usual = {"unit": named_unit(key), "scored": False}
        text = yaml.safe_dump(
            {k: v for k, v in cell.items() if v is not None and v != usual.get(k)},
            default_flow_style=True,
            width=10_000,
            sort_keys=False,
        )
        lines.append(f"  {key}: {text.strip()}")
    with writing(path):
        write_whole(path, "\n".join(lines) + "\n")
