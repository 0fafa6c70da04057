"""Finds the project's own suites and measured runs by name, in a checkout or an installed package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, nearest
from projector.io.documents import parse_yaml
from projector.io.files import nearest_folder

# Where the build puts ``suites`` and ``measured`` in a wheel (pyproject.toml, force-include).
PACKAGED = Path(__file__).resolve().parents[1]


def folder(name: str) -> Path:
    """Returns the folder ``suites``, ``measured/runs``, …: relative where it lies in the working directory, so that no
    output names a machine; else the nearest above, that of the checkout, or that of the installed package."""
    return Path(name) if Path(name).is_dir() else nearest_folder(name, PACKAGED / name) or Path(name)


def data(name: str) -> Any:
    """Reads a YAML file of a package of the harness, such as ``report/tables.yaml``."""
    return parse_yaml((PACKAGED / name).read_text(encoding="utf-8"), name)


def suite(path: Path) -> Path:
    """Returns the file of a suite: ``path`` itself, or the project's own suite of a bare name such as ``moe``."""
    if path.suffix or os.sep in str(path) or path.is_file():
        return path
    known = {file.stem: file for file in sorted(folder("suites").glob("*.yaml"))}
    if path.name not in known:
        expected = f"a suite file, or {nearest(path.name, tuple(known))}" if known else "a suite file"
        raise InputError([Problem("command line", "SUITE", path.name, expected)])
    return known[path.name]
