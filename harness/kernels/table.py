"""Loads all rows of the tables to be scored, chosen by GPU, type and family, and tells which sources the shipped
constants saw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.kernels.schema import Loaded, Row, Skipped, read
from projector.errors import InputError, Problem, collecting_into, raise_all, unknown
from projector.hardware.catalogue import find_gpu, gpu_names
from projector.kernels.tables import sources_of, tables_dir


def default_tables() -> tuple[Path, ...]:
    """Returns every table of ``measured/kernels``. Raises ``InputError`` where there is no such folder."""
    folder = tables_dir()
    if folder is None:
        raise InputError([Problem("measured/kernels", "", "no such folder", "kernel tables, or a TABLE.csv")])
    return _inside(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def _inside(path: Path) -> tuple[Path, ...]:
    """Returns the tables of a folder with one folder a GPU; of a file, the file."""
    return tuple(sorted({*path.glob("*/*.csv")} - {*path.glob("*/*.sources.csv")})) if path.is_dir() else (path,)


def load(paths: Sequence[Path], gpu: str | None = None) -> Loaded:
    """Returns the rows of all files and folders, in order; raises all mistakes of all files in one ``InputError``."""
    rows: list[Row] = []
    skipped: list[Skipped] = []
    problems: list[Problem] = []
    unique = tuple(dict.fromkeys(file for path in paths for file in _inside(path)))
    for path in unique:
        with collecting_into(problems):
            table = read(path, gpu)
            rows += table.rows
            skipped += table.skipped
    raise_all(problems)
    return Loaded(unique, tuple(rows), tuple(skipped))


def choose(
    loaded: Loaded, gpus: Sequence[str] = (), dtypes: Sequence[str] = (), families: Sequence[str] = ()
) -> Loaded:
    """Returns the rows of these GPUs, types and families (each: all where none is named). Raises ``InputError`` for
    every word that no row bears."""
    asked = [find_gpu(name) or name for name in gpus]
    problems = unknown("--gpu", asked, gpu_names())
    for option, wanted, present in (
        ("--gpu", [n for n in asked if n in gpu_names()], {row.gpu for row in loaded.rows}),
        ("--dtype", dtypes, {row.dtype for row in loaded.rows}),
        ("--family", families, {row.measured.family for row in loaded.rows}),
    ):
        problems += unknown(option, wanted, sorted(present))
    raise_all(problems)
    rows = tuple(
        row
        for row in loaded.rows
        if (not asked or row.gpu in asked)
        and (not dtypes or row.dtype in dtypes)
        and (not families or row.measured.family in families)
    )
    skipped = tuple(s for s in loaded.skipped if not asked or find_gpu(s.gpu) in asked)
    return Loaded(loaded.paths, rows, skipped)


def was_fitted(row: Row) -> bool:
    """Tells whether the shipped constants were fitted on figures of this row's source for its GPU."""
    return row.measured.source in _sources(row.gpu)


@cache
def _sources(gpu: str) -> frozenset[str]:
    folder = tables_dir()
    paths = (folder / gpu).glob("*.sources.csv") if folder else ()
    return frozenset(source for path in paths for source in sources_of(path).values())
