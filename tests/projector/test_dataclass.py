"""Our ``dataclass`` and that of the standard library make the same of a class, and either kind may extend the other."""

import copy
import dataclasses
import pickle
import re
import sys
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tabled import tabled

from projector.dataclass import dataclass as ours

KINDS: list[dict[str, bool]] = tabled("constants", "dataclasses")


def _classes(decorator: Any, base: Any, **options: bool) -> tuple[Any, Any]:
    @base(**options)
    class Size:
        kind: ClassVar[str] = "size"
        rows: int
        columns: int = 3
        names: list[str] = dataclasses.field(default_factory=list, compare=False)
        note: str = dataclasses.field(default="", repr=False, compare=False)

    @decorator(**options)
    class Deep(Size):
        depth: int = 1

        def __post_init__(self) -> None:
            if self.depth < 0:
                raise ValueError(self.depth)

    return Size, Deep


def _shown(value: object) -> str:
    return re.sub(r"0x\w+", "", repr(value))


def _outcome(act: Any) -> object:
    try:
        return act()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error)


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize(
    "decorators",
    [(ours, ours), (ours, dataclasses.dataclass), (dataclasses.dataclass, ours)],
    ids=["both", "sub", "base"],
)
@settings(max_examples=12)
@given(values=st.lists(st.integers(-2, 3), max_size=5), others=st.lists(st.integers(-2, 3), min_size=1, max_size=2))
def test_same_as_the_standard_library(
    options: dict[str, bool], decorators: tuple[Any, Any], values: list[int], others: list[int]
) -> None:
    seen = []
    for kind in (*_classes(*decorators, **options), *_classes(dataclasses.dataclass, dataclasses.dataclass, **options)):
        made, named, other = (
            _outcome(partial(kind, *given, **by))
            for given, by in ((values, {}), ((), {"rows": others[0], "depth": others[-1]}), ((), {"rows": others[0]}))
        )
        acts = (
            partial(dataclasses.astuple, named),
            lambda other=other: dataclasses.replace(other, columns=9).columns,
            partial(setattr, other, "rows", 1),
            partial(delattr, other, "rows"),
            lambda other=other: hash(other) == hash(copy.copy(other)),
        )
        facts = (made == other, other == copy.copy(other), kind.__match_args__, kind.__hash__ is None)
        seen.append([_shown(made), _shown(named), _shown(other), *facts, *map(_outcome, acts)])
    assert seen[:2] == seen[2:]


@ours(frozen=True, slots=True)
class _Slotted:
    rows: int
    names: tuple[str, ...] = ()


@ours(frozen=True)
class _Plain:
    rows: int
    names: tuple[str, ...] = ()


@pytest.mark.parametrize("value", [_Slotted(1, ("a",)), _Plain(2)], ids=["slots", "plain"])
def test_a_value_comes_back_from_another_process(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)
    assert value.__class__ in (getattr(sys.modules[__name__], name) for name in ("_Slotted", "_Plain"))


def test_what_the_class_says_itself_stands() -> None:
    @ours(frozen=True)
    class Loud:
        rows: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "loud"

    assert repr(Loud(1)) == "loud"
    assert Loud(1) == 5
    assert hash(Loud(1)) == hash(Loud(1))
