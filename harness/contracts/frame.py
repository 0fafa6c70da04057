"""The result rows as one pandas frame: a line for each run × predictor × fit, with the columns of ``results.csv`` and
the facts of the run. Every figure of a report is a pure function of such a frame or of a part of it. pandas is imported
when a frame is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.contracts.results import Row, RunFacts

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {"str": "object", "int": "int64", "bool": "bool", "float | None": "float64", "str | None": "object"}

#: The columns that identify a row.
KEY = ("run_id", "predictor", "fit")
#: The columns of a cell: a macro average weighs all rows of one cell as one.
CELL = ("family", "gpu", "framework")
#: Columns that are facts of the run. ``assumptions``: ``with`` or ``none`` of the importer's.
FACTS = {f.name: _DTYPES.get(str(f.type), "object") for f in fields(RunFacts) if f.name not in ("run_id", "assumed")}
#: dtype by column: texts are ``object`` (empty where there is none), figures ``float64`` (NaN where there is none).
#: ``cell``: a number a cell.
SCHEMA = {**{f.name: _DTYPES[str(f.type)] for f in fields(Row)}, **FACTS, "assumptions": "object", "cell": "int64"}


def of(rows: Iterable[Row], facts: Mapping[str, RunFacts] | None = None) -> pd.DataFrame:
    """Returns a frame of :data:`SCHEMA` with the ``rows`` in their order. Raises KeyError for a run that ``facts``
    lacks. ``facts`` None: nothing is known but the rows, as of a ``results.csv``."""
    import pandas as pd

    rows = tuple(rows)
    known = [RunFacts(run_id=row.run_id) if facts is None else facts[row.run_id] for row in rows]
    columns: dict[str, list[Any]] = {f.name: [getattr(row, f.name) for row in rows] for f in fields(Row)}
    columns |= {name: [getattr(fact, name) for fact in known] for name in FACTS}
    columns["memory_kind"] = [fact.memory_kind or "" for fact in known]
    cells: dict[tuple[str, ...], int] = {}
    columns["cell"] = [cells.setdefault(tuple(getattr(row, name) for name in CELL), len(cells)) for row in rows]
    columns["assumptions"] = ["with" if fact.assumed else "none" for fact in known]
    return pd.DataFrame({name: pd.Series(columns[name], dtype=dtype) for name, dtype in SCHEMA.items()})


def lines(rows: pd.DataFrame) -> Iterator[Any]:
    """Yields the rows of a frame one by one with their columns as attributes; ``Index`` is the row's label in the frame."""
    names = ("Index", *rows.columns)
    for values in zip(rows.index, *(rows[name] for name in rows.columns), strict=True):
        yield SimpleNamespace(**dict(zip(names, values, strict=True)))


def table(lines: Sequence[tuple[Any, ...]], names: Sequence[str]) -> pd.DataFrame:
    """Returns a small frame of figures, one row for each tuple in ``lines``, with the columns ``names``."""
    import pandas as pd

    return pd.DataFrame(list(lines), columns=list(names))


def once(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns each run × predictor × fit once, first occurrence kept: a run that two suites select counts once."""
    return rows.drop_duplicates(list(KEY))


def part(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Returns the rows that have all these values, such as ``predictor="simulate", fit="heldout"``."""
    chosen = np.ones(len(rows), dtype=bool)
    for name, value in values.items():
        chosen &= rows[name].to_numpy() == value
    return rows[chosen]


def parts(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yields the rows in groups of equal values in the columns ``by``, each as (values, rows), in order of first
    appearance; without columns, all rows under ``()``."""
    if by:
        yield from ((tuple(key), group) for key, group in rows.groupby(list(by), sort=False))
    else:
        yield (), rows


def configured(rows: pd.DataFrame, key: str, usual: str = "") -> pd.Series[Any]:
    """Returns a ``key`` of the runs' configurations as a column of text. Where a run does not state the key: ``usual``
    if its configuration is complete, else empty."""
    import pandas as pd

    stated = zip(rows["differs"], rows["complete"], strict=True)
    return pd.Series([d.get(key, usual if whole else "") for d, whole in stated], index=rows.index, dtype="object")
