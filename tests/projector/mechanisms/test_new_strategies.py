"""A strategy is one file: written into its folder and named by a profile, it is what runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from projector.frameworks import profiles_io
from projector.hardware import catalogue
from projector.mechanisms.allocator.base import Allocator
from projector.mechanisms.dispatch.base import Dispatch
from projector.mechanisms.runtime.base import Runtime
from projector.mechanisms.strategy import found_in
from projector.projection import Projection, project
from tests.workloads import workload

_HEAD = """from dataclasses import dataclass, replace
from typing import ClassVar

from projector.mechanisms.{base} import {kind}


@dataclass(frozen=True, kw_only=True)
class Mine({kind}):
    name: ClassVar[str] = "mine"
"""
FILES = {
    "allocator": _HEAD.format(base="allocator.caching", kind="Caching")
    + """
    def reserved(self, allocated, tp, ragged):
        return 2.0 * allocated
""",
    "runtime": _HEAD.format(base="runtime.eager", kind="Eager")
    + """
    def seconds(self, op):
        return 100.0 * super().seconds(op)
""",
    "dispatch": _HEAD.format(base="dispatch.alltoall", kind="AllToAll")
    + """
    def exchanged(self, moe, r, lo):
        parts, combine = super().exchanged(moe, r, lo)
        wide = [replace(op, bytes=8.0 * op.bytes) if hasattr(op, "hides_behind") else op for op in combine.forward]
        return parts, replace(combine, forward=tuple(wide))

    def device_bytes(self, lo):
        return 4e9
""",
    "fusion": _HEAD.format(base="fusion.transformer_engine", kind="TransformerEngine")
    + """
    attention_materialised: bool = True
""",
}


@pytest.fixture
def mine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mechanism, one more strategy of which stands in its folder; two profiles, of which ``mine_…`` names it."""
    place = request.param
    (tmp_path / "mine.py").write_text(FILES[place], encoding="utf-8")
    package = importlib.import_module(f"projector.mechanisms.{place}")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for name, execution in (("usual", "{}"), (f"mine_{place}", f"{{{place}: {{strategy: mine}}}}")):
        (profiles / f"{name}.yaml").write_text(f"title: Mine\nflop_formula: palm\nexecution: {execution}\n")
    monkeypatch.setattr(profiles_io, "_FOLDER", profiles)
    cached = (found_in, profiles_io.names, profiles_io.load, profiles_io.find, profiles_io._aliases)
    for each in cached:
        each.cache_clear()
    yield place
    monkeypatch.undo()
    sys.modules.pop(f"projector.mechanisms.{place}.mine", None)
    for each in cached:
        each.cache_clear()


def projected(framework: str) -> Projection:
    experts = {"ep": 8, "moe_grouped_gemm": "multi_stream", "moe_token_dispatcher_type": "alltoall"}
    fields = {"global_batch_size": 16, "gradient_accumulation_fusion": True, **experts}
    return project(workload("deepseek_v2_lite", framework=framework, **fields), catalogue.cluster("h100_sxm"))


@pytest.mark.parametrize("mine", list(FILES), indirect=True)
def test_one_file_and_a_profile_that_names_it(mine: str) -> None:
    usual, other = projected("usual"), projected(f"mine_{mine}")
    assert getattr(other.resolved.execution, mine).name == "mine"
    assert getattr(usual.resolved.execution, mine).name != "mine"
    assert (other.memory.reserved > usual.memory.reserved) == (mine in ("allocator", "fusion"))
    assert (other.memory.device > usual.memory.device) == (mine != "runtime")
    assert (other.step_seconds > usual.step_seconds) == (mine != "allocator")
    assert (other.breakdown["host_s"] > usual.breakdown["host_s"]) == (mine == "runtime")
    if mine == "dispatch":
        assert other.breakdown["ep_s"] > usual.breakdown["ep_s"]


@pytest.mark.parametrize("base", [Allocator, Dispatch, Runtime])
def test_a_base_without_its_arithmetic_is_no_strategy(base: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        base()
