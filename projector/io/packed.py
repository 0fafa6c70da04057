"""Packs values as JSON text, and unpacks them by the type that the reader declares.

The text names no function, and no class but one of those that are declared or that extend them, so reading it can run
nothing: what is built is decided by the declared type, and text that does not fit it raises :class:`ValueError`. Declared
may be ``int``, ``float``, ``str``, ``bool``, ``bytes``, dataclasses (one of several, or what extends it), tuples and lists
of one of them, mappings from text, NumPy arrays of numbers, each of these ``| None``, and ``object`` for what JSON holds
itself. A dataclass instance that stands in several places is written once, and is one again.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from projector.dataclass import dataclass
from projector.io.typed import hints

T = TypeVar("T")
_PLAIN: Mapping[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,), bool: (bool,)}


def pack(value: T, kind: type[T]) -> bytes:
    """Returns the text of a ``value`` of ``kind``. Raises :class:`TypeError` where it is of another type."""
    writer = _Writer([], {})
    content = _codec(typing.cast(Any, kind)).write(value, writer)
    return json.dumps([writer.table, content], separators=(",", ":")).encode()


def unpack(data: bytes, kind: type[T]) -> T:
    """Returns the value of ``kind`` that :func:`pack` wrote. Raises :class:`ValueError` where the text holds anything
    else."""
    try:
        table, content = json.loads(data)
        return typing.cast(T, _codec(typing.cast(Any, kind)).read(content, _Reader(table, {})))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"not a {kind}: {error}") from None


@dataclass(frozen=True)
class _Writer:
    """Collects instances. ``table``: fields of each; ``places``: its place in it and itself (kept alive) by identity."""

    table: list[dict[str, object]]
    places: dict[int, tuple[int, object]]


@dataclass(frozen=True)
class _Reader:
    """Builds the instances of one text. ``table``: their fields as text; ``built``: instances by kind and place."""

    table: list[dict[str, object]]
    built: dict[tuple[type, int], object]


@dataclass(frozen=True)
class _Codec:
    """How values of one type become JSON (:class:`TypeError` for a value of another type) and come back."""

    write: Callable[[Any, _Writer], Any]
    read: Callable[[Any, _Reader], Any]


@cache
def _codec(kind: Any) -> _Codec:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is object:
        return _Codec(lambda value, _: _checked_json(value), lambda data, _: data)
    if kind in _PLAIN:
        return _plain(_PLAIN[kind])
    if kind is bytes:
        return _Codec(lambda value, _: _base64(value), lambda data, _: _from_base64(data))
    if dataclasses.is_dataclass(kind):
        return _instance(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional([each for each in arguments if each is not type(None)])
    if origin is tuple:
        return _sequence(arguments)
    if origin is list:
        return _sequence((arguments[0], ...), list)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments[1])
    if getattr(origin, "__name__", "") == "ndarray":
        return _array(typing.get_args(arguments[1])[0])
    raise TypeError(f"no text for values of {kind}")


def _plain(kinds: tuple[type, ...]) -> _Codec:
    def same(value: Any, _: object) -> Any:
        if type(value) in kinds:
            return value
        if float in kinds and isinstance(value, float):
            return float(value)  # NumPy's own
        raise TypeError(f"{type(value).__name__} for {kinds[0].__name__}")

    return _Codec(same, same)


def _checked_json(value: Any) -> Any:
    """Returns ``value`` if JSON gives back what it is given."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if type(value) is list:
        return [_checked_json(each) for each in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: _checked_json(each) for name, each in value.items()}
    raise TypeError(f"{type(value).__name__} is not JSON's")


