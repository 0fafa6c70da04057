"""Phases: hidden and exposed communication, host against device, synchronisation points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.frameworks import resolve
from projector.layers.lower import layer
from projector.mechanisms import Execution
from projector.operators.types import Collective, HostWork, Operator, Stream
from projector.step.timing import CONTENTION, SLOWED, Clock, Phase, Segment, chain
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

QUIET = Execution.of(runtime={"launch_us": 0.0, "collective_us": 0.0, "sync_us": 0.0, "layer_us": 0.0})


def stream(name: str) -> Stream:
    return Stream(name=name, kind="copy", read=1.0, write=1.0)


def clock(seconds: dict[Operator, float], comm: float = 0.0, execution: Execution = QUIET) -> Clock:
    return Clock(kernels=seconds, measured=frozenset(), collective=lambda op: comm, execution=execution)


def comm(*behind: str) -> Collective:
    return Collective(name="c", kind="all_reduce", group="tp", bytes=1.0, hides_behind=behind)


def test_exposed_communication_adds_up() -> None:
    a = stream("a")
    phase = clock({a: 2.0}, comm=3.0).phase([a, comm()])
    assert phase.seconds == pytest.approx(5.0)
    assert phase.exposed == {"tp": 3.0}
    assert phase.compute == 2.0


def test_hidden_communication_costs_only_contention() -> None:
    a = stream("a")
    phase = clock({a: 4.0}, comm=3.0).phase([a, comm("a")])
    assert phase.exposed == {}
    wall = 3.0 * (1.0 + SLOWED)
    assert phase.seconds == pytest.approx(4.0 + wall * CONTENTION / (1.0 + CONTENTION))


def test_compute_hides_only_once() -> None:
    a = stream("a")
    two = clock({a: 4.0}, comm=3.0).phase([a, comm("a"), comm("@phase")])
    assert two.exposed["tp"] == pytest.approx(6.0 - 4.0 * (1.0 + CONTENTION) / (1.0 + SLOWED))


def test_the_host_limits_between_synchronisations() -> None:
    a, b = stream("a"), stream("b")
    execution = Execution.of(runtime={"launch_us": 1e6, "collective_us": 0.0, "sync_us": 0.5e6, "layer_us": 0.0})
    phase = clock({a: 5.0, b: 0.1}, execution=execution).phase([a, HostWork(name="s", sync=True), b])
    assert phase.seconds == pytest.approx(5.0 + (1.0 + 0.1) + 0.5)  # the device has nothing left while b is issued
    assert phase.host_excess == pytest.approx(1.0 + 0.5)
    ahead = clock({a: 5.0, b: 0.1}, execution=execution).phase([a, b])
    assert ahead.seconds == pytest.approx(5.1)


def test_a_compiled_step_has_no_host_time() -> None:
    a = stream("a")
    execution = Execution.of(runtime={"strategy": "full_iteration_graph", "launch_us": 1e6})
    assert clock({a: 0.1}, execution=execution).phase([a, HostWork(name="s", sync=True)]).seconds == pytest.approx(0.1)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8), st.floats(0.0, 2.0))
def test_a_phase_is_never_shorter_than_its_compute_or_its_communication(seconds: list[float], wire: float) -> None:
    ops = [stream(f"s{i}") for i in range(len(seconds))]
    phase = clock(dict(zip(ops, seconds, strict=True)), comm=wire).phase([*ops, comm("@phase")])
    assert phase.seconds >= sum(seconds) - 1e-12
    assert phase.seconds >= wire - 1e-9
    assert phase.device == pytest.approx(phase.compute + sum(phase.exposed.values()))


@given(st.integers(1, 6))
def test_a_chain_is_the_sum_without_a_host(n: int) -> None:
    a = stream("a")
    one = clock({a: 0.25}, comm=0.5).phase([a, comm()])
    whole = chain([one] * n)
    assert whole.seconds == pytest.approx(n * one.seconds)
    assert whole.exposed["tp"] == pytest.approx(n * 0.5)


segments = st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5).map(lambda each: Segment(*each))


@given(st.lists(segments, min_size=1, max_size=3), st.integers(1, 9))
def test_a_repeated_phase_is_its_chain(parts: list[Segment], n: int) -> None:
    one = Phase(tuple(parts), 0.5, {"tp": 0.25}, 0.125, 2.0, {"tp": 1.0})
    there, whole = one.repeated(n), chain([one] * n)
    assert np.array(chain([there]).segments) == pytest.approx(np.array(whole.segments))
    for figure in ("compute", "exposed", "measured", "wait", "waited", "seconds", "saved"):
        assert getattr(chain([there]), figure) == pytest.approx(getattr(whole, figure))


@given(st.floats(0.0, 1e-3), st.floats(1e-13, 1e-9), st.floats(1e-16, 1e-12))
def test_a_pipelined_collective_costs_its_first_chunk_at_the_most(latency: float, byte: float, flop: float) -> None:
    """What is exposed is T(n/c) + max(0, T(n − n/c) − product) instead of T(n), and no time of fewer bytes is longer."""

    def seconds(overlap: bool) -> tuple[float, float]:
        sizes = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096, "tp": 8, "sequence_parallel": True}
        recipe = Recipe(**sizes, tp_comm_overlap=overlap)
        job = Workload(model=zoo.load("llama3_8b"), recipe=recipe, gpus=8)
        made = resolve(job)
        block = layer(job.model.layer_kinds[0], made)
        ops = (*block.forward, *block.backward_input, *block.backward_weight)
        priced = {op: flop * op.flops for op in ops if not isinstance(op, Collective | HostWork)}
        timed = Clock(priced, frozenset(), lambda op: latency + byte * op.bytes, QUIET)
        chunks = sum(
            latency + byte * op.bytes for op in ops if isinstance(op, Collective) and op.name.endswith(".chunk")
        )
        return timed.phase(ops).device, chunks

    (off, none), (on, chunks) = seconds(False), seconds(True)
    assert none == 0.0 < chunks
    assert on <= (off + chunks) * (1 + 1e-12)
