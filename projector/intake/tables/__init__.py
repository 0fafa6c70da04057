"""Words, defaults and recipes of other tools that their readers look up: a YAML file each, with its sources."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from projector.io.files import read_yaml


@cache
def whole(name: str) -> Any:
    """Everything in ``NAME.yaml``."""
    return read_yaml(Path(__file__).with_name(f"{name}.yaml"))


def table(name: str, key: str) -> Any:
    """What stands at ``key`` of ``NAME.yaml``."""
    return whole(name)[key]


def words(name: str, key: str) -> frozenset[str]:
    """The words of the text at ``key``."""
    return frozenset(table(name, key).split())
