"""Tables as specifications: metrics by groups of rows, or columns over any list of values. No renderer is known here.
``tables.yaml`` beside this file has them all. A :class:`Spec` names metrics of :data:`METRICS` and columns to group by;
:func:`table` makes the table of it from the frame of rows. A table of other values is made by :func:`tabled`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.estimates import publisher
from harness.contracts.frame import CELL
from harness.evidence import shelf
from harness.report.table import NONE, Cell, Column, Table, cells, columns, number, percent
from harness.score.figures import Figures
from projector.dataclass import dataclass
from projector.errors import truncate
from projector.io.table import SHOWN as FORMATS
from projector.io.table import cell, specified

if TYPE_CHECKING:
    import pandas as pd

NOT_STATED = "not stated"

#: Parallel sizes and sharding by recipe key: the name in a report, and the value where a recipe does not state it.
DEGREES = {
    "tp": ("TP", "1"),
    "pp": ("PP", "1"),
    "ep": ("EP", "1"),
    "cp": ("CP", "1"),
    "data_parallel_sharding": ("data-parallel sharding", "framework's own"),
}


def yes_no(value: object) -> str:
    return "yes" if value else "no"


def few(words: Sequence[str], most: int = 4) -> str:
    return ", ".join(words[:most]) + (f" +{len(words) - most}" if len(words) > most else "")


def span(ends: tuple[float, float], shown: Callable[[float], str] = percent) -> str:
    return f"{shown(ends[0])} to {shown(ends[1])}"


#: The goal of interval coverage: nine of ten measurements inside their 90 % interval, within five points.
GOAL = (0.85, 0.95)


def _some(value: Any) -> str:
    return str(value) if value else NONE


def _ends(shown: Callable[[float], str]) -> Callable[[tuple[float, float]], str]:
    return partial(span, shown=shown)


#: The ways in which ``as`` of an entry of ``tables.yaml`` shows a value; a text with a brace is a format.
SHOWN: Mapping[str, Callable[[Any], str]] = {
    **FORMATS,
    **{f.__name__: f for f in (yes_no, few, span)},
    "percent2": partial(percent, digits=2),
    "number_span": _ends(number),
    "whole": "{:,.0f}".format,
    "thousands": lambda value: f"{value / 1e3:,.0f}",
    "thousands_span": _ends(lambda value: f"{value / 1e3:,.0f}"),
    "points": lambda value: f"{100 * value:.2f}",
    "more_points": lambda value: f"{100 * value:+.2f}",
    "points_span": _ends(lambda value: f"{100 * value:+.1f}"),
    "more_ms": lambda seconds: f"{1e3 * seconds:+.2f}",
    "micro": lambda seconds: f"{1e6 * seconds:.4g}",
    "micro1": lambda seconds: f"{1e6 * seconds:.1f}",
    "count": lambda items: str(len(items)),
    "count_some": lambda items: _some(len(items)),
    "some": _some,
    "some_bare": lambda value: str(value or ""),
    "cut": partial(truncate, most=28),
    "kinds": lambda names: few(names, 3) or NONE,
    "order": lambda of: f"{number(of.tau)} ({of.groups})",
    "against_goal": lambda macro: "below" if macro < GOAL[0] else "above" if macro > GOAL[1] else "yes",
}

_FILE: Mapping[str, Any] = shelf.data("report/tables.yaml")


def tabled(key: str, items: Iterable[Any], /, **known: Any) -> Table:
    """Returns the table ``key`` of ``tables.yaml``, a line an item; ``known``: what its entry names (as ``specified``)."""
    return specified(_FILE["tables"][key], items, known, SHOWN)


#: The figures that a table may show of the rows of one line. Held out, where nothing else is said.
METRICS: Mapping[str, Cell] = {name: cell(said, formats=SHOWN) for name, said in _FILE["metrics"].items()}

#: The errors that kernel models must reach, as values.
GOALS: Sequence[Mapping[str, Any]] = _FILE["goals"]

#: Properties of rows, in words, as expressions over their columns.
PROPERTIES: Mapping[str, str] = _FILE["properties"]

#: Columns that rows may be grouped by, with their titles; keys of a configuration may be, too.
GROUPS: Mapping[str, str] = {**_FILE["groups"], **{key: words for key, (words, _) in DEGREES.items()}}


#: Lines of a table: the words in front of each, and its rows.
Parts = Iterable[tuple[tuple[str, ...], "pd.DataFrame"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A table as data. ``by``: keys of :data:`GROUPS` or of configurations. ``metrics``: keys of :data:`METRICS`; one
    may end with ``?`` (a minor column; the more of them, the sooner it goes) and with ``:`` and a title of its own.
    ``needs``: a line without this metric is left out, and named below the table. ``title``: ``{predictor}`` is filled
    in."""

    title: str
    by: tuple[str, ...]
    metrics: tuple[str, ...]
    note: str = ""
    needs: str = ""
    detail: bool = False


