"""Projector: how fast and how big a distributed LLM training run will be, before it is launched.

    import projector as pj

    p = pj.project(model="llama3_70b", gpu="h100", gpus=512, tp=8, pp=4, seq_length=8192)
    pj.search(model="llama3_70b", gpu="h100", gpus=64).best[0]
    pj.sweep(model="llama3_8b", gpu=["h100", "mi300x"], gpus=64, tp=[1, 2, 4]).to_pandas()

``import projector`` loads nothing heavy: names below are fetched when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Expectation", "InputError", "Projection", "expect", "project", "project_many", "search", "sweep"]
_PLACES = {"Expectation": "posterior", "InputError": "errors", "Projection": "projection", "project_many": "many"}

if TYPE_CHECKING:
    from projector import search as search
    from projector.errors import InputError
    from projector.face import expect, project, sweep
    from projector.many import project_many
    from projector.posterior import Expectation
    from projector.projection import Projection


def __getattr__(name: str) -> Any:
    if name in __all__:
        if name == "search":  # the package is callable
            return import_module("projector.search")
        return getattr(import_module(f"projector.{_PLACES.get(name, 'face')}"), name)
    raise AttributeError(f"module 'projector' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
