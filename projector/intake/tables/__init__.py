"""Looks up words, defaults and recipes of other tools, which stand in one YAML file each, with sources."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from projector.io.files import read_yaml


@cache
def whole(name: str) -> Any:
    """Returns the whole content of ``NAME.yaml``."""
    return read_yaml(Path(__file__).with_name(f"{name}.yaml"))


def table(name: str, key: str) -> Any:
    """Returns the value at ``key`` of ``NAME.yaml``."""
    return whole(name)[key]


def words(name: str, key: str) -> frozenset[str]:
    """Returns the words of the text at ``key`` of ``NAME.yaml``."""
    return frozenset(table(name, key).split())
