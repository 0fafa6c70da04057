"""Laws of projections relative to a measured run, the kinds of change, and what is shipped of both."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import InputError
from projector.relative import Ratios, load, parse, relative, text
from projector.workload.kinds import KINDS, between
from projector.workload.recipe import Recipe

KNOWN = Ratios(level=0.9, quantile=1.5, repeat=0.01, other=0.1, kinds={"tp": 0.05, "pp": 0.12}, evidence={"pairs": "9"})
SECONDS = st.floats(1e-3, 1e4)
SOME = st.frozensets(st.sampled_from([*KINDS, "unheard of"]))


@given(measured=SECONDS, projected=SECONDS, kinds=SOME)
def test_the_anchor_itself_takes_what_it_took(measured: float, projected: float, kinds: frozenset[str]) -> None:
    found = relative(measured, projected, projected, kinds, KNOWN)
    assert found.ratio == 1.0
    assert found.middle == measured


@given(measured=SECONDS, a=SECONDS, b=SECONDS, c=SECONDS)
def test_ratios_are_transitive(measured: float, a: float, b: float, c: float) -> None:
    there = relative(measured, a, b, (), KNOWN)
    over = relative(there.middle, b, c, (), KNOWN)
    direct = relative(measured, a, c, (), KNOWN)
    assert there.ratio * over.ratio == pytest.approx(direct.ratio)
    assert over.middle == pytest.approx(direct.middle)


@given(measured=SECONDS, a=SECONDS, b=SECONDS, kinds=SOME, more=SOME)
def test_the_interval_is_positive_holds_the_middle_and_grows_with_what_changes(
    measured: float, a: float, b: float, kinds: frozenset[str], more: frozenset[str]
) -> None:
    found, wider = relative(measured, a, b, kinds, KNOWN), relative(measured, a, b, kinds | more, KNOWN)
    assert found.low is not None
    assert found.high is not None
    assert 0.0 < found.low <= found.middle <= found.high
    if kinds:
        assert KNOWN.half_width(kinds | more) >= KNOWN.half_width(kinds)
        assert wider.high is not None
        assert wider.high >= found.high * (1 - 1e-12)


def test_spreads_add_up_in_squares_and_a_kind_that_nobody_measured_has_that_of_all() -> None:
    assert KNOWN.spread({"tp", "pp"}) == pytest.approx(0.13)
    assert KNOWN.spread({"cp"}) == KNOWN.other
    assert KNOWN.spread(()) == KNOWN.repeat
    found = relative(2.0, 1.0, 1.5, {"tp"}, KNOWN)
    assert found.high == pytest.approx(3.0 * math.exp(1.5 * 0.05))


def test_every_field_of_a_recipe_is_of_one_kind() -> None:
    named = [key for keys in KINDS.values() for key in keys]
    assert len(named) == len(set(named))
    others = {"gpu", "gpus", "model", "num_layers", "framework"}
    assert set(named) == {field.name for field in dataclasses.fields(Recipe)} | others


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        ({"tp": 1}, {"tp": 1}, set()),
        ({"tp": 1}, {"tp": "1"}, set()),
        ({"tp": 1}, {"tp": 2, "pp": 2}, {"tp", "pp"}),
        ({"gpus": 8, "global_batch_size": 64}, {"gpus": 16, "global_batch_size": 128}, {"scale"}),
        ({"gpus": 8, "global_batch_size": 64}, {"gpus": 16, "global_batch_size": 64}, {"scale"}),
        ({"gpus": 8, "global_batch_size": 64}, {"gpus": 16, "global_batch_size": 512}, {"scale", "batch"}),
        ({"gpus": 8, "global_batch_size": 64}, {"gpus": 8, "global_batch_size": 128}, {"batch"}),
        ({"launcher": "a", "version": "1"}, {"launcher": "b"}, set()),
        ({}, {"gpu": "b200", "fp8_recipe": "mxfp8"}, {"GPU", "precision"}),
    ],
)
def test_kinds_of_change(one: dict[str, object], other: dict[str, object], kinds: set[str]) -> None:
    assert between(one, other) == between(other, one) == kinds


def test_what_is_written_is_read() -> None:
    assert parse(text(KNOWN), "here") == KNOWN


@pytest.mark.parametrize("value", ["-0.1", ".nan", ".inf", "a lot"])
def test_a_spread_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="here"):
        parse(text(KNOWN).replace("repeat: 0.0100", f"repeat: {value}"), "here")


def test_what_is_shipped_knows_the_kinds_that_users_ask_for() -> None:
    known = load()
    assert known is not None
    assert set(known.kinds) <= set(KINDS)
    assert {"tp", "pp", "batch", "precision", "scale", "GPU", "schedule", "recompute", "dispatcher"} <= set(known.kinds)
    assert 0.0 < known.half_width({"batch"}) < 0.5


def test_nothing_learnt_is_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.relative.load", lambda: None)
    found = relative(2.0, 1.0, 3.0, {"tp"})
    assert (found.middle, found.low, found.high, found.level) == (6.0, None, None, None)
