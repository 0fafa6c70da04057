"""The interval beside a projection: closed form, fallbacks, broken files, and that a projection is never changed by it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector import experience
from projector.errors import InputError
from projector.experience import BOUND, Basis, Experience
from projector.experience_file import parse, text
from projector.hardware.catalogue import gpu


def basis(value: float, sources: int = 3) -> Basis:
    return Basis(value=value, error=0.03, sources=sources, cells=4)


KNOWN = Experience(
    law="places",
    level=0.9,
    quantile=2.0,
    least=0.02,
    coefficients=(0.1, 0.2, 0.3, 0.4, 0.7, 0.5, 0.6),
    seen=(1.0, 1.0, 0.9, 0.9, 1.0, 1.0, 1.0),
    grounds={
        "h100_sxm": basis(0.2),
        "arch:hopper": basis(0.15),
        "vendor:nvidia": basis(0.1),
        "all": basis(0.0),
    },
    stacks={"megatron-lm": basis(0.05, sources=4)},
    unseen=basis(0.0, sources=0),
    evidence={"rows": "9"},
)
PARTS = {"compute_s": 0.5, "tp_s": 0.2, "other_s": 0.1, "host_s": 0.2}


def test_the_closed_form() -> None:
    stated = {"framework": "megatron-lm", "cp": 4, "experience": KNOWN}
    found = experience.expected(1.0, PARTS, ["a", "seq_length=8192 (b)"], gpu("h100_sxm"), **stated)
    assert found is not None
    log = 0.2 + 0.05
    half = 2.0 * (0.1 + 0.2 + 0.3 * 0.2 + 0.4 * 0.1 + 0.7 * 0.5 + 0.5 / 4 + 0.6 / 5)
    assert found.middle == pytest.approx(math.exp(log))
    assert (found.low, found.high) == pytest.approx((math.exp(log - half), math.exp(log + half)))
    assert (found.rests_on, found.sources, found.stack_sources, found.level) == ("h100_sxm", 3, 4, 0.9)


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
    own = experience.expected(1.0, PARTS, [], gpu("h100_sxm"), framework="megatron-lm", experience=KNOWN)
    other = experience.expected(1.0, PARTS, [], gpu("h100_sxm"), framework="unheard of", experience=KNOWN)
    assert own is not None
    assert other is not None
    assert other.high / other.low > own.high / own.low


def test_a_code_base_without_a_profile_has_a_wider_one_still() -> None:
    unheard, unknown = (
        experience.expected(1.0, PARTS, [], gpu("h100_sxm"), framework=name, experience=KNOWN)
        for name in ("unheard of", experience.UNKNOWN)
    )
    assert unheard is not None
    assert unknown is not None
    assert unknown.middle == unheard.middle
    assert math.log(unknown.high / unknown.low) == pytest.approx(1.8 * math.log(unheard.high / unheard.low))


@given(share=st.floats(0.0, 2.0), step=st.floats(1e-3, 1e3), cp=st.integers(1, 4096))
def test_traits_stay_between_nothing_and_all(share: float, step: float, cp: int) -> None:
    parts = {"other_s": share * step, "host_s": share * step, "compute_s": step}
    guessed, host, fixed, context = experience.traits(
        step, parts, ["recompute=full, 17 of 80 layers a stage", "mtp_num_layers=0 (not stated)"], cp
    )
    assert (guessed, host) == (0.0, fixed)
    assert host == pytest.approx(min(share, 1.0))
    assert 0.0 <= context <= 1.0
    assert experience.traits(step, parts, [], 1)[3] == 0.0


@given(ground=st.floats(-9.0, 9.0), stack=st.floats(-9.0, 9.0))
def test_a_correction_is_bounded(ground: float, stack: float) -> None:
    assert abs(experience.correct(basis(ground), basis(stack))) <= BOUND


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
    ["[", "level: 0.9", "- 1", text(KNOWN).replace("law: places\n", ""), text(KNOWN).replace("2.0000", ".nan")],
)
def test_a_broken_file_is_one_clear_error(content: str) -> None:
    with pytest.raises(InputError, match=r"somewhere\.yaml"):
        parse(content, "somewhere.yaml")
