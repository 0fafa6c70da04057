"""Projector: how fast and how big a distributed LLM training run will be, before it is launched.

``import projector`` loads nothing heavy: names below are fetched when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Expectation", "Projection", "expect", "project", "project_many"]
_PLACES = {"expect": "expectation", "Expectation": "posterior", "project_many": "many"}

if TYPE_CHECKING:
    from projector.expectation import expect
    from projector.many import project_many
    from projector.posterior import Expectation
    from projector.projection import Projection, project


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"projector.{_PLACES.get(name, 'projection')}"), name)
    raise AttributeError(f"module 'projector' has no attribute {name!r}")
