"""What is remembered between projections, in a memory that a search of a million configurations does not fill."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Any, Generic, TypeVar
from weakref import WeakSet

__all__ = ["DERIVED", "HashedOnce", "Recent", "Same", "but", "forget"]

T = TypeVar("T")
V = TypeVar("V")
_HASH = "_hash"
#: What is kept beside the fields of a frozen dataclass because it follows from them; copies with other values go without it.
DERIVED = (_HASH, "_as_layers_see", "_as_weights_see")


def but(value: T, **changes: object) -> T:
    """:func:`dataclasses.replace` for frozen dataclasses of many fields without slots or ``__post_init__``, 20 times as
    fast: a search makes three copies of every configuration."""
    made = object.__new__(type(value))
    kept = made.__dict__
    kept.update(value.__dict__)
    kept.update(changes)
    for name in DERIVED:
        kept.pop(name, None)
    return made


class HashedOnce:
    """Base of frozen dataclasses with many fields, whose hash is made once. They must say
    ``__hash__ = HashedOnce.__hash__``, since the decorator makes one of its own otherwise. Copies for other processes go
    without it: text hashes otherwise there."""

    def __hash__(self) -> int:
        found = self.__dict__.get(_HASH)
        if found is None:
            found = hash(tuple(getattr(self, each.name) for each in fields(self)))  # type: ignore[arg-type]
            self.__dict__[_HASH] = found
        return int(found)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]


class Recent(Generic[V]):
    """The ``size`` values that were asked for last, by key; for values whose making needs more than their key."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[Hashable, V] = {}
        _ALL.add(self)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of ``key``, made where it is not remembered."""
        found = self._kept.pop(key, None)
        if found is None:
            found = make()
            if len(self._kept) >= self._size:
                del self._kept[next(iter(self._kept))]
        self._kept[key] = found
        return found

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()


_ALL: WeakSet[Recent[Any]] = WeakSet()


def forget() -> None:
    """Everything that is remembered: for tests that change what was remembered."""
    for each in list(_ALL):
        each.clear()


class Same(Generic[T]):
    """A value as a key, equal only to itself.

    Devices and parameters hold mappings, which have no hash; the catalogue gives one object for one name. The key holds its
    value, so an identity is never given away while a cache knows it.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value
