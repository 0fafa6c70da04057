"""The ``dataclass`` of the standard library, whose methods are compiled when they are first called.

A command imports some 300 such classes and uses few methods of each. The standard library compiles six methods a class
at import: that was a third of the time until a command began.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, slots=False, kw_only=False):
        """:func:`dataclasses.dataclass` with the same meaning; fields, ``replace`` and ``asdict`` are those of
        :mod:`dataclasses`, and either kind of class may extend the other."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq, repr=repr, slots=slots, kw_only=kw_only)
        extends = frozen and any(hasattr(base, "__dataclass_params__") for base in cls.__mro__)
        plain = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=extends, slots=slots, kw_only=kw_only)
        defined, compiled = {name for name, value in vars(cls).items() if value is not None}, plain(cls)
        compiled.__dataclass_params__.frozen = frozen
        methods = {"__init__": _later("__init__", compiled, _init)}
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods["__eq__"] = _later("__eq__", compiled, _eq)
            methods["__hash__"] = _later("__hash__", compiled, _hash) if frozen else None
        if frozen and slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
        for name, method in methods.items():
            if name not in defined:
                setattr(compiled, name, method)
        if frozen:
            compiled.__setattr__ = compiled.__delattr__ = _refuse
        return compiled


def _later(name: str, cls: type, write: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a method that, when first called, replaces itself by what ``write`` makes of ``cls``."""

    def method(self: Any, *values: Any, **named: Any) -> Any:
        written = write(cls)
        setattr(cls, name, written)
        return written(self, *values, **named)

    return method


def _init(cls: Any) -> Callable[..., None]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    positional, keywords, values = ["self"], ["*"], {}
    for field in dataclasses.fields(cls):
        parameter = value = field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{field.name}"] = field.default
            parameter += f"=_default_{field.name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{field.name}"] = field.default_factory
            parameter += "=_missing"
            value = f"_make_{field.name}() if {field.name} is _missing else {field.name}"
        values[field.name] = value
        (keywords if field.kw_only else positional).append(parameter)
    if hasattr(cls, "__slots__"):
        lines = [f"_set(self, {name!r}, {value})" for name, value in values.items()]
    else:  # half the time of setting them one by one
        lines = [f"_set(self, '__dict__', {{{', '.join(f'{name!r}: {value}' for name, value in values.items())}}})"]
    lines += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    parameters = ", ".join(positional + keywords * (len(keywords) > 1))
    exec(f"def __init__({parameters}):\n " + "\n ".join(lines or ["pass"]), names)
    return names["__init__"]  # type: ignore[no-any-return]


def _compared(cls: Any) -> Callable[[Any], Any]:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    return attrgetter(*names) if names else type


def _eq(cls: Any) -> Callable[[Any, Any], bool]:
    of = _compared(cls)
    return lambda self, other: of(self) == of(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(cls: Any) -> Callable[[Any], int]:
    of = _compared(cls)
    return lambda self: hash(of(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(_: object, name: str, *value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
