"""The algorithms of collectives, one file a family, found by the names of their functions.

A function of a module whose name is a kind of collective (``all_reduce``, ``all_to_all``, …) and stands in ``__all__`` takes
a :class:`~projector.collectives.network.Network` and yields its candidates, none where the topology does not allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

from projector.collectives.network import Cost, Network

__all__ = ["ALGORITHMS", "KINDS", "discovered"]

Algorithm = Callable[[Network], Iterator[Cost]]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def discovered() -> Mapping[str, tuple[Algorithm, ...]]:
    """Returns the algorithms of every kind of collective, from all files of this folder."""
    modules = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
    return {kind: tuple(getattr(module, kind) for module in modules if kind in module.__all__) for kind in KINDS}


ALGORITHMS = discovered()
