"""What is made up for a test is in no cache before it, and in none after it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["forgotten"]


@contextmanager
def forgotten(patched: pytest.MonkeyPatch, *cached: Any, modules: tuple[str, ...] = ()) -> Iterator[None]:
    """Inside, nothing that ``cached`` functions knew; afterwards nothing of the inside: patches, imports, answers."""
    for each in cached:
        each.cache_clear()
    try:
        yield
    finally:
        patched.undo()
        for name in modules:
            sys.modules.pop(name, None)
        for each in cached:
            each.cache_clear()
