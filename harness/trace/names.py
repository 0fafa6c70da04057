"""Classifies kernels by name. Patterns are data (``kernels.yaml``, ``operators.yaml``); a name that no pattern matches
stays unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from harness.evidence import shelf
from projector.dataclass import dataclass

UNKNOWN = "unclassified"
#: The causes, streams and families of kinds of kernel (``kinds.yaml``).
KINDS: Mapping[str, Any] = shelf.data("trace/kinds.yaml")
COMMUNICATION = ("communication", "expert exchange")
_LONGEST = 4096  # characters of a name that are matched
_DEFAULT = "(anonymous namespace)"


@dataclass(frozen=True, slots=True)
class Named:
    """The class of a kernel. ``kind``: its work; ``provider``: its library; ``op``: of a collective, as far as the name
    says; ``way``: ``forward`` or ``backward`` of an attention kernel that runs once a layer pass."""

    kind: str
    provider: str = ""
    op: str = ""
    way: str = ""

    @property
    def communicates(self) -> bool:
        return self.kind in COMMUNICATION


@lru_cache(maxsize=65536)
def named(name: str, host: bool = False) -> Named:
    """Returns the class of the first pattern that matches ``name``, or ``UNKNOWN``. ``host``: the name of an operator."""
    text = bare(name)
    for pattern, result in _patterns("operators" if host else "kernels"):
        if pattern.search(text):
            return result
    return Named(UNKNOWN)


def bare(name: str) -> str:
    """Returns ``name`` without its return type, template defaults and arguments: cut at the parenthesis that opens the
    argument list (those inside template arguments belong to a functor, which names the kernel's work)."""
    text = name[:_LONGEST].removeprefix("void ").replace(_DEFAULT, "")
    depth = 0
    for at, mark in enumerate(text):
        if mark == "<":
            depth += 1
        elif mark == ">":
            depth -= 1
        elif mark == "(" and depth <= 0 and at:
            # a copy states its direction in parentheses
            return text if text.startswith(("Memcpy", "Memset")) else text[:at]
    return text


@cache
def _patterns(which: str) -> tuple[tuple[re.Pattern[str], Named], ...]:
    rows: list[Mapping[str, str]] = shelf.data(f"trace/{which}.yaml")
    return tuple(
        (
            re.compile(row["match"], re.IGNORECASE),
            Named(row["kind"], row["provider"], row.get("op", ""), row.get("way", "")),
        )
        for row in rows
    )