def frozen(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an entry of ``tables.yaml`` with tuples for its lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}


SPECS: Mapping[str, Spec] = {name: Spec(**frozen(said)) for name, said in _FILE["specs"].items()}


def metric(reference: str) -> Cell:
    """Returns the column that an entry of :attr:`Spec.metrics` stands for."""
    named, _, title = reference.partition(":")
    known = METRICS[named.rstrip("?")]
    minor = len(named) - len(named.rstrip("?"))
    column = replace(known.column, minor=minor, title=title or known.column.title)
    return replace(known, column=column)


def table(
    whole: pd.DataFrame, spec: Spec, predictor: str | None = None, parts: Parts | None = None, **words: object
) -> Table:
    """Returns the table of the unique rows ``whole``; ``predictor``: of this one alone, with the others for the
    baseline. ``parts``: the lines, where the spec has no columns to group by; ``words``: of the note."""
    if parts is None:
        rows = whole if predictor is None else frame.part(whole, predictor=predictor)
        keyed = rows.assign(**{f"by {name}": values(rows, name) for name in spec.by})
        # Predictors stay in their order; all else goes by size or by name.
        parts = sorted(
            frame.parts(keyed, [f"by {name}" for name in spec.by]),
            key=lambda part: [order(v.lower()) for n, v in zip(spec.by, part[0], strict=True) if n != "predictor"],
        )
    lines = [(key, Figures(part, whole)) for key, part in parts]
    idle = [line for line in lines if spec.needs and METRICS[spec.needs](line[1]) in ("0", NONE)]
    shown = [line for line in lines if line not in idle]
    metrics = [metric(reference) for reference in spec.metrics]
    left_out = ", ".join(f"{', '.join(key)} ({f.held.rows})" for key, f in idle)
    note = spec.note.format(**words)
    return Table(
        title=spec.title.format(predictor=predictor),
        columns=(*(Column(GROUPS.get(name, name), numeric=False) for name in spec.by), *columns(metrics)),
        rows=tuple((*key, *cells(metrics, figures)) for key, figures in shown),
        note=" ".join(word for word in (note, f"Nothing to compare (rows): {left_out}." if left_out else "") if word),
        detail=spec.detail,
    )


def stacked(titles: Sequence[str], parts: Iterable[tuple[tuple[str, ...], Table]]) -> Table:
    """Joins tables of one spec into one, each line behind the words of its part, which stand under ``titles``."""
    tables = list(parts)
    columns = (*(Column(title, numeric=False) for title in titles), *tables[0][1].columns)
    return replace(
        tables[0][1], columns=columns, rows=tuple((*words, *row) for words, part in tables for row in part.rows)
    )


def order(value: str) -> tuple[int, str]:
    """Returns a sort key: degrees by size, then words by the alphabet."""
    return (int(value), "") if value.isdecimal() else (1 << 30, value)


def values(rows: pd.DataFrame, name: str) -> pd.Series[Any]:
    """Returns a column to group by, as text."""
    if name == "cell":
        column = rows[list(CELL)].replace("", NONE).agg(", ".join, axis=1) if len(rows) else rows["family"]
    elif name == "publisher":
        column = rows["source"].map(publisher)
    elif name in DEGREES:
        column = frame.configured(rows, name, DEGREES[name][1])
    elif name in rows:
        column = rows[name].astype(str)
    else:
        column = frame.configured(rows, name)
    return column.replace("", NOT_STATED)
