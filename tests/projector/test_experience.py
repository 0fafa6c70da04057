"""The interval beside a projection: closed form, fallbacks, broken files, and that a projection is never changed by it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector import experience
from projector.errors import InputError
from projector.experience import BOUNDS, TERMS, Basis, Experience
from projector.experience_file import parse, text
from projector.hardware.catalogue import gpu


def basis(step: float, error: float, scatter: float = 0.1, host: float = 0.0, cells: int = 4) -> Basis:
    values, errors = (step, 0.0, host, 0.0, 0.0), (error, 0.0, 0.01 if host else 0.0, 0.0, 0.0)
    return Basis(values=values, errors=errors, scatter=scatter, rows=9, cells=cells)


KNOWN = Experience(
    law="terms",
    level=0.9,
    quantile=2.0,
    least=0.02,
    coefficients=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    seen=(1.0, 1.0, 0.9, 0.9, 1.0, 1.0),
    grounds={
        "h100_sxm": basis(0.2, 0.03, host=0.5),
        "arch:hopper": basis(0.15, 0.06),
        "vendor:nvidia": basis(0.1, 0.09),
        "all": basis(0.0, 0.12),
    },
    stacks={"megatron-lm": basis(0.05, 0.02, scatter=0.08)},
    unseen=basis(0.0, 0.04, cells=0),
    evidence={"rows": "9"},
)
PARTS = {"compute_s": 0.5, "tp_s": 0.2, "dp_s": 0.1, "host_s": 0.2}


def test_the_closed_form() -> None:
    found = experience.expected(1.0, PARTS, ["a", "b"], gpu("h100_sxm"), framework="megatron-lm", experience=KNOWN)
    assert found is not None
    log = (0.2 + 0.05) + 0.2 * 0.5
    error = math.sqrt(0.03**2 + 0.02**2 + (0.2 * 0.01) ** 2)
    difficulty = 0.1 + 0.2 * 0.25 + 0.3 * 0.3 + 0.4 * 0.2 + 0.5 * 0.1 + 0.6 * 0.08
    half = 2.0 * math.hypot(difficulty, error)
    assert found.middle == pytest.approx(math.exp(log))
    assert (found.low, found.high) == pytest.approx((math.exp(log - half), math.exp(log + half)))
    assert (found.rests_on, found.cells, found.stack_cells, found.level) == ("h100_sxm", 4, 4, 0.9)
    assert found.parts == {"step": pytest.approx(math.exp(0.25)), "host": pytest.approx(math.exp(0.1))}
    assert math.prod(found.parts.values()) == pytest.approx(found.factor)


@pytest.mark.parametrize(
    ("name", "key"),
    [("h200", "arch:hopper"), ("b200", "vendor:nvidia"), ("mi355x", "all")],
)
def test_a_gpu_without_runs_takes_the_next_coarser_ground_and_a_wider_interval(name: str, key: str) -> None:
    own = experience.expected(1.0, PARTS, [], gpu("h100_sxm"), experience=KNOWN)
    other = experience.expected(1.0, PARTS, [], gpu(name), experience=KNOWN)
    assert own is not None
    assert other is not None
    assert other.rests_on == key
    assert other.high / other.low > own.high / own.low


def test_a_framework_without_runs_has_a_wider_interval() -> None:
    known = replace(KNOWN, unseen=replace(KNOWN.stacks["megatron-lm"], errors=KNOWN.unseen.errors))
    own = experience.expected(1.0, PARTS, [], gpu("h100_sxm"), framework="megatron-lm", experience=known)
    other = experience.expected(1.0, PARTS, [], gpu("h100_sxm"), framework="unheard of", experience=known)
    assert own is not None
    assert other is not None
    assert other.high / other.low > own.high / own.low


@given(share=st.floats(0.0, 1.0), step=st.floats(1e-3, 1e3), precision=st.sampled_from(["bf16", "fp8", ""]))
def test_shares_stay_between_nothing_and_all(share: float, step: float, precision: str) -> None:
    parts = {"ep_s": share * step, "host_s": share * step, "compute_s": share * step}
    told = dict(zip(TERMS, experience.shares(parts, step, precision), strict=True))
    assert told["step"] == 1.0
    assert told["communication"] == pytest.approx(share)
    assert told["low_precision"] == pytest.approx(share if precision == "fp8" else 0.0)
    assert all(0.0 <= value <= 1.0 for value in told.values())


@given(step=st.floats(-9.0, 9.0), host=st.floats(-9.0, 9.0))
def test_a_correction_is_bounded(step: float, host: float) -> None:
    found = experience.correct((1.0, 0.0, 1.0, 0.0, 0.0), basis(step, 0.1, host=host), KNOWN.unseen)
    assert abs(found.value) <= BOUNDS[0] + BOUNDS[TERMS.index("host")] + 1e-12


def test_the_shipped_file_is_whole() -> None:
    found = experience.load()
    assert found is not None
    assert found.level == 0.9
    assert found.quantile > 0.0
    assert min(found.coefficients) >= 0.0
    assert {"all", "vendor:amd", "vendor:nvidia", "h100_sxm", "mi355x"} <= set(found.grounds)
    assert "megatron-lm" in found.stacks
    assert found.evidence["digest"]


def test_a_file_reads_back() -> None:
    assert parse(text(KNOWN), "here") == KNOWN


@pytest.mark.parametrize(
    "content",
    ["[", "level: 0.9", "- 1", text(KNOWN).replace("law: terms\n", ""), text(KNOWN).replace("2.0000", ".nan")],
)
def test_a_broken_file_is_one_clear_error(content: str) -> None:
    with pytest.raises(InputError, match=r"somewhere\.yaml"):
        parse(content, "somewhere.yaml")
