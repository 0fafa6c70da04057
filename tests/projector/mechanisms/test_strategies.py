"""Profiles name strategies that exist, mistakes are told with the closest name, and nobody asks for a strategy by name."""

import importlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from asked import refusal
from forgotten import forgotten
from tabled import tabled

from projector.frameworks import load, names, profiles_io, resolve
from projector.hardware import catalogue
from projector.layers.lower import layer
from projector.mechanisms import Execution
from projector.mechanisms.allocator import Allocator
from projector.mechanisms.dispatch.base import Dispatch
from projector.mechanisms.execution import merged, strategies
from projector.mechanisms.runtime import Runtime
from projector.mechanisms.strategy import STRATEGY, strategies_in
from projector.operators.types import Stream
from projector.projection import Projection, project
from tests.workloads import workload

PACKAGE = Path(profiles_io.__file__).parents[1]


@pytest.mark.parametrize("name", names())
def test_every_profile_names_strategies_that_exist(name: str) -> None:
    profile, known = load(name), strategies()
    for part in (profile.execution, *(rule.get("execution", {}) for rule in profile.rules)):
        for place, stated in part.items():
            assert stated.get(STRATEGY, next(iter(known[place]))) in known[place]
    assert isinstance(Execution.of(**profile.execution), Execution)


@pytest.mark.parametrize("name", ["torchtitan", "maxtext", "pytorch"])
def test_what_is_not_megatron_takes_nothing_from_its_file(name: str) -> None:
    megatron = load("megatron-lm")
    assert not set(megatron.sources) & set(load(name).sources)
    assert not megatron.published.keys() & load(name).published.keys()


_ASKED = re.compile(
    r"\b(?:data_parallel|allocator|runtime|fusion|dispatch|tensor_parallel|pipeline|recompute)(?:\.name)?"
    r"\s*(?:==|!=|not in|in)\s*[\[({]?\s*[\"']"
)


def test_nobody_asks_for_a_strategy_by_name() -> None:
    asked = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ("mechanisms", "frameworks")
        for line in path.read_text(encoding="utf-8").splitlines()
        if _ASKED.search(line)
        or re.search(r"isinstance\([^)]*\.(data_parallel|allocator|runtime|fusion|dispatch),", line)
    ]
    assert asked == []


def test_the_search_above_finds_what_it_is_for() -> None:
    assert _ASKED.search('if x.data_parallel == "fsdp2":')
    assert _ASKED.search("if execution.runtime.name in ('xla', 'eager')")
    assert not _ASKED.search("execution.data_parallel.resident(what)")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    home = tmp_path / "profiles"
    shutil.copytree(PACKAGE / "frameworks" / "profiles", home)
    monkeypatch.setattr(profiles_io, "_FOLDER", home)
    cached = (profiles_io.names, profiles_io.load, profiles_io.find, profiles_io._aliases)
    with forgotten(monkeypatch, *cached):
        yield home


@pytest.mark.parametrize(("text", "key", "nearest"), tabled("refusals", "profiles"))
def test_mistakes_of_a_profile(folder: Path, text: str, key: str, nearest: str) -> None:
    for place, body in (
        ("", f"execution: {text}"),
        ("rules[0].", f"rules:\n  - when: {{moe: true}}\n    execution: {text}"),
    ):
        profiles_io.load.cache_clear()
        (folder / "mine.yaml").write_text(f"title: Mine\nflop_formula: palm\n{body}\n", encoding="utf-8")
        profiles_io.names.cache_clear()
        caught = refusal(load, "mine")
        found = [(problem.key, problem.expected) for problem in caught.problems]
        assert any(where == f"{place}{key}" and nearest in expected for where, expected in found), found


def test_a_profile_without_a_parent_resolves(folder: Path) -> None:
    stated = "defaults: {data_parallel_sharding: optim}\nexecution: {runtime: {strategy: xla}}"
    (folder / "mine.yaml").write_text(f"title: Mine\nflop_formula: palm\n{stated}\n", encoding="utf-8")
    profiles_io.names.cache_clear()
    made = resolve(workload(framework="mine")).execution
    assert made.runtime.whole_step
    assert made.data_parallel.name == "distributed_optimizer"


