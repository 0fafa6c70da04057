"""The interval beside a projection: closed form, fallbacks, broken files, and that a projection is never changed by it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector import experience
from projector.errors import InputError
from projector.experience import Experience, Ground
from projector.hardware.catalogue import gpu

KNOWN = Experience(
    level=0.9,
    quantile=2.0,
    least=0.02,
    coefficients=(0.1, 0.2, 0.3, 0.4, 0.05),
    seen=(1.0, 1.0, 0.9, 0.9, 1.0),
    grounds={
        "h100_sxm": Ground(factor=1.2, cells=4),
        "arch:hopper": Ground(factor=1.1, cells=9),
        "vendor:nvidia": Ground(factor=1.05, cells=20),
        "all": Ground(factor=1.0, cells=30),
    },
)
PARTS = {"compute_s": 0.5, "tp_s": 0.2, "dp_s": 0.1, "host_s": 0.2}


def test_the_closed_form() -> None:
    found = experience.expected(1.0, PARTS, ["a", "b"], gpu("h100_sxm"), KNOWN)
    assert found is not None
    half = 2.0 * (0.1 + 0.2 * 0.25 + 0.3 * 0.3 + 0.4 * 0.2 + 0.05 * 0.5)
    assert found.middle == pytest.approx(1.2)
    assert (found.low, found.high) == pytest.approx((1.2 * math.exp(-half), 1.2 * math.exp(half)))
    assert (found.rests_on, found.cells, found.level) == ("h100_sxm", 4, 0.9)


@pytest.mark.parametrize(
    ("name", "key"),
    [("h200", "arch:hopper"), ("b200", "vendor:nvidia"), ("mi355x", "all")],
)
def test_a_gpu_without_runs_takes_the_next_coarser_ground_and_a_wider_interval(name: str, key: str) -> None:
    own = experience.expected(1.0, PARTS, [], gpu("h100_sxm"), KNOWN)
    other = experience.expected(1.0, PARTS, [], gpu(name), KNOWN)
    assert own is not None
    assert other is not None
    assert other.rests_on == key
    assert other.high / other.low > own.high / own.low


@given(assumed=st.integers(0, 20), share=st.floats(0.0, 1.0), cells=st.integers(0, 50), step=st.floats(1e-3, 1e3))
def test_features_stay_between_nothing_and_all(assumed: int, share: float, cells: int, step: float) -> None:
    told = experience.features(assumed, {"ep_s": share * step, "host_s": share * step}, step, cells)
    assert len(told) == len(experience.FEATURES)
    assert all(0.0 <= value <= 1.0 for value in told)
    assert told[2] == pytest.approx(share)


def test_the_shipped_file_is_whole() -> None:
    found = experience.load()
    assert found is not None
    assert found.level == 0.9
    assert found.quantile > 0.0
    assert min(found.coefficients) >= 0.0
    assert {"all", "vendor:amd", "vendor:nvidia", "h100_sxm", "mi355x"} <= set(found.grounds)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "level: 0.9",
        "level: x\nleast: 0\nquantile: 1\ncoefficients: {}\nseen: {}\ngrounds: {}",
        "- 1",
        "level: 0.9\nquantile: 1\n",
    ],
)
def test_a_broken_file_is_one_clear_error(text: str) -> None:
    with pytest.raises(InputError, match=r"somewhere\.yaml"):
        experience.parse(text, "somewhere.yaml")
