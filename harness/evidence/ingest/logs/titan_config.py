"""The job configuration that torchtitan prints where it is asked to: a Python dictionary in one line (0.1, 0.2.0), later
JSON over many lines (torchtitan/train.py, config/job_config.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from projector.intake.values import literal

_LINE = re.compile(r"Running with (?:args|configs): (\{.{2,100000}\})\s*$")
_HEAD = "Running with configs: {"


def opens(line: str) -> bool:
    """Whether a line opens the JSON."""
    return _HEAD in line


def in_line(line: str) -> Mapping[str, object]:
    """The settings of the one-line form under dotted names; empty for any other line."""
    found = _LINE.search(line) if "Running with " in line else None
    return flat(literal(found[1])) if found else {}


def flat(config: Any) -> Mapping[str, object]:
    """Settings by ``section.name`` of a nested configuration; empty for what is none."""
    return dict(_flat(config, "", 0)) if isinstance(config, Mapping) else {}


_DEEPEST = 6


def _flat(config: Mapping[Any, Any], before: str, depth: int) -> Iterator[tuple[str, object]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            yield from _flat(value, f"{before}{name}.", depth + 1)
        else:
            yield f"{before}{name}", value
