"""Partial pooling: planted factors come back, sources weigh and not rows, and one inversion holds every source out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.calibrate import hierarchy
from harness.calibrate.hierarchy import LAWS, Fitted, Units
from harness.contracts.estimates import Observation

GPUS = {"g1": ("a1", "v1"), "g2": ("a1", "v1"), "g3": ("a2", "v1"), "g4": ("a3", "v2")}


def levels(gpu: str) -> tuple[str, ...]:
    arch, vendor = GPUS.get(gpu, ("a1", "v1"))
    return (gpu, f"arch:{arch}", f"vendor:{vendor}", "all")


def made(
    seed: int = 1, sources: int = 12, off: float = 0.1, noise: float = 0.02, **planted: float
) -> list[Observation]:
    """Two rows of every GPU and framework of each source; ``planted``: more by GPU or framework."""
    generator = np.random.default_rng(seed)
    return [
        Observation(
            run_id=f"s{s}-{gpu}-{framework}-{i}",
            family=f"m{s % 4}",
            framework=framework,
            levels=levels(gpu),
            log_ratio=off + planted.get(gpu, 0.0) + planted.get(framework, 0.0) + noise * float(generator.normal()),
            gpu=gpu,
            source=f"s{s}",
        )
        for s in range(sources)
        for gpu in GPUS
        for framework in ("f1", "f2")
        for i in range(2)
    ]


def fitted(rows: list[Observation], law: str = "places") -> Fitted:
    units = Units.made(rows)
    return units.fit(law, np.ones(len(units.first), dtype=bool))


def test_planted_factors_come_back() -> None:
    found = fitted(made(g4=0.2, f2=0.1))
    for gpu, theta in {"g1": 0.1, "g3": 0.1, "g4": 0.3}.items():
        for framework, more in {"f1": 0.0, "f2": 0.1}.items():
            said = found.ground(levels(gpu)).value + found.stack(framework).value
            assert said == pytest.approx(theta + more, abs=0.03)


@pytest.mark.parametrize(("law", "value"), [("none", 0.0), ("one", 0.1)])
def test_the_simple_laws_say_the_same_of_every_place(law: str, value: float) -> None:
    found = fitted(made(), law)
    for gpu in (*GPUS, "never seen"):
        assert found.ground(levels(gpu)).value == pytest.approx(value, abs=0.01)
    assert found.stack("f1").value == found.stack("never seen").value == 0.0
    assert (found.ground(levels("g1")).error == 0.0) == (law == "none")


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), law=st.sampled_from(sorted(LAWS)))
def test_one_inversion_says_of_every_source_what_a_fit_without_it_says(seed: int, law: str) -> None:
    units = Units.made(made(seed, sources=5, g4=0.3, f2=-0.2, noise=0.1))
    whole = units.fit(law, np.ones(len(units.first), dtype=bool)).without_source(units.source)
    for source in range(5):
        rest = units.fit(law, units.source != source)
        for i in np.flatnonzero(units.source == source):
            o = units.first[i]
            assert whole[i] == pytest.approx(rest.ground(o.levels).value + rest.stack(o.framework).value, abs=1e-9)


def test_cells_of_one_source_say_little_more_than_one_of_them() -> None:
    rows = made(sources=12, noise=0.0)
    same = [replace(o, source="one") for o in rows]
    crowd = [replace(o, log_ratio=0.5) for o in same] + [replace(o, source=f"t{o.source}") for o in rows]
    assert fitted(same, "one").ground(levels("g1")).error > 2.0 * fitted(rows, "one").ground(levels("g1")).error
    assert fitted(crowd, "one").ground(levels("g1")).value < 0.18


def test_more_rows_of_a_cell_do_not_count() -> None:
    rows = made(noise=0.0)
    twice = [*rows, *(o for o in rows if o.source == "s1")]
    assert fitted(twice).ground(levels("g1")) == fitted(rows).ground(levels("g1"))


def test_a_broken_source_moves_little() -> None:
    rows = [replace(o, log_ratio=math.log(50.0)) if o.source == "s3" else o for o in made()]
    assert fitted(rows, "one").ground(levels("g1")).value == pytest.approx(0.1, abs=0.07)


def test_a_gpu_without_rows_takes_its_architecture_and_is_less_certain() -> None:
    found = fitted(made(g4=0.3))
    own, new = found.ground(levels("g4")), found.ground(("new", "arch:a3", "vendor:v2", "all"))
    other = found.ground(("new", "arch:x", "vendor:y", "all"))
    assert other.value < new.value <= own.value + 1e-9
    assert own.error < new.error < other.error
    assert (own.sources, new.sources) == (12, 0)
    assert found.stack("never seen").value == 0.0
    assert found.stack("never seen").error == pytest.approx(hierarchy.PLACE_SD)


@settings(max_examples=15, deadline=None)
@given(poison=st.floats(-3.0, 3.0), law=st.sampled_from(sorted(LAWS)))
def test_units_that_are_not_chosen_are_not_looked_at(poison: float, law: str) -> None:
    rows = made()
    units = Units.made(rows)
    bad = Units.made([replace(o, log_ratio=poison) if o.family == "m3" else o for o in rows])
    kept = np.array([o.family != "m3" for o in units.first])
    assert units.fit(law, kept).ground(levels("g1")) == bad.fit(law, kept).ground(levels("g1"))
