"""Phases: hidden and exposed communication, host against device, synchronisation points."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.frameworks import resolve
from projector.hardware.catalogue import default_cluster
from projector.hardware.efficiency import load
from projector.layers.lower import layer
from projector.mechanisms import Execution
from projector.operators.types import Attention, Collective, Gemm, HostWork, Operator, Stream
from projector.projection import project
from projector.step.slowest_chip import slowed, slowest
from projector.step.stages import compute_operators, parts, stage_time
from projector.step.timing import CONTENTION, SLOWED, Clock, Phase, Segment, join, join_separate
from projector.workload import zoo
from projector.workload.composition import compositions
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
    assert not any(phase.exposed.values())
    wall = 3.0 * (1.0 + SLOWED)
    assert phase.seconds == pytest.approx(4.0 + wall * CONTENTION / (1.0 + CONTENTION))


def test_compute_hides_only_once() -> None:
    a = stream("a")
    two = clock({a: 4.0}, comm=3.0).phase([a, comm("a"), comm("@phase")])
    assert two.exposed["tp"] == pytest.approx(6.0 - 4.0 * (1.0 + CONTENTION) / (1.0 + SLOWED))


def test_a_drained_device_waits_for_its_first_kernels() -> None:
    """Two kernels of 500 and 0.1 s whose launches take 1 s: the first begins at 1 s, or at once where the host is ahead."""
    a, b = stream("a"), stream("b")
    execution = Execution.of(runtime={"launch_us": 1e6, "collective_us": 0.0, "sync_us": 0.0, "layer_us": 0.0})
    phase = clock({a: 500.0, b: 0.1}, execution=execution).phase([a, b])
    drained = replace(phase, drained=True)
    assert (phase.seconds, drained.seconds) == (pytest.approx(500.1), pytest.approx(1.0 + 500.1))
    assert drained.host_excess == pytest.approx(1.0)
    free = clock({a: 500.0, b: 0.1}).phase([a, b])
    assert replace(free, drained=True).seconds == free.seconds
    assert join_separate(drained, phase).seconds - join_separate(phase, phase).seconds == pytest.approx(1.0)


def test_a_phase_lasts_longer_than_either_where_its_device_and_host_are_alike() -> None:
    alike = Phase((Segment(1.0, 1.0, beside=1.0, times=3),), 3.0)
    assert alike.seconds == pytest.approx(3.0 * 2.0**0.25)
    assert alike.host_excess == pytest.approx(alike.seconds - 3.0)
    assert alike.saved == pytest.approx(3.0 * (17.0**0.25 - 2.0**0.25))


def test_the_host_waits_for_each_exchange_of_plain_stages() -> None:
    """Megatron-LM's ``batch_p2p_sync``: a stage that receives begins drained; the ends receive on one side alone."""

    def drained(framework: str = "megatron-lm", **recipe: object) -> list[tuple[bool, bool]]:
        stated = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048, "pp": 4} | recipe
        work = Workload(model=zoo.load("llama3_8b"), recipe=Recipe(**stated), gpus=8, framework=framework)  # type: ignore[arg-type]
        resolved = resolve(work)
        _, chunks = compositions(work.model, resolved.workload.recipe)
        stages = [parts(resolved, chunk) for chunk in chunks]
        priced = clock(
            dict.fromkeys(compute_operators([part for stage in stages for part in stage]), 1e-6),
            execution=resolved.execution,
        )
        made = [stage_time(resolved, stage, priced) for stage in stages]
        assert all(each.backward.drained == each.inputs.drained for each in made)
        return [(each.forward.drained, each.inputs.drained) for each in made]

    every, none = [(False, True), (True, True), (True, True), (True, False)], [(False, False)] * 4
    assert drained() == every
    assert drained("megatron-deepspeed") == drained(pipeline_schedule="zb-h1") == none
    assert drained(cuda_graph_scope=("full_iteration",)) == none
    assert not any(any(each) for each in drained(pp=1))
    assert not any(any(each) for each in drained(vpp=2))
    assert all(any(each) for each in drained(vpp=2, overlap_p2p_comm=False))


