"""The sentences of reports, as data: ``sentences.yaml`` beside this file has them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.evidence import shelf
from projector.io.table import at, filled

_TEXTS: Mapping[str, Sequence[str | Mapping[str, str]]] = shelf.data("report/sentences.yaml")


def said(key: str, item: Any) -> list[str]:
    """Returns the sentences ``key`` about an item (:func:`projector.io.table.filled`). One with an ``if`` stands only where
    the item has a value there that is neither None, False nor an empty text."""
    told = []
    for each in _TEXTS[key]:
        text, condition = (each, "") if isinstance(each, str) else (each["say"], each["if"])
        value = at(item, condition) if condition else True
        told += [filled(text, item)] if value is not None and value is not False and value != "" else []
    return told
