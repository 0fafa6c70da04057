"""Nested selection: a label touches neither its law, nor its parameters, nor its interval; a correction has to be earned."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.calibrate import folds
from harness.calibrate.folds import LABELS, Bench
from harness.calibrate.hierarchy import LAWS
from harness.contracts.estimates import Observation


def rows(
    seed: int = 0,
    sources: int = 16,
    off: float = 0.1,
    between: float = 0.02,
    framework: float = 0.0,
    gpus: tuple[str, ...] = ("g1", "g2"),
) -> list[Observation]:
    """Two rows of each GPU of every source; ``between``: how much sources differ; ``framework``: what f1 adds."""
    generator = np.random.default_rng(seed)
    own = between * generator.normal(size=sources)
    return [
        Observation(
            run_id=f"s{s}-{gpu}-{i}",
            family=f"m{s % 4}",
            framework=f"f{s % 2}",
            levels=(gpu, "arch:a", "vendor:v", "all"),
            log_ratio=off + framework * (s % 2) + float(own[s] + 0.02 * generator.normal()),
            gpu=gpu,
            source=f"s{s}",
        )
        for s in range(sources)
        for gpu in gpus
        for i in range(2)
    ]


@settings(max_examples=8, deadline=None)
@given(poison=st.floats(-5.0, 5.0), label=st.sampled_from(sorted(LABELS)))
def test_what_is_left_out_never_touches_its_own_estimates(poison: float, label: str) -> None:
    clean, of = rows(), LABELS[label]
    out = of(clean[-1])
    bad = [replace(o, log_ratio=poison) if of(o) == out else o for o in clean]
    one, two = Bench.of(clean, of).held_out(), Bench.of(bad, of).held_out()
    mine = [o.run_id for o in clean if of(o) == out]
    assert {i: one[i] for i in mine} == {i: two[i] for i in mine}


def test_a_correction_is_used_where_sources_that_it_has_not_seen_gain_by_it() -> None:
    fold = Bench.of(rows()).fold(None)
    assert fold.law == "one"
    assert set(fold.scores) == set(LAWS)
    assert fold.ground(rows()[0].levels).value == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_where_sources_differ_more_than_they_share_nothing_is_corrected(seed: int) -> None:
    fold = Bench.of(rows(seed, off=0.0, between=0.15)).fold(None)
    assert fold.law == "none"
    assert fold.estimate(rows()[0]).value == 1.0


def test_a_framework_is_corrected_where_many_sources_agree_on_it() -> None:
    seen = rows(framework=0.3)
    found = Bench.of(seen).held_out()
    assert {estimate.law for estimate in found.values()} == {"stack"}
    assert np.mean([abs(o.log_ratio - found[o.run_id].log) for o in seen]) < 0.06


def test_a_bias_of_one_source_alone_corrects_nobody() -> None:
    alone = [replace(o, log_ratio=o.log_ratio + 0.6, framework="own") if o.source == "s3" else o for o in rows(off=0.0)]
    assert Bench.of(alone).fold(None).law == "none"


def test_a_law_can_be_fixed() -> None:
    found = Bench.of(rows()).held_out("places")
    assert {estimate.law for estimate in found.values()} == {"places"}


def test_unknown_places_widen_and_more_sources_never_do() -> None:
    seen = rows(sources=24, between=0.1)
    new = replace(seen[0], source="new", log_ratio=math.nan)
    asked = {
        "known": new,
        "gpu": replace(new, levels=("g9", *new.levels[1:]), gpu="g9"),
        "framework": replace(new, framework="unheard of"),
        "both": replace(new, levels=("g9", *new.levels[1:]), gpu="g9", framework="unheard of"),
    }
    found = Bench.of([*seen, *(replace(o, run_id=name) for name, o in asked.items())]).held_out()
    half = {name: found[name].half for name in asked}
    assert half["known"] <= min(half["gpu"], half["framework"])
    assert half["both"] >= max(half["gpu"], half["framework"])
    assert found["gpu"].fallback
    assert not found["known"].fallback


def test_what_is_not_measured_is_estimated_and_teaches_nothing() -> None:
    seen = rows()
    case = replace(seen[0], run_id="case", source="case", log_ratio=math.nan)
    with_case, without = Bench.of([*seen, case]).held_out(), Bench.of(seen).held_out()
    assert {i: with_case[i] for i in without} == without
    assert math.isfinite(with_case["case"].log)


def test_nothing_to_learn_from_leaves_the_projection_alone() -> None:
    found = Bench.of(rows(sources=2)).held_out()
    assert {(e.value, e.half) for e in found.values()} == {(1.0, math.inf)}
    fold, estimates = folds.judge([])
    assert (fold.scores, fold.learnt, estimates) == ({}, None, {})


def test_the_same_rows_give_the_same_estimates() -> None:
    assert folds.judge(rows())[1] == folds.judge(rows())[1]


def test_other_sources_are_counted_without_the_rows_own() -> None:
    source, place = np.array([0, 0, 1, 2, 2]), np.array([7, 8, 7, 7, 8]) - 7
    assert folds._others(source, place).tolist() == [2, 1, 2, 2, 1]
