"""Partial pooling: planted parameters come back, places without rows take the coarser level, nothing else is looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.calibrate import hierarchy
from harness.calibrate.calibration import Observation
from projector.experience import TERMS

ALL = tuple(range(len(TERMS)))
GPUS = {"g1": ("a1", "v1"), "g2": ("a1", "v1"), "g3": ("a2", "v1"), "g4": ("a3", "v2")}


def levels(gpu: str) -> tuple[str, ...]:
    arch, vendor = GPUS.get(gpu, ("a1", "v1"))
    return (gpu, f"arch:{arch}", f"vendor:{vendor}", "all")


def made(truth: Callable[[str, str, np.ndarray], float], noise: float = 0.02, seed: int = 1) -> list[Observation]:
    """Rows of eight families and two frameworks on four GPUs, with random shares."""
    generator = np.random.default_rng(seed)
    rows = []
    for gpu in GPUS:
        for framework in ("f1", "f2"):
            for i in range(40):
                share = np.array([1.0, *generator.dirichlet(np.ones(len(TERMS)))[1:]])
                ratio = truth(gpu, framework, share) + noise * float(generator.normal())
                rows.append(
                    Observation(
                        run_id=f"{gpu}-{framework}-{i}",
                        family=f"m{i % 8}",
                        framework=framework,
                        levels=levels(gpu),
                        log_ratio=ratio,
                        gpu=gpu,
                        shares=tuple(share.tolist()),
                    )
                )
    return rows


def fitted(rows: list[Observation], terms: tuple[int, ...] = ALL) -> hierarchy.Posterior:
    return hierarchy.fit(hierarchy.design(rows, terms), np.ones(len(rows), dtype=bool))


def test_planted_parameters_come_back() -> None:
    host = TERMS.index("host")
    planted = {"g1": 0.05, "g2": 0.10, "g3": 0.15, "g4": 0.30}
    found = fitted(made(lambda gpu, framework, s: planted[gpu] + 0.1 * (framework == "f2") + 0.3 * s[host]))
    for gpu, theta in planted.items():
        values, errors = found.of_levels(levels(gpu))
        stack = [found.of_stack(f)[0][0] for f in ("f1", "f2")]
        assert values[0] + stack[0] == pytest.approx(theta, abs=0.04)
        assert stack[1] - stack[0] == pytest.approx(0.1, abs=0.02)
        assert values[host] == pytest.approx(0.3, abs=0.08)
        assert 0.0 < errors[0] < 0.15


def test_a_tenth_of_the_rows_off_by_five_moves_little() -> None:
    rows = made(lambda gpu, framework, s: 0.1)
    wild = [replace(o, log_ratio=math.log(5.0)) if i % 10 == 3 else o for i, o in enumerate(rows)]
    assert fitted(wild, (0,)).of_levels(levels("g1"))[0][0] == pytest.approx(0.1, abs=0.03)


def test_a_gpu_without_rows_takes_its_architecture_and_is_less_certain() -> None:
    found = fitted(made(lambda gpu, framework, s: 0.3 if gpu == "g4" else 0.0), (0,))
    own, own_error = (one[0] for one in found.of_levels(levels("g4")))
    new, new_error = (one[0] for one in found.of_levels(("new", "arch:a3", "vendor:v2", "all")))
    other, other_error = (one[0] for one in found.of_levels(("new", "arch:x", "vendor:y", "all")))
    assert own == pytest.approx(0.3, abs=0.05)
    assert other < new <= own + 1e-9
    assert own_error < new_error < other_error
    assert found.of_stack("never seen")[0] == (0.0,) * len(TERMS)
    assert found.of_stack("never seen")[1][0] > 0.0


@settings(max_examples=15, deadline=None)
@given(poison=st.floats(-3.0, 3.0), seed=st.integers(0, 100))
def test_rows_that_are_not_chosen_are_not_looked_at(poison: float, seed: int) -> None:
    rows = made(lambda gpu, framework, s: 0.1, seed=seed)
    kept = np.array([o.family != "m3" for o in rows])
    clean, bad = hierarchy.design(rows, ALL), hierarchy.design(rows, ALL)
    bad.y[~kept] = poison
    one, two = hierarchy.fit(clean, kept), hierarchy.fit(bad, kept)
    assert np.array_equal(one.mean, two.mean)
    assert np.array_equal(one.covariance, two.covariance)


def test_more_rows_of_one_cell_do_not_count_as_more_cells() -> None:
    rows = made(lambda gpu, framework, s: 0.1, noise=0.0)
    twice = [*rows, *rows]
    assert fitted(twice, (0,)).of_levels(levels("g1"))[0] == pytest.approx(
        fitted(rows, (0,)).of_levels(levels("g1"))[0]
    )


def test_the_same_rows_give_the_same_fit() -> None:
    rows = made(lambda gpu, framework, s: 0.1)
    assert np.array_equal(fitted(rows).mean, fitted(rows).mean)
