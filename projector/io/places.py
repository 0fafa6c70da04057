"""Data beside the code: found near the working directory first, then in the checkout, then as a wheel carries it."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def nearest_folder(name: str, packaged: Path, start: Path | None = None) -> Path | None:
    """The folder ``name`` (``measured/kernels``) at or above ``start`` (default: the working directory), else in the
    checkout, else ``packaged``, where an installed package has it; None where there is none of them."""
    here = (start or Path.cwd()).resolve()
    places = [*(folder / name for folder in (here, *here.parents, _ROOT)), packaged]
    return next((place for place in places if place.is_dir()), None)
