"""Says what to change: searches, walks through the switches of a configuration, and remedies where memory does not suffice.

``projector.search(model="llama3_70b", gpu="h100", gpus=64)`` is :func:`projector.face.search`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projector.search.found import SearchResult


class _CallableModule(ModuleType):
    """This module, which can be called, too: room and function have one name."""

    def __call__(self, **words: Any) -> SearchResult:
        from projector.face import search

        return search(**words)


sys.modules[__name__].__class__ = _CallableModule
