"""Values as text: what is packed is given back to the last bit, and what is not of the type is refused, never built."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.contracts.runs import MeasuredRun
from harness.evidence import dataset
from projector.io.packed import pack, unpack
from projector.mechanisms.execution import Execution
from projector.workload.layer_kinds import LayerKind
from tests.conftest import ROOT


@dataclass(frozen=True)
class Leaf:
    number: float
    words: tuple[str, ...] = ()
    count: int | None = None


@dataclass(frozen=True)
class Tree:
    name: str
    left: Tree | None = None
    right: Tree | None = None
    leaf: Leaf = Leaf(0.0)
    notes: Mapping[str, object] = field(default_factory=dict)
    pair: tuple[bool, bytes] = (False, b"")


_NOTES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
_LEAVES = st.builds(
    Leaf, st.floats(allow_nan=False) | st.integers(), st.lists(st.text()).map(tuple), st.none() | st.integers()
)
_TREES = st.recursive(
    st.builds(Tree, st.text(), leaf=_LEAVES),
    lambda inner: st.builds(
        Tree, st.text(), inner, inner, _LEAVES, st.dictionaries(st.text(), _NOTES),
        st.tuples(st.booleans(), st.binary()),
    ),
    max_leaves=4,
)  # fmt: skip


@given(_TREES)
def test_what_is_packed_is_given_back(tree: Tree) -> None:
    again = unpack(pack(tree, Tree), Tree)
    assert again == tree
    assert repr(again) == repr(tree)


@given(
    st.recursive(st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(), st.lists, max_leaves=12),
    st.data(),
)
def test_any_other_text_is_refused_or_of_the_type(text: object, data: st.DataObject) -> None:
    table = data.draw(
        st.lists(st.dictionaries(st.sampled_from(["name", "left", "leaf", "number", "pair", "os"]), _NOTES))
    )
    try:
        found = unpack(json.dumps([table, text]).encode(), Tree)
    except ValueError:
        return
    assert type(found) is Tree
    assert type(found.name) is str
    assert found.leaf is None or type(found.leaf) is Leaf
    assert unpack(pack(found, Tree), Tree) == found


def test_what_stands_twice_is_one_again_and_a_circle_is_refused() -> None:
    twig = Tree("twig")
    again = unpack(pack(Tree("t", twig, twig), Tree), Tree)
    assert again.left is again.right
    refusal(unpack, json.dumps([[{"name": "a", "left": 0}], 0]).encode(), Tree, match="recursion", kind=ValueError)
    doubled = [{"name": "a"}, *({"name": "a", "left": n, "right": n} for n in range(200))]
    found: Tree | None = unpack(json.dumps([doubled, 200]).encode(), Tree)  # 2^200 leaves, 201 objects
    for _ in range(200):
        found = found.left
    assert found == Tree("a")


@dataclass(frozen=True, eq=False)
class Arrays:
    real: NDArray[np.float64]
    whole: NDArray[np.int_]


def test_arrays_are_numbers_only() -> None:
    given_ = Arrays(np.array([[0.1, math.inf], [-0.0, 5e-324]]), np.arange(3))
    again = unpack(pack(given_, Arrays), Arrays)
    assert np.array_equal(again.real, given_.real)
    assert np.array_equal(again.whole, given_.whole)
    again.real[0, 0] = 1.0
    objects: Any = Arrays(np.array([print]), np.arange(3))
    refusal(pack, objects, Arrays, kind=TypeError)
    with pytest.raises(ValueError, match="not a"):
        unpack(json.dumps([[{"real": [[10**9], "AAAA"], "whole": [[0], ""]}], 0]).encode(), Arrays)


def test_every_measured_run_is_given_back(every: int) -> None:
    runs = dataset.read(ROOT / "measured" / "runs")[::every]
    again = unpack(pack(runs, list[MeasuredRun]), list[MeasuredRun])
    assert again == runs
    assert repr(again) == repr(runs)


# Values as text: what was packed comes back, by the declared type, and text that names anything else is refused.


@dataclass(frozen=True)
class Way:
    length: int = 1


@dataclass(frozen=True)
class Bent(Way):
    bends: int = 2


@dataclass(frozen=True)
class Apart:
    length: int = 1


@dataclass(frozen=True)
class Trip:
    way: Way
    other: Bent | Apart | None = None


@pytest.mark.parametrize("trip", [Trip(Way(3)), Trip(Bent(3, 4)), Trip(Way(), Apart(5)), Trip(Bent(), Bent(1, 7))])
def test_what_extends_the_declared_and_one_of_several_come_back(trip: Trip) -> None:
    assert unpack(pack(trip, Trip), Trip) == trip


def test_a_class_that_is_not_declared_is_neither_written_nor_read() -> None:
    with pytest.raises(TypeError):
        pack(Trip(Apart()), Trip)  # type: ignore[arg-type]
    text = pack(Trip(Bent(3, 4)), Trip).decode()
    assert "Bent" in text
    for name in ("Apart", "Path", "system", "__class__"):
        refusal(unpack, text.replace("Bent", name).encode(), Trip, match="not a", kind=ValueError)
    with pytest.raises(ValueError, match="not a"):
        unpack(json.dumps([[{"way": 0}], 0]).encode(), Trip)  # a trip in the place of its way


def test_strategies_and_kinds_of_layers_travel() -> None:
    one = Execution.of(fusion={"strategy": "torch_eager"})
    assert unpack(pack(one, Execution), Execution) == one
    assert unpack(pack(LayerKind(), LayerKind), LayerKind) == LayerKind()


def test_no_program_reads_what_could_run() -> None:
    """Pickles, and the readers that open them, stand in no file of the packages."""
    for path in (path for package in ("projector", "harness") for path in (ROOT / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found = re.search(r"(import|from) pickle|torch\.(load|save)\(|allow_pickle|import (marshal|shelve)", text)
        assert not found, f"{path}: {found}"
