"""One row of a CSV under validation: every wrong cell is remembered as a problem, so that all are reported at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from projector.dataclass import dataclass
from projector.errors import Problem

_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


@dataclass(frozen=True)
class Cells:
    """Cells of one row by column name, the place of the row, and the list that problems are added to."""

    raw: Mapping[str, str]
    where: str
    problems: list[Problem]

    def __getitem__(self, name: str) -> str:
        return (self.raw.get(name) or "").strip()

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1. Without a ``default`` an empty cell is a problem as well."""
        text = self[name]
        if not text and default is not None:
            return default
        value = _float(text)
        if value is None or value < 1 or value != int(value):
            return int(self.wrong(name, "a whole number of at least 1"))
        return int(value)

    def positive(self, name: str) -> float | None:
        """A number above zero; None where the cell is empty."""
        if not self[name]:
            return None
        value = _float(self[name])
        return value if value is not None and value > 0.0 else self.wrong(name, "a positive number")

    def flag(self, name: str) -> bool:
        found = _FLAGS.get(self[name].lower())
        return bool(self.wrong(name, "True or False")) if found is None else found

    def wrong(self, name: str, expected: str) -> float:
        self.problems.append(Problem(self.where, name, self[name], expected))
        return 1.0


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
