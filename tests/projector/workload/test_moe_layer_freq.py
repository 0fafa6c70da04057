"""``moe_layer_freq`` in all its spellings, and that none of them is evaluated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.workload.moe_layer_freq import expand


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        (1, (1, 1, 1, 1)),
        (2, (1, 0, 1, 0)),
        ("2", (1, 0, 1, 0)),
        ([0, 1, 1, 1], (0, 1, 1, 1)),
        ("[0,1,1,1]", (0, 1, 1, 1)),
        ("([0]*1+[1]*3)", (0, 1, 1, 1)),
        ("([0,1]*2)", (0, 1, 0, 1)),
        (" 2*[0] + [1]*2 ", (0, 0, 1, 1)),
        ("([0]+[1]*1)*2", (0, 1, 0, 1)),
    ],
)
def test_spellings(value, pattern):
    assert expand(value, 4) == (pattern, "")


@pytest.mark.parametrize(
    "value",
    [0, -1, True, None, 1.5, "x", "[0]*3", [0, 1], [2, 1, 1, 1], "__import__('os')", "[0]**4", "[1 for i in range(4)]",
     "([1]*99999999999)", "(" * 500, "[[1]*4]", "'a'*4", "4-[1]", {}, "[0]*-1"],
)  # fmt: skip
def test_everything_else_is_refused(value):
    pattern, expected = expand(value, 4)
    assert pattern == ()
    assert expected


@given(st.text("[]()01,*+ 2", max_size=40), st.integers(1, 8))
def test_any_text(text, layers):
    pattern, expected = expand(text, layers)
    assert bool(expected) != (len(pattern) == layers)


@given(st.integers(0, 40), st.integers(1, 40))
def test_dense_layers_first(dense, sparse):
    pattern, _ = expand(f"([0]*{dense}+[1]*{sparse})", dense + sparse)
    assert pattern == (0,) * dense + (1,) * sparse
