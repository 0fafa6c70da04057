"""Nested selection: a label touches neither its law, nor its parameters, nor its interval; the better law is chosen."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.calibrate import folds, scatter
from harness.calibrate.calibration import Observation
from harness.calibrate.folds import Bench
from harness.contracts.estimates import Estimate
from projector.experience import FEATURES, TERMS

HOST = TERMS.index("host")


def rows(
    seed: int = 0, families: int = 6, host: float = 0.0, noise: float = 0.05, gpus: tuple[str, ...] = ("g1", "g2", "g3")
) -> list[Observation]:
    generator = np.random.default_rng(seed)
    made = []
    for family in range(families):
        for gpu in gpus:
            for i in range(2):
                share = [1.0, 0.0, float(generator.uniform(0.0, 0.8)), 0.1, 0.0]
                ratio = 0.1 + host * share[HOST] + noise * float(generator.normal())
                made.append(
                    Observation(
                        run_id=f"m{family}-{gpu}-{i}",
                        family=f"m{family}",
                        framework=f"f{family % 2}",
                        levels=(gpu, "arch:a", "vendor:v", "all"),
                        log_ratio=ratio,
                        gpu=gpu,
                        shares=tuple(share),
                    )
                )
    return made


def of_family(found: dict[str, Estimate], name: str) -> dict[str, Estimate]:
    return {run_id: estimate for run_id, estimate in found.items() if run_id.startswith(f"{name}-")}


@settings(max_examples=5, deadline=None)
@given(poison=st.floats(-5.0, 5.0), name=st.sampled_from(["m0", "m3", "m5"]))
def test_a_family_never_touches_its_own_estimates(poison: float, name: str) -> None:
    clean = rows()
    bad = [replace(o, log_ratio=poison) if o.family == name else o for o in clean]
    assert of_family(Bench.of(clean).held_out(), name) == of_family(Bench.of(bad).held_out(), name)
    assert Bench.of(clean).held_out() != Bench.of(bad).held_out() or poison == 0.0


def test_an_unseen_gpu_or_framework_never_touches_its_own_estimates() -> None:
    clean = rows()
    for label, value in ((lambda o: o.gpu, "g2"), (lambda o: o.framework, "f1")):
        bad = [replace(o, log_ratio=2.0) if label(o) == value else o for o in clean]
        mine = {o.run_id for o in clean if label(o) == value}
        one, two = Bench.of(clean, label).held_out(), Bench.of(bad, label).held_out()
        assert {i: one[i] for i in mine} == {i: two[i] for i in mine}
        assert all(one[i].level != 0 for i in mine) or value == "f1"


def test_terms_are_chosen_where_a_term_is_off_and_not_where_none_is() -> None:
    assert Bench.of(rows(host=0.6, noise=0.02)).fold(None).law == "terms"
    plain = Bench.of(rows(host=0.0, noise=0.02)).fold(None)
    assert plain.law != "terms"
    assert plain.scores[plain.law] <= min(plain.scores.values()) * (1.0 + folds.MARGIN)
    off = Bench.of(rows(host=0.6, noise=0.02)).held_out()
    errors = [abs(o.log_ratio - off[o.run_id].log) for o in rows(host=0.6, noise=0.02)]
    assert np.mean(errors) < 0.05


def test_rows_without_parts_leave_terms_out() -> None:
    bare = [replace(o, shares=(1.0, 0.0, 0.0, 0.0, 0.0)) for o in rows()]
    assert set(Bench.of(bare).fold(None).scores) == {"factor", "pooled"}


def test_a_law_can_be_fixed() -> None:
    found = Bench.of(rows(host=0.6)).held_out("factor")
    assert {estimate.law for estimate in found.values()} == {"factor"}
    expected = np.median([o.log_ratio for o in rows(host=0.6) if o.gpu == "g1" and o.family != "m0"])
    assert found["m0-g1-0"].log == pytest.approx(expected)


def test_a_gpu_without_rows_gets_a_wider_interval() -> None:
    seen = rows(families=14)
    new = replace(seen[0], run_id="new", family="new", levels=("g9", "arch:z", "vendor:z", "all"), gpu="g9")
    known = replace(seen[0], run_id="known", family="new")
    found = Bench.of([*seen, replace(new, log_ratio=math.nan), replace(known, log_ratio=math.nan)]).held_out()
    assert found["new"].half > found["known"].half
    assert found["new"].error > found["known"].error
    assert found["new"].fallback
    assert not found["known"].fallback


def test_what_is_not_measured_is_estimated_and_teaches_nothing() -> None:
    seen = rows()
    case = replace(seen[0], run_id="case", family="case", log_ratio=math.nan)
    with_case, without = Bench.of([*seen, case]).held_out(), Bench.of(seen).held_out()
    assert {i: with_case[i] for i in without} == without
    assert math.isfinite(with_case["case"].log)


def test_nothing_to_learn_from_leaves_the_projection_alone() -> None:
    only = rows(families=1)
    found = Bench.of(only).held_out()
    assert {(e.value, e.level, e.half) for e in found.values()} == {(1.0, -1, math.inf)}
    fold, estimates = folds.judge([])
    assert (fold.scores, estimates) == ({}, {})


def test_the_same_rows_give_the_same_estimates() -> None:
    assert folds.judge(rows())[1] == folds.judge(rows())[1]


def test_the_scatter_that_a_row_learns_from_leaves_its_own_family_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [replace(o, log_ratio=o.log_ratio + (0.6 if o.family == "m0" else 0.0)) for o in rows()]
    told: list[np.ndarray] = []
    monkeypatch.setattr(folds.intervals, "learn", lambda x, *_: told.append(x))
    fold = Bench.of(seen).fold(None)
    ground = FEATURES.index("ground")
    for o, features in zip(seen, told[0], strict=True):
        assert features[ground] == pytest.approx(fold.scatter.of_levels(o.levels, o.family))
    assert fold.scatter.of_levels(seen[0].levels, "m0") < 0.8 * fold.scatter.of_levels(seen[0].levels)


def test_scatter_leans_on_the_coarser_place_and_leaves_labels_out() -> None:
    seen = rows(families=4, gpus=("g1", "g2"))
    residuals = [0.4 if o.gpu == "g1" else 0.1 for o in seen]
    found = scatter.gather(seen, residuals, [o.family for o in seen])
    whole = found.of_levels(("all",))
    one, two, none = (found.of_levels((gpu, "arch:a", "vendor:v", "all")) for gpu in ("g1", "g2", "g9"))
    assert two < none < one
    assert whole == pytest.approx(0.25)
    changed = [9.0 if o.family == "m0" else r for o, r in zip(seen, residuals, strict=True)]
    other = scatter.gather(seen, changed, [o.family for o in seen])
    at = ("g1", "arch:a", "vendor:v", "all")
    assert other.of_levels(at, "m0") == pytest.approx(found.of_levels(at, "m0"))
    assert other.of_stack("f0", "m0") == pytest.approx(found.of_stack("f0", "m0"))
    assert other.of_levels(at) > found.of_levels(at)
