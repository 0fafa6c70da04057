"""A constant is a number like any other, knows where it comes from, and is refused without it."""

import copy
import json
import pickle
from typing import NamedTuple

import pytest

from projector.errors import Problem
from projector.hardware.efficiency_file import priors
from projector.hardware.types import Efficiency
from projector.parameter import Count, Parameter, declared, named_unit, parameter, read


class Pair(NamedTuple):
    first: float
    second: int


SHARE = parameter(0.87, kind="published", source="a paper", low=0.5, high=1.0)
LAUNCHES = parameter({"fused": (1, 3), "plain": Pair(2.5, 4)}, unit="launches", kind="assumed", source="a count")


def test_a_parameter_is_the_number_it_holds() -> None:
    assert SHARE == 0.87
    assert hash(SHARE) == hash(0.87)
    assert {0.87: "same"}[SHARE] == "same"
    assert type(2.0 * SHARE) is float
    assert type(1 + LAUNCHES["fused"][1]) is int
    assert [10, 11, 12, 13][LAUNCHES["fused"][1]] == 13
    assert json.dumps([SHARE, LAUNCHES["fused"][0]]) == "[0.87, 1]"
    assert repr(SHARE) == "0.87"
    assert type(SHARE.value) is float  # type: ignore[attr-defined]


def test_every_number_of_a_table_knows_its_source_and_its_name() -> None:
    found = declared(__name__)
    assert set(found) == {
        "SHARE", "LAUNCHES.fused.0", "LAUNCHES.fused.1", "LAUNCHES.plain.first", "LAUNCHES.plain.second",
    }  # fmt: skip
    assert {type(each) for name, each in found.items() if name != "SHARE"} == {Count, Parameter}
    assert {each.unit for name, each in found.items() if name != "SHARE"} == {"launches"}
    assert (found["SHARE"].source, found["SHARE"].low, found["SHARE"].high) == ("a paper", 0.5, 1.0)


def test_what_it_knows_cannot_change_and_travels_with_it() -> None:
    with pytest.raises(AttributeError, match="fixed"):
        SHARE.source = "another"  # type: ignore[attr-defined]
    travelled: list[Parameter] = [pickle.loads(pickle.dumps(SHARE)), copy.deepcopy(SHARE)]  # type: ignore[list-item]
    for made in travelled:
        assert (made, made.source, made.low, made.scored) == (0.87, "a paper", 0.5, False)
    again = travelled[0].said("as a paper")
    assert (again, again.source, again.high, type(again)) == (0.87, "as a paper", 1.0, Parameter)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": 1.5}, "from 0.0 to 1.0"),
        ({"value": float("nan")}, "finite"),
        ({"kind": "guessed"}, "one of datasheet"),
        ({"source": " "}, "where the value comes from"),
    ],
)
def test_a_number_without_a_source_or_outside_its_range_is_refused(change: dict[str, object], said: str) -> None:
    stated: dict[str, object] = {"value": 0.5, "kind": "assumed", "source": "a guess", "low": 0.0, "high": 1.0} | change
    with pytest.raises(ValueError, match=said):
        parameter(**stated)  # type: ignore[arg-type]
    problems: list[Problem] = []
    read(stated, "a.yaml", "parameters.x", problems)
    assert [(p.where, p.key) for p in problems] == [("a.yaml", f"parameters.x.{next(iter(change))}")]
    assert said in problems[0].expected


def test_a_file_says_all_that_is_wrong_with_a_cell_at_once() -> None:
    problems: list[Problem] = []
    read({"value": "x", "kind": "y", "low": True, "scored": 1, "more": 0}, "a.yaml", "k", problems)
    assert {p.key for p in problems} == {"k.value", "k.kind", "k.source", "k.low", "k.scored", "k.more"}


def test_a_unit_is_that_of_the_name_or_stated() -> None:
    assert named_unit("gemm.launch_us.cublaslt.bf16") == "us"
    assert named_unit("cap_gbs.ll.1") == "GB/s"
    assert named_unit("gemm.loop.fp8") == "1"
    assert read({"value": 1, "kind": "assumed", "source": "s", "unit": "K"}, "", "a_us", []).unit == "K"


def test_what_no_file_of_a_device_states_is_the_prior_of_every_gpu() -> None:
    bare = Efficiency(gpu="x", parameters={"gemm.waves": Parameter(0.0, "fitted", "t")})
    assert bare["gemm.waves"] == 0.0
    assert bare["gemm.loop"] == priors()["gemm.loop"]
    assert bare.get("gemm.loop", 1.0) == 1.0
    with pytest.raises(KeyError):
        bare["gemm.unknown"]
