"""Declares a function to be a mechanism: something that a step does, without which a projection would still be one.

``harness ablate`` puts ``off`` in its place, over measured runs, and so says what the mechanism is worth::

    @mechanism(off=1.0)
    def slowest(efficiency: Efficiency, gpus: int) -> float: ...

Nothing else reads the declaration; the function stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Declared(NamedTuple):
    """The function ``name`` of ``module``, and what it returns when it is off: a value, or a function of its arguments."""

    module: str
    name: str
    off: Any


DECLARED: list[Declared] = []


def mechanism(off: object) -> Callable[[F], F]:
    """Returns a decorator of functions that return ``off`` when their mechanism is switched off."""

    def declare(function: F) -> F:
        DECLARED.append(Declared(function.__module__, function.__qualname__, off))
        return function

    return declare
