"""Single terms of a step: contention, graphs, buckets, messages between stages, recompute by block."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.mechanisms import Execution
from projector.operators.types import Collective, Stream
from projector.pipeline.exchange import exposed
from projector.projection import Projection, project
from projector.step.stages import _overlapped, parts
from projector.step.timing import CONTENTION, Clock, Phase, Segment, _stretch, in_turns
from projector.workload import zoo
from projector.workload.composition import compositions
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.workloads import sharded as workload

H100 = catalogue.default_cluster("h100_sxm")


def resolved(load: Workload) -> Resolved:
    return resolve(load, "nvidia", "hopper", "x86")


def on_h100(**changes: object) -> Projection:
    return project(workload(**changes), H100)  # type: ignore[arg-type]


def test_hidden_communication_slows_what_it_hides_behind() -> None:
    a = Stream(name="a", kind="copy", read=1.0, write=1.0)
    comm = Collective(name="c", kind="all_reduce", group="tp", bytes=1.0, hides_behind=("a",))
    quiet = Execution.of(runtime={"launch_us": 0.0, "collective_us": 0.0, "sync_us": 0.0, "layer_us": 0.0})
    phase = Clock(kernels={a: 4.0}, measured=frozenset(), collective=lambda op: 3.0, execution=quiet).phase([a, comm])
    assert 4.0 + 0.05 * 3.0 <= phase.seconds <= 4.0 + 0.2 * 3.0  # the published range, 5 to 20 %


def test_a_graph_replays_for_a_small_part_of_the_launches() -> None:
    ops = [Stream(name=f"s{i}", kind="copy", read=1.0, write=1.0) for i in range(100)]
    quiet = Execution.of(runtime={"launch_us": 10.0, "collective_us": 0.0, "sync_us": 0.0, "layer_us": 0.0})
    clock = Clock(kernels=dict.fromkeys(ops, 0.0), measured=frozenset(), collective=lambda op: 0.0, execution=quiet)
    eager = clock.phase(ops)
    graph = clock.phase(ops, graphed=frozenset(op.name for op in ops))
    assert 0.0 < graph.seconds < 0.2 * eager.seconds


def test_a_dense_layer_that_waits_for_its_host_takes_as_long_for_any_sequence() -> None:
    """What Python takes around the kernels of a layer does not grow with its tokens, a graph replays it, and it is never
    seen where the device has more to do."""

    def step(**changes: object) -> float:
        return on_h100(**{"gpus": 8, "tp": 8, "global_batch_size": 8, **changes}).step_seconds

    assert step(seq_length=512) == pytest.approx(step(seq_length=256), rel=1e-3)
    graphed = {"cuda_graph_scope": ("attn", "mlp")}
    assert step(seq_length=256, **graphed) < 0.4 * step(seq_length=256)
    assert step(seq_length=256, **graphed) < step(seq_length=512, **graphed)
    assert step(seq_length=16384, **graphed) == pytest.approx(step(seq_length=16384), rel=0.02)


@pytest.mark.parametrize(("window", "hidden"), [(10.0, 0.9), (0.2, 0.2), (0.0, 0.0)])
def test_what_is_hidden_is_bounded_by_the_window_and_the_last_bucket(window: float, hidden: float) -> None:
    assert exposed(1.0, window, 0.1, 0.0) == pytest.approx(1.0 - hidden)
    lost = exposed(1.0, window, 0.1, CONTENTION)
    assert 1.0 - hidden - 1e-9 <= lost <= 1.0 - hidden + CONTENTION * hidden
    assert exposed(1.0, window, 0.1, CONTENTION, 0.5 * window) <= lost + 1e-9  # a device that waits has time to lose


def test_context_parallel_ranks_send_their_part_of_the_sequence() -> None:
    """Twice the tokens on twice the context ranks: the same message, and so the same time between stages."""
    short = on_h100(gpus=32, pp=4, cp=2, seq_length=65536, global_batch_size=16).breakdown["pp_s"]
    long = on_h100(gpus=64, pp=4, cp=4, seq_length=131072, global_batch_size=16).breakdown["pp_s"]
    assert long == pytest.approx(short, rel=0.05)


@pytest.mark.parametrize("layers", [0, 1, 5, 8])
def test_recompute_by_block_replays_the_first_layers_of_a_stage(layers: int) -> None:
    how = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}
    made = resolved(workload(pp=4, **how))
    for chunk in compositions(made.workload.model, made.workload.recipe)[1]:
        replayed = [part.recomputed for part in parts(made, chunk) if part.layers]
        assert replayed == [True] * layers + [False] * (8 - layers)


def test_recompute_by_block_lies_between_none_and_all() -> None:
    full = {"recompute_granularity": "full", "recompute_method": "block"}
    seconds = [on_h100(gpus=8, **full, recompute_num_layers=n).step_seconds for n in (0, 8, 16, 32)]
    assert seconds == sorted(seconds)
    assert seconds[0] == pytest.approx(on_h100(gpus=8).step_seconds)
    half, whole = seconds[2] - seconds[0], seconds[3] - seconds[0]
    assert half == pytest.approx(whole / 2, rel=0.05)


def test_half_of_the_weight_traffic_overlaps_where_the_framework_says_half() -> None:
    phase = Clock(kernels={}, measured=frozenset(), collective=lambda op: 0.0, execution=Execution()).phase([])
    phase = dataclasses.replace(phase, segments=(phase.segments[0]._replace(device=4.0, host=0.0),))
    gather = (Collective(name="g", kind="all_gather", group="dp", bytes=1.0),)
    for overlap in (0.0, 0.5, 1.0):
        execution = Execution.of(data_parallel={"overlap": overlap}, runtime={"collective_us": 0.0})
        clock = Clock(kernels={}, measured=frozenset(), collective=lambda op: 3.0, execution=execution)
        assert _overlapped(phase, gather, clock, overlap).exposed["dp"] == pytest.approx(
            3.0 * (1.0 - overlap), abs=1e-9
        )


@pytest.mark.parametrize(("start", "end", "wide"), [(1, 1, 2), (0, 14, 14), (3, 0, 3), (40, 40, 32)])
def test_first_and_last_layers_in_bf16_change_exactly_those(start: int, end: int, wide: int) -> None:
    graphed = {"cuda_graph_scope": ("full_iteration",)}  # so that the host hides nothing
    quantised = {"precision": "fp8", "fp8_recipe": "tensorwise", **graphed}
    numbers = {"num_layers_at_start_in_bf16": start, "num_layers_at_end_in_bf16": end}
    fp8, mixed = on_h100(**quantised, **numbers), on_h100(**quantised, **numbers, first_last_layers_bf16=True)
    bf16 = on_h100(precision="bf16", **graphed)
    layers = zoo.load("llama3_8b").num_layers
    of_layers = [p.stage_seconds[0][0] for p in (fp8, mixed, bf16)]
    assert of_layers[1] - of_layers[0] == pytest.approx((of_layers[2] - of_layers[0]) * wide / layers, rel=1e-6)
    assert of_layers[0] < of_layers[1] <= of_layers[2]


def test_communication_beside_a_host_bound_unit_takes_at_least_its_own_time() -> None:
    """A host that is busy longer than the device must not hide communication twice."""
    quiet = Execution.of(
        runtime={"launch_us": 0.0, "collective_us": 0.0, "sync_us": 0.0, "layer_us": 0.0},
        data_parallel={"overlap": 1.0},
    )
    op = Collective(name="c", kind="all_gather", group="dp", bytes=1.0)
    clock = Clock(kernels={}, measured=frozenset(), collective=lambda _: 10.0, execution=quiet)
    phase = Phase(segments=(Segment(device=1.0, host=4.0),), compute=1.0)
    assert _overlapped(phase, (op,), clock, 1.0).seconds >= 10.0


PIECES = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0), st.integers(1, 4)), max_size=8)


def _run(pieces: list[tuple[float, float, int]]) -> Segment:
    return _stretch(pieces, 0.0, 0.0)


@given(PIECES, PIECES)
def test_kernels_run_in_the_order_and_no_sooner_than_they_are_issued(
    one: list[tuple[float, float, int]], two: list[tuple[float, float, int]]
) -> None:
    """Played launch by launch from an idle device; halves chain to the whole; no faster than either sum, no slower than
    both."""
    issued = done = 0.0
    for device, host, launches in (*one, *two):
        for _ in range(launches):
            issued += host / launches
            done = max(done, issued) + device / launches if device else done
    whole = _run([*one, *two])
    assert whole.seconds == pytest.approx(max(issued, done))
    assert _run(one).then(_run(two)).seconds == pytest.approx(whole.seconds)
    assert max(whole.device, whole.host) <= whole.seconds + 1e-9 <= whole.device + whole.host + 2e-9


@given(st.floats(0.0, 5.0), st.floats(0.0, 5.0), st.floats(0.1, 9.0))
def test_device_and_host_take_turns_at_being_late(device: float, host: float, scale: float) -> None:
    """Never faster than either, slower than both only where they are alike, and the same in any unit of time."""
    together = in_turns(device, host)
    assert max(device, host) * (1 - 1e-9) <= together + 1e-12 <= 1.2 * max(device, host) + 2e-12
    assert together == pytest.approx(in_turns(host, device))
    assert in_turns(scale * device, scale * host) == pytest.approx(scale * together)
    assert in_turns(1.0, 0.25) < 1.001


def test_a_slow_start_is_not_made_up_for() -> None:
    """Costly launches of short kernels right after a synchronisation, long kernels later: the sums hide each other, the
    device still waits first."""
    assert _run([(0.1, 2.0, 1), (3.0, 0.0, 1)]).seconds == pytest.approx(5.1)
    assert _run([(3.0, 0.0, 1), (0.1, 2.0, 1)]).seconds == pytest.approx(3.1)


def test_adapters_leave_the_weight_gradient_out_of_the_utilisation() -> None:
    adapters = on_h100(lora=LoRA(dim=16, targets=("linear_qkv", "linear_proj")))
    full = on_h100()
    assert adapters.mfu * adapters.step_seconds == pytest.approx(full.mfu * full.step_seconds * 2 / 3)


def test_deferred_output_gradients_move_into_the_bubble_of_the_last_stage() -> None:
    """The last stage gets shorter; what it left over runs while the other stages still go backward."""
    case = {"gpus": 32, "pp": 4, "tp": 8, "global_batch_size": 64, "seq_length": 8192}
    plain, deferred = on_h100(**case), on_h100(**case, defer_embedding_wgrad_compute=True)
    assert deferred.stage_seconds[-1][1] < plain.stage_seconds[-1][1]
    assert deferred.stage_seconds[0] == plain.stage_seconds[0]
    assert deferred.step_seconds < plain.step_seconds
    assert sum(deferred.breakdown.values()) == pytest.approx(deferred.step_seconds)
    alone = {"gpus": 8, "tp": 8}
    assert on_h100(**alone, defer_embedding_wgrad_compute=True).step_seconds == on_h100(**alone).step_seconds


def test_a_bound_process_issues_faster_and_aligned_collections_stall_once() -> None:
    kernel = Stream(name="s", kind="copy", read=1.0, write=1.0, launches=3)
    bound, loose = (
        Execution.of(runtime={"launch_us": 10.0}),
        Execution.of(runtime={"launch_us": 10.0, "unbound_host_factor": 1.5}),
    )
    assert loose.host_seconds(kernel) == pytest.approx(1.5 * bound.host_seconds(kernel))
    stalls = Execution.of(runtime={"step_ms": 0.0, "gc_stall_ms": 200.0, "gc_steps": 1000.0}).runtime.loop_seconds
    assert stalls(1, False) == pytest.approx(stalls(4096, True))
    assert stalls(8, True) == pytest.approx(0.2 / 1000.0)
    apart = [stalls(ranks, False) for ranks in (1, 8, 512, 8192)]
    assert apart == sorted(apart)
    assert apart[-1] == pytest.approx(0.2, rel=1e-3)
    assert Execution.of(runtime={"step_ms": 3.0}).runtime.loop_seconds(8, False) == pytest.approx(3e-3)


def test_numa_binding_and_manual_collection_are_switches() -> None:
    case = workload(gpus=8, micro_batch_size=1, global_batch_size=8)

    def bound(on: bool) -> Projection:
        recipe = dataclasses.replace(case.recipe, numa_binding=on, manual_gc=on)
        return project(
            dataclasses.replace(case, framework="primus", recipe=recipe), catalogue.default_cluster("mi355x")
        )

    loose, tight = bound(False), bound(True)
    assert (
        loose.resolved.execution.runtime.unbound_host_factor
        > tight.resolved.execution.runtime.unbound_host_factor
        == 1.0
    )
    assert tight.step_seconds < loose.step_seconds


def test_layers_in_bf16_that_nobody_counts_are_one_at_each_end() -> None:
    open_, told = (
        Recipe(micro_batch_size=1, global_batch_size=8, seq_length=4096, first_last_layers_bf16=True, **numbers)
        for numbers in ({}, {"num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1})
    )
    model = zoo.load("llama3_8b")
    assert compositions(model, open_)[1] == compositions(model, told)[1]
