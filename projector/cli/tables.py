"""Makes the tables of the command line, which are data: ``tables.yaml`` beside this file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from projector.io.files import read_yaml
from projector.io.table import Table, specified


def tabled(key: str, items: Iterable[Any], /, **known: Any) -> Table:
    """Returns the table ``key``, a line an item; ``known``: what its entry names (:func:`specified`)."""
    return specified(_entries()[key], items, known)


@cache
def _entries() -> Mapping[str, Any]:
    entries: Mapping[str, Any] = read_yaml(Path(__file__).with_name("tables.yaml"))
    return entries
