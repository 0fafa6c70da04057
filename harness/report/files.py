"""Writes ``results.csv`` and ``results.json`` whole or not at all, and reads them back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.contracts.results import (
    COLUMNS,
    FITS,
    GONE,
    RENAMED,
    SCHEMA_VERSION,
    SINCE,
    STATUSES,
    Evaluation,
    Row,
    RunFacts,
    parted,
)
from harness.evidence import csvcell
from harness.score.gate import parse_limits
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all
from projector.io import csv_file
from projector.io.documents import as_mapping, parse_json
from projector.io.files import read_text
from projector.io.typed import type_problems

# Enough to tell two projections apart, few enough that another machine's last bit changes nothing.
DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The content of a ``results.json``: the evaluation, its gates by suite, and its provenance."""

    evaluation: Evaluation
    gates: Mapping[str, Mapping[str, Mapping[str, float]]]
    provenance: Mapping[str, Any]


def csv_text(rows: Iterable[Row]) -> str:
    """Returns the rows as CSV with exactly ``COLUMNS``; a missing figure is an empty cell, no text is a formula."""
    return csv_file.text(COLUMNS, *(map(csvcell.shielded, row.to_mapping().values()) for row in rows))


def rounded(row: Row) -> Row:
    """Returns the row as every machine gives it: figures to :data:`DIGITS` significant digits, without projection time."""
    values = row.to_mapping().items()
    short: dict[str, Any] = {name: float(f"{v:.{DIGITS}g}") for name, v in values if isinstance(v, float)}
    return replace(row, **{**short, "seconds_to_project": None})


def json_text(saved: Saved) -> str:
    """Returns the rows and all that a report needs to be made again: facts, gates, provenance, schema version."""
    e = saved.evaluation
    document = {
        "schema_version": SCHEMA_VERSION,
        "provenance": dict(saved.provenance),
        "gates": {name: dict(gate) for name, gate in saved.gates.items()},
        "facts": [f.to_mapping() for f in e.facts.values()],
        "rows": [row.to_mapping() for row in e.every],
    }
    # lists have one item a line, so that results are small and still differ line by line
    texts = {
        name: "[\n" + ",\n".join(map(_dumps, value)) + "\n]" if isinstance(value, list) else _dumps(value)
        for name, value in document.items()
    }
    return "{\n" + ",\n".join(f"{_dumps(name)}: {text}" for name, text in texts.items()) + "\n}\n"


def _dumps(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InputError([Problem("results", "", "a figure without end", "finite figures")]) from None


def read(path: Path) -> Saved:
    """Reads a ``results.json``, or the folder that holds it. Raises :class:`InputError` where it is neither, or of
    another schema version."""
    source = path / "results.json" if path.is_dir() else path
    document = parse_json(read_text(source, "a results.json"), str(source), "a results.json")
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version not in range(1, SCHEMA_VERSION + 1):
        raise InputError([Problem(str(source), "schema_version", version, f"1 to {SCHEMA_VERSION}")])
    document = dict(document)
    try:
        saved = _saved(document)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        expected = f"a results.json that `harness run` wrote ({type(error).__name__}: {error})"
        raise InputError([Problem(str(source), "", "other content", expected)]) from None
    raise_all(_problems(saved, str(source)))
    return saved


def rows(path: Path) -> tuple[Row, ...]:
    """Returns the rows of a ``results.csv``, or of what :func:`read` takes, doubted ones too. Raises :class:`InputError`
    for missing columns and wrong cells."""
    if path.suffix != ".csv":
        return read(path).evaluation.every
    columns, lines = csv_file.read(path, "a results.csv that `harness run` wrote")
    missing = [name for name in COLUMNS if name not in columns and name not in SINCE]
    if missing:
        raise InputError(
            [Problem(str(path), name, "no such column", "the columns of a results.csv") for name in missing]
        )
    return tuple(row for row in csvcell.parsed(Row, lines, str(path)) if row.fit not in GONE)


def _problems(saved: Saved, where: str) -> list[Problem]:
    """Returns the problems of a file that somebody changed: wrong types, unknown words, runs without facts."""
    e = saved.evaluation
    wrong: list[Problem] = []
    for i, row in enumerate(e.every):
        wrong += type_problems(row, where, f"rows[{i}].")
        for name, known in (("fit", FITS), ("status", STATUSES)):
            if getattr(row, name) not in known:
                wrong.append(Problem(where, f"rows[{i}].{name}", getattr(row, name), f"one of {', '.join(known)}"))
        if isinstance(row.run_id, str) and row.run_id not in e.facts:
            wrong.append(Problem(where, f"rows[{i}].run_id", row.run_id, "a run among the facts"))
        if isinstance(row.error, (int, float)) and not -1.0 < row.error < float("inf"):
            wrong.append(Problem(where, f"rows[{i}].error", row.error, "projected over measured throughput, less one"))
    for i, facts in enumerate(e.facts.values()):
        wrong += type_problems(facts, where, f"facts[{i}].")
    gates: Mapping[str, object] = saved.gates
    for name, limits in gates.items():
        if not isinstance(limits, Mapping):
            wrong.append(Problem(where, f"gates.{name}", limits, "a mapping of modes"))
            continue
        wrong += [p for mode, asked in limits.items() for p in parse_limits(asked, where, f"gates.{name}.{mode}")[1]]
    return wrong


def _saved(document: Mapping[str, Any]) -> Saved:
    facts = [
        RunFacts(**{**f, "assumed": tuple(f["assumed"]), "switches": tuple(f["switches"])}) for f in document["facts"]
    ]
    sound, doubted = parted(
        Row(**{**row, "fit": RENAMED.get(row["fit"], row["fit"])}) for row in document["rows"] if row["fit"] not in GONE
    )
    evaluation = Evaluation(rows=sound, doubted=doubted, facts={f.run_id: f for f in facts})
    return Saved(
        evaluation=evaluation,
        gates=as_mapping(document["gates"], "gates"),
        provenance=as_mapping(document["provenance"], "provenance"),
    )
