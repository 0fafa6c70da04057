"""A number that a projection rests on says where it comes from: bare ones are found in the source.

What counts: numbers of module level and defaults of dataclass fields, and floats inside functions, in every module that
``projector constants`` lists. A number inside a call of ``parameter`` has its source."""

import ast
import copy
import json
import math
import pickle
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from tabled import tabled

from projector.constants import every, modules
from projector.errors import Problem
from projector.hardware.efficiency_file import priors
from projector.hardware.types import Efficiency
from projector.parameter import Count, Parameter, declared, named_unit, parameter, read

#: What is no physics, by what it is instead.
ALLOWED = tabled("constants", "bare_constants")
NAMES = frozenset(name for names in ALLOWED.values() for name in names)
#: Rooms of which a part is drawing; formulas that a framework prints, to be reproduced as they stand.
DRAWING = ("card", "pipeline.draw", "memory.draw", "search.figure_style", "search.plots", "search.sweep.plots")
FORMULAS = ("frameworks.flops_formulas",)
#: Head dimensions that kernels take: each row of the table names its source.
TABLES = ("mechanisms.attention_kernels",)
SMALL = 6


def is_unit(value: float) -> bool:
    """0, small whole numbers, powers of two and of ten, and their halves and quarters."""
    size = abs(value)
    if size in range(SMALL + 1):
        return True
    exact = (math.log2(size), math.log10(size)) if math.isfinite(size) else (0.0,)
    return any(abs(one - round(one)) < 1e-9 for one in exact)


def numbers(node: ast.AST, whole: bool) -> Iterator[ast.Constant]:
    """Literals below ``node`` outside calls of ``parameter``; ``whole``: integers and floats that are whole too."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "parameter":
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        if not is_unit(node.value) and (whole or node.value != round(node.value)):
            yield node
        return
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Pow | ast.LShift)
        and isinstance(node.left, ast.Constant)
    ):
        return  # a unit: 2**30, 1 << 20
    for child in ast.iter_child_nodes(node):
        yield from numbers(child, whole)


def bare(source: str, room: str) -> list[str]:
    """``room.NAME: line: number`` of every bare number in a module's source."""
    found: list[str] = []

    def those(where: str, node: ast.AST, whole: bool) -> list[str]:
        if where in NAMES:
            return []
        return [f"{where}: line {each.lineno}: {each.value}" for each in numbers(node, whole)]

    for statement in ast.parse(source).body:
        names = [
            target
            for target in ast.walk(statement)
            if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
        ]
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            found += those(f"{room}.{names[0].id.lstrip('_') if names else ''}", statement, whole=True)
            continue
        for inner in ast.walk(statement):
            if isinstance(inner, ast.ClassDef):
                for field in inner.body:
                    if isinstance(field, ast.AnnAssign):
                        found += those(f"{room}.{inner.name}", field, whole=True)
            elif isinstance(inner, ast.FunctionDef):
                found += those(f"{room}.{inner.name}", inner, whole=False)
    return list(dict.fromkeys(found))


def source_of(module: str) -> str:
    spec = find_spec(module)
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize("room", sorted({name.split(".")[1] for name in modules()}))
def test_no_number_is_bare(room: str) -> None:
    mine = [name for name in modules() if name.split(".")[1] == room]
    rooms = [name.removeprefix("projector.") for name in mine]
    found = [each for module, name in zip(mine, rooms, strict=True) if name not in (*DRAWING, *FORMULAS, *TABLES)
             for each in bare(source_of(module), name)]  # fmt: skip
    assert found == [], "write NAME = parameter(value, unit=…, kind=…, source=…); see projector/parameter.py"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("_SHARE = 0.87", ["room.SHARE: line 1: 0.87"]),
        ("_LINK: dict[str, float] = {'volta': 15.8e9}", ["room.LINK: line 1: 15800000000.0"]),
        ("_LAUNCHES = (1, 14)", ["room.LAUNCHES: line 1: 14"]),
        ("class A:\n    launch_us: float = 7.0", ["room.A: line 2: 7.0"]),
        ("def f(x):\n    return x.get('y', 0.85)", ["room.f: line 2: 0.85"]),
        ("def f(x, y=0.3):\n    return x", ["room.f: line 1: 0.3"]),
        ("_SHARE = parameter(0.87, kind='assumed', source='s')\n_GIB = 2.0**30\n_MICRO = 1e-6", []),
        ("def f(x):\n    return 0.5 * x * 1e-6 + 12.0 * x", []),
    ],
)
def test_a_bare_number_is_found(source: str, found: list[str]) -> None:
    assert bare(source, "room") == found


def test_every_constant_has_a_name_a_kind_and_a_source() -> None:
    known = every()
    assert len(known) > 1000
    for name, each in known.items():
        assert each.source.strip(), name
        assert each.kind, name
    for module in modules():
        mine = {f"{module.removeprefix('projector.')}.{name.lstrip('_')}" for name in declared(module)}
        assert mine <= set(known)


def test_what_is_allowed_is_there() -> None:
    """An allowance without a number is superfluous."""
    for name in sorted(NAMES):
        module, _, constant = name.rpartition(".")
        source = source_of(f"projector.{module}")
        assert any(f"{constant}{sign}" in source for sign in (" =", ":", ",", "(")), name


# A constant is a number like any other, knows where it comes from, and is refused without it.


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