def test_the_host_limits_between_synchronisations() -> None:
    a, b = stream("a"), stream("b")
    execution = Execution.of(runtime={"launch_us": 1e6, "collective_us": 0.0, "sync_us": 0.5e6, "layer_us": 0.0})
    phase = clock({a: 500.0, b: 0.1}, execution=execution).phase([a, HostWork(name="s", sync=True), b])
    assert phase.seconds == pytest.approx(500.0 + (1.0 + 0.1) + 0.5)  # the device has nothing left while b is issued
    assert phase.host_excess == pytest.approx(1.0 + 0.5)
    ahead = clock({a: 500.0, b: 0.1}, execution=execution).phase([a, b])
    assert ahead.seconds == pytest.approx(500.1)


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
    whole = join([one] * n)
    assert whole.seconds == pytest.approx(n * one.seconds)
    assert whole.exposed["tp"] == pytest.approx(n * 0.5)


segments = st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5).map(lambda each: Segment(*each))


@given(st.lists(segments, min_size=1, max_size=3), st.integers(1, 9))
def test_a_repeated_phase_is_its_chain(parts: list[Segment], n: int) -> None:
    one = Phase(tuple(parts), 0.5, {"tp": 0.25}, 0.125, 2.0)
    there, whole = one.repeated(n), join([one] * n)
    assert sum(s.host * s.times for s in there.segments) == pytest.approx(sum(s.host for s in whole.segments))
    for figure in ("compute", "device", "exposed", "measured", "wait", "seconds", "saved"):
        assert getattr(join([there]), figure) == pytest.approx(getattr(whole, figure))


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


# All chips of a step wait for the slowest: an expected maximum, of products alone.


H100 = load("h100_sxm")


def test_one_chip_waits_for_nobody() -> None:
    assert slowest(H100, 1) == 1.0
    assert slowest(load("cpu"), 64) == 1.0  # cores of one machine


@pytest.mark.parametrize("gpus", [2, 8, 64, 512])
def test_it_is_the_maximum_of_so_many_draws(gpus: int) -> None:
    draws = np.random.default_rng(1).normal(1.0, H100["clock.spread"], (20_000, gpus))
    assert slowest(H100, gpus) - 1.0 == pytest.approx(draws.max(axis=1).mean() - 1.0, rel=0.07)


def test_more_chips_are_never_faster() -> None:
    factors = [slowest(H100, gpus) for gpus in range(1, 2000, 7)]
    assert factors == sorted(factors)
    assert 1.02 < slowest(H100, 8) < slowest(H100, 1024) < 1.06


def test_only_what_the_clock_drives_is_slowed() -> None:
    product = Gemm(name="p", m=1, n=1, k=1)
    heads = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 1, "seq_k": 1, "head_dim_qk": 1, "head_dim_v": 1}
    attention, norm = Attention(name="a", **heads), Stream(name="n", kind="norm", read=1, write=1)
    others = (norm, Collective(name="c", kind="all_reduce", group="tp", bytes=1.0), HostWork(name="h"))
    seconds = slowed(dict.fromkeys((product, attention, *others), 1.0), 1.05)
    assert [seconds[op] for op in (product, attention)] == [1.05, 1.05]
    assert all(seconds[op] == 1.0 for op in others)


def test_replicas_of_one_rank_slow_each_other() -> None:
    """Weak scaling: the same work on every rank, products longer by the ratio of the two maxima."""

    def compute(gpus: int) -> float:
        recipe = Recipe(micro_batch_size=1, global_batch_size=gpus, seq_length=4096, data_parallel_sharding="no_shard")
        load = Workload(model=zoo.load("llama3_8b"), recipe=recipe, gpus=gpus, framework="megatron-lm")
        return project(load, default_cluster("h100_sxm")).stage_seconds[0][0]

    one, eight, many = compute(1), compute(8), compute(512)
    assert one < eight < many < one * slowest(H100, 512)
