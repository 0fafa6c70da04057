"""Reading results tables: YAML and JSON lists of records, gzip accepted (a CSV: :mod:`csvtable`)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from harness.evidence.ingest.logs.source import open_source
from projector.errors import InputError, Problem
from projector.io.documents import parse_json, parse_yaml
from projector.io.files import MOST_BYTES


def read_text(path: Path) -> str:
    """Returns a file's text, unpacked where it is packed: no more than an unpacked file may have, since a thousandth of
    that can pack a gigabyte. Raises :class:`InputError` when unreadable."""
    try:
        with open_source(path).text() as text:
            content = text.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError([Problem(str(path), "", str(error), "a readable file")]) from None
    if len(content) > MOST_BYTES:
        raise InputError([Problem(str(path), "", "a larger table", f"at most {MOST_BYTES >> 20} MiB of text")])
    return content


def read_yaml(path: Path) -> object:
    """Parses YAML. Raises :class:`InputError` with line and column of a syntax error."""
    return parse_yaml(read_text(path), str(path))


def read_records(path: Path) -> list[object]:
    """Returns the records of a table. A mapping with one list inside (``runs: […]``) gives that list.

    Raises :class:`InputError` for an unreadable or empty table, or one that is no list.
    """
    text = read_text(path)
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix in (".json", ".jsonl"):
        data: object = _parse_json(text, str(path))
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
    if not any(isinstance(record, Mapping) for record in data):
        raise InputError([Problem(str(path), "", data, "a list of records: mappings of column to value")])
    return data


def _parse_json(text: str, where: str) -> object:
    """Parses one document, or one record a line. Raises what stopped the text from being one document."""
    try:
        return parse_json(text, where)
    except InputError:
        lines = [line for line in text.splitlines() if line.strip()]
        with suppress(InputError):
            if len(lines) > 1:
                return [parse_json(line, where) for line in lines]
        raise
