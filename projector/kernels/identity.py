"""A value as a key of a cache, equal only to itself."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Same"]

T = TypeVar("T")


class Same(Generic[T]):
    """Devices and parameters hold mappings, which have no hash; the catalogue gives one object for one name. The key
    holds its value, so an identity is never given away while a cache knows it.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value
