"""Reading results tables: YAML, JSON or CSV lists of records, gzip accepted."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
from pathlib import Path

from harness.yamlio import parse_yaml
from projector.errors import InputError, Problem

__all__ = ["read_records", "read_text", "read_yaml"]


def read_text(path: Path) -> str:
    """The text of a file, decompressed where its name ends in ``.gz``. Raises :class:`InputError` when unreadable."""
    try:
        data = path.read_bytes()
        return _decoded(gzip.decompress(data) if path.suffix == ".gz" else data)
    except FileNotFoundError:
        raise InputError([Problem(str(path), "", "nothing", "an existing file")]) from None
    except (OSError, EOFError) as error:
        raise InputError([Problem(str(path), "", str(error), "a readable file")]) from None


def _decoded(data: bytes) -> str:
    """UTF-8, or the UTF-16 that spreadsheets export as "Unicode text"; a byte order mark is dropped."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def read_yaml(path: Path) -> object:
    """Parsed YAML. Raises :class:`InputError` with line and column of a syntax error."""
    parsed: object = parse_yaml(read_text(path), str(path))
    return parsed


def read_records(path: Path) -> list[object]:
    """Records of a table. A mapping with one list inside (``runs: […]``) gives that list.

    Raises :class:`InputError` for an unreadable or empty table, or one that is no list.
    """
    text = read_text(path)
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix in (".csv", ".tsv"):
        data: object = _parse_csv(text, path)
    elif suffix in (".json", ".jsonl"):
        data = _parse_json(text, path)
    else:
        data = parse_yaml(text, str(path))
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list)]
        data = lists[0] if len(lists) == 1 else data
    if not isinstance(data, list):
        expected = "a list of records, alone or as the only list of a mapping"
        raise InputError([Problem(str(path), "", type(data).__name__, expected)])
    if not data:
        raise InputError([Problem(str(path), "", "an empty list", "at least one record")])
    return data


def _parse_csv(text: str, path: Path) -> list[dict[str | None, object]]:
    """Rows by column name. The separator is whichever of tab, semicolon and comma the header line has most of."""
    header = text.lstrip().partition("\n")[0]
    separator = max(",;\t", key=header.count)
    try:
        return list(csv.DictReader(io.StringIO(text), delimiter=separator))
    except csv.Error as error:
        raise InputError([Problem(str(path), "", str(error), "a CSV table")]) from None


def _parse_json(text: str, path: Path) -> object:
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        if isinstance(error, json.JSONDecodeError):
            return _parse_json_lines(text, path, error)
        raise InputError([Problem(str(path), "", str(error).partition(";")[0], "valid JSON")]) from None


def _parse_json_lines(text: str, path: Path, error: json.JSONDecodeError) -> object:
    """One record a line; ``error`` is what stopped the text from being one document."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        return [json.loads(line) for line in lines] if len(lines) > 1 else _bad_json(path, error)
    except (RecursionError, ValueError):
        return _bad_json(path, error)


def _bad_json(path: Path, error: json.JSONDecodeError) -> object:
    raise InputError([Problem(str(path), f"line {error.lineno}, column {error.colno}", error.msg, "valid JSON")])
