"""Keeps results between projections, in caches that a search of a million configurations does not fill."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import _lru_cache_wrapper, cache, wraps
from operator import attrgetter
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])
_HASH, _MADE = "_hash", "_made"
#: Attribute of a run that holds it without recompute (:func:`projector.frameworks.scope.without_recompute`).
BARE = "_bare"
#: Attributes of a frozen dataclass that are derived from its fields; copies with other values leave them out.
DERIVED = (_HASH, _MADE, BARE, "_form", "_known")


def evolve(value: T, **changes: object) -> T:
    """Returns a copy of a frozen dataclass with ``changes``, as :func:`dataclasses.replace` does, but 20 times as fast
    where it has many fields: a search makes three copies of every configuration. The class has neither slots nor
    ``__post_init__``."""
    copy = object.__new__(type(value))
    values = value.__dict__ | changes
    for name in DERIVED:
        values.pop(name, None)
    object.__setattr__(copy, "__dict__", values)
    return copy


def collect_seldom() -> None:
    """Makes Python search for circles of garbage less often. A process that projects keeps nearly all that it makes, or
    frees it by its count: by default the search takes a third of its time."""
    gc.set_threshold(50_000, 20, 50)


@contextmanager
def uncollected() -> Iterator[None]:
    """Turns the search for circles of garbage off while a bounded number of configurations is worked on."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.freeze()  # and thaw: moves all objects to the oldest generation without a search
            gc.unfreeze()
            gc.enable()


@cache
def names_of(kind: Any) -> tuple[str, ...]:
    """Returns the names of the fields of a dataclass."""
    return tuple(field.name for field in fields(kind))


@cache
def _values(kind: Any) -> attrgetter[Any]:
    return attrgetter(*names_of(kind))


class HashedOnce:
    """Base of frozen dataclasses with many fields, whose hash is computed once. They must say
    ``__hash__ = HashedOnce.__hash__``, since the decorator makes one of its own otherwise. Copies for other processes
    leave the hash out: a text has another hash there."""

    def __hash__(self) -> int:
        try:
            return self.__dict__[_HASH]  # type: ignore[no-any-return]
        except KeyError:
            computed = hash(_values(type(self))(self))  # type: ignore[arg-type]
            self.__dict__[_HASH] = computed
            return computed

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names_of(type(self))}  # type: ignore[arg-type]


class BoundedCache(Generic[V]):
    """At most ``size`` values by key, for values made from more than their key. When full, it forgets all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[Hashable, V] = {}
        _ALL.add(self)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Returns the value of ``key``, which is made where it is not known."""
        value = self._known.get(key)
        if value is None:
            value = make()
            if len(self._known) >= self._size:
                self._known = {}
            self._known[key] = value
        return value

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forgets all values."""
        self._known.clear()


def cached_on(place: int) -> Callable[[F], F]:
    """Returns a decorator: the results of a function for a frozen dataclass, its argument at ``place``, are kept in
    that object, and freed with it."""

    def wrap(build: F) -> F:
        @wraps(build)
        def cached(*given: Any) -> Any:
            results = given[place].__dict__.setdefault(_MADE, {})
            key = build, *given[:place], *given[place + 1 :]
            if key not in results:
                results[key] = build(*given)
            return results[key]

        return cached  # type: ignore[return-value]

    return wrap


_ALL: WeakSet[BoundedCache[Any]] = WeakSet()


def clear_caches() -> None:
    """Empties every :class:`BoundedCache`: for tests that change what was kept."""
    for each in list(_ALL):
        each.clear()


def clear_all_caches() -> None:
    """Empties all caches of ``projector`` and ``harness``, cached functions included: for callers that change code."""
    for module in [each for name, each in sys.modules.items() if name.startswith(("projector.", "harness."))]:
        for each in vars(module).values():
            if isinstance(each, _lru_cache_wrapper):
                each.cache_clear()
    clear_caches()


class IdentityKey(Generic[T]):
    """A value as a key that is equal only to a key of the same object.

    Devices and parameters hold mappings, which have no hash; the catalogue gives one object for one name. The key holds
    its value, so an identity is never given away while a cache knows it.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value
