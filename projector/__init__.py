"""Projector: how fast and how big a distributed LLM training run will be, before it is launched.

``import projector`` loads nothing heavy: names below are fetched when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Projection", "project", "project_many"]

if TYPE_CHECKING:
    from projector.many import project_many
    from projector.projection import Projection, project


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("projector.many" if name == "project_many" else "projector.projection"), name)
    raise AttributeError(f"module 'projector' has no attribute {name!r}")
