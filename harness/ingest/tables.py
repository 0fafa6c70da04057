"""Reading results tables: YAML, JSON or CSV lists of records, gzip accepted."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

from projector.errors import InputError, Problem

__all__ = ["read_records", "read_text", "read_yaml"]


def read_text(path: Path) -> str:
    """The text of a file, decompressed where its name ends in ``.gz``. Raises :class:`InputError` when unreadable."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError([Problem(str(path), "", "nothing", "an existing file")]) from None
    except (OSError, EOFError) as error:
        raise InputError([Problem(str(path), "", str(error), "a readable file")]) from None


def read_yaml(path: Path) -> object:
    """Parsed YAML. Raises :class:`InputError` with line and column of a syntax error."""
    return _parse_yaml(read_text(path), path)


def _parse_yaml(text: str, path: Path) -> object:
    import yaml

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError([Problem(str(path), place, getattr(error, "problem", error), "valid YAML")]) from None


def read_records(path: Path) -> list[object]:
    """Records of a table. A mapping with one list inside (``runs: […]``) gives that list.

    Raises :class:`InputError` for an unreadable or empty table, or one that is no list.
    """
    text = read_text(path)
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix in (".csv", ".tsv"):
        dialect = "excel-tab" if suffix == ".tsv" else "excel"
        data: object = list(csv.DictReader(io.StringIO(text.lstrip("\ufeff")), dialect=dialect))
    elif suffix in (".json", ".jsonl"):
        data = _parse_json(text, path)
    else:
        data = _parse_yaml(text, path)
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list)]
        data = lists[0] if len(lists) == 1 else data
    if not isinstance(data, list):
        raise InputError([Problem(str(path), "", type(data).__name__, "a list of records")])
    if not data:
        raise InputError([Problem(str(path), "", "an empty list", "at least one record")])
    return data


def _parse_json(text: str, path: Path) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            return [json.loads(line) for line in lines] if len(lines) > 1 else _bad_json(path, error)
        except json.JSONDecodeError:
            return _bad_json(path, error)


def _bad_json(path: Path, error: json.JSONDecodeError) -> object:
    raise InputError([Problem(str(path), f"line {error.lineno}, column {error.colno}", error.msg, "valid JSON")])
