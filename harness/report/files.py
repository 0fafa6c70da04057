"""``results.csv`` and ``results.json``: written whole or not at all, and read back."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.calibration import Factor
from harness.results import COLUMNS, SCHEMA_VERSION, Evaluation, Row, RunFacts, row_from_mapping
from projector.errors import InputError, Problem

__all__ = ["Saved", "csv_text", "json_text", "read", "write_atomic"]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a ``results.json`` holds: the evaluation, its gates by suite, and its provenance."""

    evaluation: Evaluation
    gates: Mapping[str, Mapping[str, Mapping[str, float]]]
    provenance: Mapping[str, Any]


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write to a temporary name in the same folder, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def csv_text(rows: Iterable[Row]) -> str:
    """The rows as CSV with exactly ``COLUMNS``; a missing figure is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow("" if value is None else value for value in row.to_mapping().values())
    return out.getvalue()


def json_text(saved: Saved) -> str:
    """The rows plus everything a report needs to be made again: facts, factors, gates, provenance, schema version."""
    e = saved.evaluation
    document = {
        "schema_version": SCHEMA_VERSION,
        "provenance": dict(saved.provenance),
        "gates": {name: dict(gate) for name, gate in saved.gates.items()},
        "factors": [{"predictor": name, **asdict(f)} for (name, _), f in e.factors.items()],
        "laws": [{"predictor": n, "law": f.law, "scores": dict(f.scores)} for n, f in e.laws.items()],
        "fallbacks": [{"predictor": n, "run_id": i, "key": key} for (n, i), key in e.fallbacks.items()],
        "facts": [f.to_mapping() for f in e.facts.values()],
        "rows": [row.to_mapping() for row in e.rows],
    }
    return "{\n" + ",\n".join(f"{_dumps(name)}: {_block(value)}" for name, value in document.items()) + "\n}\n"


def _block(value: object) -> str:
    """A list with one item a line, so that results are small and still differ line by line."""
    return "[\n" + ",\n".join(map(_dumps, value)) + "\n]" if isinstance(value, list) else _dumps(value)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read(path: Path) -> Saved:
    """A ``results.json``, or the folder that holds it. InputError where it is neither, or of another schema version."""
    source = path / "results.json" if path.is_dir() else path
    document = _document(source)
    try:
        return _saved(document)
    except (KeyError, TypeError, ValueError) as error:
        expected = f"a results.json that `harness run` wrote ({type(error).__name__}: {error})"
        raise InputError([Problem(str(source), "", "other content", expected)]) from None


def _document(source: Path) -> dict[str, Any]:
    try:
        document = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError([Problem(str(source), "", "no such file", "a results.json")]) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError([Problem(str(source), "", str(error), "a results.json")]) from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError([Problem(str(source), "schema_version", version, str(SCHEMA_VERSION))])
    return dict(document)


def _saved(document: Mapping[str, Any]) -> Saved:
    facts = [
        RunFacts(**{**f, "assumed": tuple(f["assumed"]), "switches": tuple(f["switches"])}) for f in document["facts"]
    ]
    factors = {(f["predictor"], f["key"]): _factor(f) for f in document["factors"]}
    evaluation = Evaluation(
        rows=tuple(row_from_mapping(row) for row in document["rows"]),
        facts={f.run_id: f for f in facts},
        factors=factors,
        fallbacks={(f["predictor"], f["run_id"]): f["key"] for f in document["fallbacks"]},
    )
    return Saved(evaluation=evaluation, gates=document["gates"], provenance=document["provenance"])


def _factor(mapping: Mapping[str, Any]) -> Factor:
    return Factor(**{k: v for k, v in mapping.items() if k != "predictor"})
