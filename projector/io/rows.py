"""Shows rows of plain values as people use them in Python (a frame of pandas, a table in a notebook, a document), groups
values by a key, and chooses some of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Returns the items of each key, keys in the order of their first appearance."""
    items: dict[Key, list[Item]] = {}
    for key, item in pairs:
        items.setdefault(key, []).append(item)
    return items


def evenly(number: int, most: int) -> list[int]:
    """Returns at most ``most`` of the numbers below ``number``, evenly, the first and the last among them."""
    some = min(number, most)
    return [round(i * (number - 1) / max(some - 1, 1)) for i in range(some)]


class Rows:
    """The base of objects that have ``rows``, each a mapping of plain values."""

    rows: Any

    def to_dict(self) -> dict[str, Sequence[Mapping[str, Any]]]:
        """Returns the rows as they are, for a JSON document."""
        return {"rows": self.rows}

    def to_pandas(self) -> Any:
        """Returns the rows as a frame. Needs pandas."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def _repr_html_(self) -> str:
        return str(self.to_pandas().dropna(axis=1, how="all").to_html(index=False))
