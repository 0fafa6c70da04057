"""Makes a table that a user asks for in words: its specification, and the rows that it shows. Reports all mistakes at
once."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.results import BASELINE, Evaluation
from harness.evidence import csvcell
from harness.report import latex, markdown
from harness.report.spec import GROUPS, METRICS, Spec, table, values
from harness.report.table import NONE, Table
from projector.errors import InputError, Problem, raise_all, unknown
from projector.io import csv_file

if TYPE_CHECKING:
    import pandas as pd

#: The formats in which such a table may be printed; without one, as on a terminal.
FORMATS: Mapping[str, Callable[[Table], str]] = {
    "md": lambda made: "\n".join(markdown.table_lines(made)) + "\n",
    "csv": lambda made: csv_file.text(
        [column.title for column in made.columns],
        *([csvcell.shielded("" if cell == NONE else cell) for cell in row] for row in made.rows),
    ),
    "tex": lambda made: latex.render([made]),
}
USUAL = "rows,compared,coverage,mape,bias,worst,worst_row"
_WHERE = "command line"
_CONDITION = re.compile(r"\s*([^\s=!<>]+)\s*(!=|>=|<=|=|<|>)\s*(.*?)\s*$")
_NUMBERS: Mapping[str, Callable[[Any, float], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def ask(evaluation: Evaluation, by: str, metrics: str, where: Sequence[str], formats: Sequence[str] = ()) -> Table:
    """Returns the table of ``metrics`` (names of :data:`METRICS`, with commas) by columns of :data:`GROUPS` or
    configuration keys.

    ``where``: conditions such as ``precision=fp8``, ``gpu=mi3*,b200``, ``gpus>=64``; all must hold. Rows are those of
    the first predictor that is not the baseline, where neither names a predictor. ``formats``: at most one of
    :data:`FORMATS`. Raises :class:`InputError`.
    """
    rows = evaluation.frame
    known = tuple(dict.fromkeys((*GROUPS, *(key for differs in rows["differs"] for key in differs))))
    groups, wanted = _words(by), _words(metrics or USUAL)
    conditions, problems = _conditions(where, known)
    problems += format_problems(formats)
    problems += unknown("--by", groups, known)
    problems += unknown("--metric", wanted, tuple(METRICS))
    chosen = rows
    for condition in conditions:
        holds, wrong = _rows_that_meet(rows, *condition)
        problems += wrong
        chosen = chosen[holds[chosen.index]]
    raise_all(problems)
    if "predictor" not in (*groups, *(column for column, _, _ in conditions)):
        chosen = frame.part(chosen, predictor=next((n for n in evaluation.predictors if n != BASELINE), BASELINE))
    elif "predictor" not in groups and chosen["predictor"].nunique() > 1:
        groups = ["predictor", *groups]  # one figure never mixes several predictors
    if chosen.empty:
        raise InputError([Problem(_WHERE, "--where", " and ".join(where), "conditions that some row meets")])
    title = ", ".join(METRICS[name].column.title for name in wanted)
    title += f" by {', '.join(GROUPS.get(name, name) for name in groups)}" if groups else ""
    title += f", where {' and '.join(where)}" if where else ""
    spec = Spec(title=title, by=tuple(groups), metrics=tuple(wanted))
    return table(chosen if "suite" in groups else frame.once(chosen), spec)


def format_problems(words: Sequence[str]) -> list[Problem]:
    """Returns the problems of the formats asked for: at most one is allowed, and of :data:`FORMATS`."""
    wrong = unknown("--format", words, tuple(FORMATS))
    many = Problem(
        _WHERE, "--format", " ".join(words), "one format, where --by, --metric or --where asks for one table"
    )
    return wrong or ([many] if len(words) > 1 else [])


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _conditions(where: Sequence[str], known: Sequence[str]) -> tuple[list[tuple[str, str, str]], list[Problem]]:
    conditions, problems = [], []
    for text in where:
        match = _CONDITION.match(text)
        if match is None or not match[3]:
            problems.append(Problem(_WHERE, "--where", text, "COLUMN=VALUE, or with !=, <, <=, > or >="))
        else:
            problems += unknown("--where", [match[1]], known)
            conditions += [(match[1], match[2], match[3])] if match[1] in known else []
    return conditions, problems


def _rows_that_meet(rows: pd.DataFrame, name: str, relation: str, value: str) -> tuple[pd.Series[bool], list[Problem]]:
    """Returns which rows meet a condition, and a problem for each value that no row has."""
    column = values(rows, name)
    key = f"--where {name}"
    if relation in _NUMBERS:
        import pandas as pd

        numbers = pd.to_numeric(column, errors="coerce")
        try:
            return _NUMBERS[relation](numbers, float(value)), []
        except ValueError:
            return column.notna(), [Problem(_WHERE, key, value, "a number")]
    present = column.unique().tolist()
    chosen = {word.strip(): fnmatch.filter(present, word.strip()) for word in value.split(",")}
    unmatched = [pattern for pattern, found in chosen.items() if not found]
    wrong = unknown(key, unmatched, tuple(present))
    return column.isin([each for found in chosen.values() for each in found]) == (relation == "="), wrong