def test_a_strategy_named_anew_starts_with_its_own_parameters() -> None:
    base = {"fusion": {"strategy": "torch_eager", "norm": False}, "runtime": {"launch_us": 3.0}}
    assert merged(base, {"fusion": {"qkv": True}})["fusion"] == {"strategy": "torch_eager", "norm": False, "qkv": True}
    assert merged(base, {"fusion": {"strategy": "xla"}})["fusion"] == {"strategy": "xla"}
    assert merged(base, {"runtime": {"step_ms": 1.0}})["runtime"] == {"launch_us": 3.0, "step_ms": 1.0}
    made = Execution.of(fusion={"strategy": "torch_eager", "norm": False})
    assert made.evolve(fusion={"qkv": True}).fusion.norm is False
    assert made.evolve(fusion={"strategy": "xla"}).fusion.norm is True


# A strategy is one file: written into its folder and named by a profile, it is what runs.


_HEAD = """from dataclasses import dataclass, replace
from typing import ClassVar

from projector.mechanisms.{base} import {kind}


@dataclass(frozen=True, kw_only=True)
class Mine({kind}):
    name: ClassVar[str] = "mine"
"""
FILES = {
    "allocator": _HEAD.format(base="allocator", kind="Caching")
    + """
    def reserved(self, allocated, tp, ragged):
        return 2.0 * allocated
""",
    "runtime": _HEAD.format(base="runtime", kind="Eager")
    + """
    def seconds(self, op):
        return 100.0 * super().seconds(op)
""",
    "dispatch": _HEAD.format(base="dispatch.alltoall", kind="AllToAll")
    + """
    def exchanged(self, moe, r, view):
        before, dispatch, combine = super().exchanged(moe, r, view)
        wide = [replace(op, bytes=8.0 * op.bytes) if hasattr(op, "hides_behind") else op for op in combine.forward]
        return before, dispatch, combine._replace(forward=tuple(wide))

    def device_bytes(self, view):
        return 4e9
""",
    "fusion": _HEAD.format(base="fusion", kind="TransformerEngine")
    + """
    attention_materialised: bool = True
""",
}


@pytest.fixture
def mine(request, tmp_path, monkeypatch) -> Iterator[str]:
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
    cached = (strategies_in, profiles_io.names, profiles_io.load, profiles_io.find, profiles_io._aliases)
    with forgotten(monkeypatch, *cached, modules=(f"projector.mechanisms.{place}.mine",)):
        yield place


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
    refusal(base, match="abstract", kind=TypeError)


# Buffers of dropless experts where shapes are fixed before a router has spoken.


EXPERTS, TOPK, HIDDEN, TOKENS = 256, 8, 7168, 4096


@pytest.mark.parametrize("ep", [8, 16, 32, 64, 128])
def test_a_rank_holds_no_token_more_often_than_it_has_experts(ep: int) -> None:
    """Worst case of MaxText's ragged exchange: every rank's tokens, each as often as this rank has experts for it."""
    made = resolve(workload("deepseek_v3", 128, "maxtext", global_batch_size=128, ep=ep), "amd", "gfx950")
    block = layer(made.workload.model.layer_kinds[-1], made)
    (sort,) = (op for op in block.forward if op.name == "moe.sort")
    assert isinstance(sort, Stream)
    assert sort.read == pytest.approx(ep * TOKENS * min(TOPK, EXPERTS // ep) * HIDDEN * 2)


@pytest.mark.parametrize("date", ["", "2024-01", "2026-06"])
def test_an_eager_model_of_transformers_composes_its_norm_at_every_date(date: str) -> None:
    """torch has one kernel for it since 2.9; LlamaRMSNorm of transformers does not call that."""
    norms = [
        resolve(replace(workload(framework=name), framework_date=date)).execution.fusion.norm
        for name in ("deepspeed", "torchtitan")
    ]
    assert norms == [False, date != "2024-01"]