def _optional(kinds: list[Any]) -> _Codec:
    inner = _codec(kinds[0]) if len(kinds) == 1 else _named({each.__name__: each for each in kinds})
    return _Codec(
        lambda value, writer: None if value is None else inner.write(value, writer),
        lambda data, reader: None if data is None else inner.read(data, reader),
    )


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _sequence(kinds: tuple[Any, ...], whole: type = tuple) -> _Codec:
    """Returns the codec of a tuple ``[A, B]`` or ``[A, ...]``, or of a list."""
    repeated = _codec(kinds[0]) if kinds and kinds[-1] is ... else None
    fixed = () if repeated else tuple(map(_codec, kinds))

    def codecs(values: Any, kind: type) -> Any:
        if (
            type(values) is not kind
            or not isinstance(values, list | tuple)
            or (repeated is None and len(values) != len(fixed))
        ):
            raise TypeError(f"{type(values).__name__} for {whole.__name__}{list(kinds)}")
        return zip(values, [repeated] * len(values) if repeated else fixed, strict=True)

    return _Codec(
        lambda value, writer: [codec.write(item, writer) for item, codec in codecs(value, whole)],
        lambda data, reader: whole(codec.read(item, reader) for item, codec in codecs(data, list)),
    )


def _mapping(kind: Any) -> _Codec:
    inner = _codec(kind)

    def text(name: Any) -> str:
        if type(name) is not str:
            raise TypeError(f"a key that is {type(name).__name__}")
        return name

    return _Codec(
        lambda value, writer: {text(name): inner.write(item, writer) for name, item in value.items()},
        lambda data, reader: {name: inner.read(item, reader) for name, item in data.items()},
    )


def _array(number: Any) -> _Codec:
    import numpy as np

    def write(value: Any, _: _Writer) -> Any:
        if value.dtype != number:
            raise TypeError(f"an array of {value.dtype} for {number}")
        return [list(value.shape), _base64(value.tobytes())]

    def read(data: Any, _: _Reader) -> Any:
        shape, content = data
        return np.frombuffer(_from_base64(content), dtype=number).reshape(shape).copy()

    return _Codec(write, read)


def _named(kinds: Mapping[str, Any]) -> _Codec:
    """Returns the codec of one of several dataclasses, which the text names."""

    def write(value: Any, writer: _Writer) -> Any:
        name = type(value).__name__
        if kinds.get(name) is not type(value) or not dataclasses.is_dataclass(value):
            raise TypeError(f"{name} for one of {', '.join(kinds)}")
        return [name, _codec(kinds[name]).write(value, writer)]

    def read(data: Any, reader: _Reader) -> Any:
        name, inner = data
        return _codec(kinds[name]).read(inner, reader)

    return _Codec(write, read)


def _subclasses(kind: Any) -> dict[str, Any]:
    """Returns the dataclasses of this program that extend ``kind``, at any depth, by name."""
    return {name: c for sub in kind.__subclasses__() for name, c in {sub.__name__: sub, **_subclasses(sub)}.items()}


def _instance(kind: Any) -> _Codec:
    """Returns the codec of a dataclass: the place of its fields in the table, without fields at their default."""
    codecs: dict[str, _Codec] = {}  # made at the first use: a type may hold itself

    def known() -> dict[str, _Codec]:
        return codecs or codecs.update({name: _codec(hint) for name, hint in hints(kind).items()}) or codecs

    defaults = {field.name: field.default for field in dataclasses.fields(kind)}

    def write(value: Any, writer: _Writer) -> Any:
        if type(value) is not kind:
            return _named(_subclasses(kind)).write(value, writer)
        if id(value) not in writer.places:
            fields = {name: (getattr(value, name), codec) for name, codec in known().items()}
            stated = {
                name: codec.write(item, writer) for name, (item, codec) in fields.items() if item is not defaults[name]
            }
            writer.places[id(value)] = (len(writer.table), value)
            writer.table.append(stated)
        return writer.places[id(value)][0]

    def read(data: Any, reader: _Reader) -> Any:
        if type(data) is list:
            return _named(_subclasses(kind)).read(data, reader)
        if type(data) is not int or data < 0:
            raise TypeError(f"no place of a {kind.__name__}")
        if (kind, data) not in reader.built:
            codec_of = known()
            stated = {name: codec_of[name].read(item, reader) for name, item in reader.table[data].items()}
            reader.built[kind, data] = kind(**stated)
        return reader.built[kind, data]

    return _Codec(write, read)
