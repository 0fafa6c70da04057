"""Forwards beside backwards: what the exchange of experts hides behind, column by column."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector import memo
from projector.hardware import catalogue
from projector.layers import lower
from projector.mechanisms import Execution
from projector.operators.module import Block, Module, block
from projector.operators.types import Collective, Gemm, Operator, Stream
from projector.projection import Projection, project
from projector.step.combined_1f1b import exchange_overlap, pairs_microbatches
from projector.step.timing import CONTENTION, SLOWED, Clock
from projector.workload.recipe import Recipe
from tests.workloads import sharded

H100 = catalogue.default_cluster("h100_sxm")
QUIET = Execution.of(
    runtime={"launch_us": 0.0, "collective_us": 0.0, "sync_us": 0.0, "layer_us": 0.0, "linear_us": 0.0}
)


def exchange(name: str) -> Collective:
    return Collective(name=name, kind="all_to_all", group="ep", bytes=1.0)


def compute(name: str) -> Stream:
    return Stream(name=name, kind="copy", read=1.0, write=1.0)


ATTENTION, SHARED, EXPERTS = compute("attention"), compute("shared.fc1"), compute("experts.fc1")
BACK, INNER, SHARED_BACK = compute("attention.bwd"), compute("experts.fc1.dgrad"), compute("shared.fc1.dgrad")
INNER_WEIGHT = Gemm(name="experts.fc1.wgrad", m=1, n=1, k=1)
WEIGHT = Gemm(name="proj.wgrad", m=1, n=1, k=1)
LAYER = Block(
    name="layer",
    forward=(ATTENTION, SHARED, exchange("moe.dispatch"), EXPERTS, exchange("moe.combine"), compute("residual")),
    backward_input=(exchange("moe.combine.bwd"), INNER, exchange("moe.dispatch.bwd"), SHARED_BACK, BACK),
    backward_weight=(INNER_WEIGHT, WEIGHT),
    roles={
        "dispatch": frozenset({"moe.dispatch", "moe.dispatch.bwd"}),
        "combine": frozenset({"moe.combine", "moe.combine.bwd"}),
        "experts": frozenset({"experts.fc1", "experts.fc1.dgrad", "experts.fc1.wgrad"}),
        "shared_experts": frozenset({"shared.fc1", "shared.fc1.dgrad"}),
    },
)


def clock(kernels: dict[Operator, float], messages: float) -> Clock:
    """Launches cost nothing; ``kernels`` last as long as given beside communication."""
    every = dict.fromkeys((*LAYER.forward, *LAYER.backward_input, *LAYER.backward_weight), 0.0)
    every |= {op: seconds / (1 + CONTENTION) for op, seconds in kernels.items()}
    return Clock(kernels=every, measured=frozenset(), collective=lambda _: messages, execution=QUIET)


def hidden(kernels: dict[Operator, float], messages: float, delayed: bool = False) -> dict[str, float]:
    found = exchange_overlap(LAYER, clock(kernels, messages), delayed)
    return {name: seconds * (1 + SLOWED) for name, (seconds, _) in {**found.forward, **found.backward}.items()}


def test_each_exchange_hides_behind_its_own_column() -> None:
    columns = {"moe.combine.bwd": {ATTENTION: 1.0}, "moe.dispatch": {INNER: 1.0}, "moe.combine": {BACK: 1.0}}  # fmt: skip
    for name, kernels in columns.items():
        found = hidden(kernels, 100.0)  # type: ignore[arg-type]
        assert found.pop(name) == pytest.approx(1.0)
        assert not any(found.values())
    assert hidden({WEIGHT: 1.0}, 100.0)["moe.combine"] == pytest.approx(1.0)
    assert not any(hidden({compute("residual"): 1.0}, 100.0).values())


def test_shared_experts_are_computed_with_the_routed_ones() -> None:
    assert hidden({SHARED: 1.0}, 1.0) == pytest.approx(hidden({EXPERTS: 1.0}, 1.0))
    assert hidden({SHARED_BACK: 1.0}, 1.0) == pytest.approx(hidden({INNER: 1.0}, 1.0))


def test_the_second_dispatch_waits_for_the_data_gradients() -> None:
    """Exchange 1.1 after stretching, experts 2, their weight gradients 2: it begins at 4, or at 2 where they are put off."""
    kernels: dict[Operator, float] = {INNER: 2.0, INNER_WEIGHT: 2.0, EXPERTS: 0.5}
    assert hidden(kernels, 1.0)["moe.dispatch.bwd"] == pytest.approx(0.5)
    assert hidden(kernels, 1.0, delayed=True)["moe.dispatch.bwd"] == pytest.approx(1.1)


@given(
    st.lists(st.floats(0.0, 10.0), min_size=8, max_size=8), st.floats(0.01, 10.0), st.booleans(), st.floats(0.0, 5.0)
)
def test_nothing_hides_longer_than_it_lasts_or_than_the_compute(
    times: list[float], messages: float, delayed: bool, more: float
) -> None:
    ops = (ATTENTION, SHARED, EXPERTS, BACK, INNER, SHARED_BACK, INNER_WEIGHT, WEIGHT)
    kernels: dict[Operator, float] = dict(zip(ops, times, strict=True))
    found = hidden(kernels, messages, delayed)
    assert all(0.0 <= seconds <= messages * (1 + SLOWED) * (1 + 1e-9) for seconds in found.values())
    assert math.fsum(found.values()) <= math.fsum(times) * (1 + 1e-9) + 1e-9
    longer = hidden(kernels | {EXPERTS: kernels[EXPERTS] + more}, messages, delayed)
    assert math.fsum(longer.values()) >= math.fsum(found.values()) - 1e-9
    assert math.fsum(hidden(kernels, messages, True).values()) >= math.fsum(hidden(kernels, messages).values()) - 1e-9


def made(**recipe: object) -> Projection:
    experts = {"ep": 16, "moe_token_dispatcher_type": "alltoall", "moe_router_force_load_balancing": True}
    return project(sharded("qwen3_30b_a3b", **{"global_batch_size": 512, **experts, **recipe}), H100)


def test_delayed_weight_gradients_hide_more_of_the_exchange() -> None:
    plain = made(overlap_moe_expert_parallel_comm=True)
    delayed = made(overlap_moe_expert_parallel_comm=True, delay_wgrad_compute=True)
    assert delayed.breakdown["ep_s"] < plain.breakdown["ep_s"]
    assert delayed.step_seconds <= plain.step_seconds


def test_a_replayed_forward_shows_its_exchanges() -> None:
    def gain(**recipe: object) -> float:
        return made(**recipe).step_seconds / made(**recipe, overlap_moe_expert_parallel_comm=True).step_seconds

    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    assert 1.0 < gain(**full) < gain()


def test_a_pipeline_without_virtual_stages_pairs_nothing() -> None:
    shape = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 8, "overlap_moe_expert_parallel_comm": True}
    assert pairs_microbatches(Recipe(**shape))
    assert pairs_microbatches(Recipe(**shape, pp=2, vpp=2))
    assert not pairs_microbatches(Recipe(**shape, pp=2))
    assert not pairs_microbatches(replace(Recipe(**shape), overlap_moe_expert_parallel_comm=False))


def test_the_first_forward_and_the_last_backward_of_a_step_show_their_exchange() -> None:
    few, many = (made(overlap_moe_expert_parallel_comm=True, global_batch_size=64 * m) for m in (2, 16))
    assert few.breakdown["ep_s"] / 2 > many.breakdown["ep_s"] / 16


PHASES = ("forward", "backward_input", "backward_weight")


def renamed(op: Operator) -> Operator:
    beside = {"hides_behind": tuple(f"op {name}" for name in op.hides_behind)} if isinstance(op, Collective) else {}
    return replace(op, name=f"op {op.name}", **beside)  # type: ignore[arg-type]


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall", "deepep", "hybridep"])
def test_no_step_knows_an_operator_by_its_name(dispatcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> Projection:
        how = {"moe_token_dispatcher_type": dispatcher, "overlap_moe_expert_parallel_comm": True}
        if dispatcher in ("deepep", "hybridep"):
            how |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": dispatcher}
        memo.clear_caches()  # what an earlier projection built
        return project(sharded("deepseek_v2_lite", ep=8, global_batch_size=512, **how), H100)

    def other(
        name: str, parts: tuple[Module, ...], graphed: frozenset[str] = frozenset(), *given: Any, **named: Any
    ) -> Block:
        changed = (
            replace(part, **{phase: tuple(map(renamed, getattr(part, phase))) for phase in PHASES}) for part in parts
        )
        return block(name, tuple(changed), frozenset(f"op {each}" for each in graphed), *given, **named)

    plain = step()
    monkeypatch.setattr(lower, "block", other)
    assert step().breakdown == plain.breakdown
