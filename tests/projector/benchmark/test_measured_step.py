"""Timings become a step: exact where laps are made up, ordered by work where they are taken here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asked import refusal
from benchmark_cases import tiny
from tabled import tabled

from projector.benchmark import measured
from projector.benchmark.device import Device
from projector.benchmark.measured import Measurement
from projector.benchmark.prices import layer_kinds, stages_of, updates
from projector.benchmark.shrink import shrink_to
from projector.benchmark.timings import Asked, CollectiveWanted, Seconds, Timings
from projector.benchmark.whole_step import collectives_needed
from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.projection import project
from projector.workload import zoo
from projector.workload.workload import Workload


def _work(gpus: int = 1, layers: int = 4, micro: int = 4, **recipe: Any) -> Workload:
    batch = micro * gpus // (recipe.get("pp", 1) * recipe.get("tp", 1))
    stated = {"data_parallel_sharding": "no_shard", "overlap_grad_reduce": False, "recompute_granularity": "none"}
    return tiny(gpus=gpus, layers=layers, **{"global_batch_size": batch} | stated | recipe)


@pytest.fixture
def here() -> Cluster:
    return catalogue.cluster("cpu")


def _made_up(
    work: Workload, cluster: Cluster, ranks: int = 1, message: float = 0.0, reduction: float = 0.0
) -> Measurement:
    """Laps: embedding 1 and 2 s, a layer 10 and 20 s (30 s where gradients get their place), head 3 and 5 s, update 7 s."""
    resolved = project(work, cluster).resolved
    shrunk = shrink_to(resolved.workload, ranks)
    stages = stages_of(resolved)
    wanted = collectives_needed(resolved, stages, cluster, shrunk.ranks, False)
    asked = Asked(
        workload=shrunk.workload, execution=resolved.execution, parts=layer_kinds(resolved, stages),
        stages=updates(resolved, stages, False), collectives=wanted, sharded=False, ranks=shrunk.ranks,
    )  # fmt: skip
    laps = {
        "forward embedding": 1.0, "forward layer dense": 10.0, "forward head": 3.0, "loss": 0.0, "add loss": 0.0,
        "first backward head": 5.0, "first backward layer dense": 30.0, "first backward embedding": 2.0,
        "backward head": 5.0, "backward layer dense": 20.0, "backward embedding": 2.0, "optimizer": 7.0,
    }  # fmt: skip
    weights = dict.fromkeys(("embedding", "layer dense", "head"), (1.0, 0.0))
    timings = Timings(
        source="made up", laps={name: Seconds(value, 0.0, 1) for name, value in laps.items()}, step=Seconds(0.0, 0.0, 1),
        update_short=Seconds(1.0), updates={stage.key: Seconds(1.0) for stage in asked.stages},
        collectives=tuple((each, Seconds(message if each.group == "pp" else reduction)) for each in wanted),
        weights=weights, saved=dict.fromkeys(weights, 0.0),
        updated={stage.key: stage.elements(weights) for stage in asked.stages},
    )  # fmt: skip
    return Measurement(asked, timings, ())


def test_without_parallelism_the_step_is_the_sum_of_its_laps(here: Cluster) -> None:
    work = _work(layers=3, micro=4)
    made = measured.restore(_made_up(work, here), work, here)
    forward, first, later = 1 + 3 * 10 + 3, 2 + 3 * 30 + 5, 2 + 3 * 20 + 5
    assert made.step_seconds == pytest.approx(4 * forward + first + 3 * later + 7)
    assert sum(made.breakdown.values()) == pytest.approx(made.step_seconds)
    assert made.breakdown["optimizer_s"] == pytest.approx(7)
    assert made.measured_share == pytest.approx(1.0)
    assert made.tgs == pytest.approx(work.tokens_per_step / made.step_seconds)


def test_two_stages_of_gpipe_take_one_more_micro_batch(here: Cluster) -> None:
    """m equal micro-batches through p equal stages take (m + p - 1)/m of their work (GPipe, arXiv:1811.06965)."""
    work = _work(gpus=2, pp=2, layers=4, micro=4, pipeline_schedule="gpipe")
    found = _made_up(work, here, ranks=2)
    flat = {name: Seconds(0.0, 0.0, 1) for name in found.timings.laps} | {
        "forward layer dense": Seconds(1.0, 0.0, 1),
        "first backward layer dense": Seconds(2.0, 0.0, 1),
        "backward layer dense": Seconds(2.0, 0.0, 1),
    }
    made = measured.restore(replace(found, timings=replace(found.timings, laps=flat)), work, here)
    assert made.step_seconds == pytest.approx((4 + 2 - 1) * 2 * (1.0 + 2.0), rel=1e-4)  # and the loss over both
    assert made.breakdown["bubble_s"] == pytest.approx(6.0)


def test_a_message_that_was_timed_is_waited_for(here: Cluster) -> None:
    work = _work(gpus=2, pp=2)
    swift, slow = (measured.restore(_made_up(work, here, 2, message=s), work, here) for s in (0.0, 4.0))
    assert slow.step_seconds >= swift.step_seconds + 4.0


def test_what_is_sent_once_a_step_is_added_once(here: Cluster) -> None:
    """Norm and loss where one process was timed, the loss alone where all were; a tied embedding's gradients between the
    ends of a pipeline, never without one."""
    wide = replace(here, inter=replace(here.inter, latency=1.0))  # a second each

    def sent(ranks: int, tied: bool, **recipe: object) -> float:
        work = _work(gpus=2, **recipe)
        work = replace(work, model=replace(work.model, untie_embeddings_and_output_weights=not tied))
        apart = measured.restore(_made_up(work, wide, ranks), work, wide).breakdown["dp_s"]
        return apart - (0.0 if ranks == 2 else measured.restore(_made_up(work, wide, 2), work, wide).breakdown["dp_s"])

    one = sent(2, tied=False, pp=2)
    assert one >= 1.0
    assert sent(1, tied=False, pp=2) == pytest.approx(one)
    assert sent(2, tied=True, pp=2) == pytest.approx(2 * one, rel=0.01)
    assert sent(2, tied=True, tp=2) == pytest.approx(one)


def test_messages_and_gathers_of_fp32_have_four_bytes_an_element(here: Cluster) -> None:
    def sent(**recipe: object) -> list[int]:
        resolved = project(_work(gpus=2, **recipe), here).resolved
        return [each.bytes for each in collectives_needed(resolved, stages_of(resolved), here, 2, False)]

    (narrow,), (wide,) = sent(pp=2, precision="bf16"), sent(pp=2)
    assert wide == 2 * narrow == 32 * 64 * 4
    narrow, wide = (max(sent(data_parallel_sharding="optim", precision=word)) for word in ("bf16", "fp32"))
    assert wide >= narrow


def test_gradients_of_whole_copies_are_reduced_once_a_step(here: Cluster) -> None:
    work = _work(gpus=2, micro=4)
    found = _made_up(work, here, 2, reduction=11.0)
    (asked,) = (each for each, _ in found.timings.collectives)
    parameters = project(work, here).memory.ranks[0].parameters
    assert (asked.kind, asked.group, asked.size) == ("all_reduce", "dp", 2)
    assert asked.bytes == pytest.approx(4 * parameters, rel=0.01)
    alone = measured.restore(_made_up(work, here, 2), work, here)
    assert measured.restore(found, work, here).step_seconds == pytest.approx(alone.step_seconds + 11.0)


def test_groups_larger_than_the_devices_are_priced_by_what_was_timed(here: Cluster) -> None:
    work = _work(gpus=8, micro=4)
    found = _made_up(work, here, 2, reduction=1.0)
    assert {each.size for each, _ in found.timings.collectives} == {2}
    double = replace(found, timings=replace(found.timings, collectives=_doubled(found.timings.collectives)))
    base = measured.restore(_made_up(work, here, 2), work, here).step_seconds
    one, two = (measured.restore(each, work, here).step_seconds - base for each in (found, double))
    assert two == pytest.approx(2 * one)
    assert one > 0


def _doubled(held: tuple[tuple[CollectiveWanted, Seconds], ...]) -> tuple[tuple[CollectiveWanted, Seconds], ...]:
    return tuple((each, replace(time, median=2 * time.median)) for each, time in held)


def test_tensor_parallelism_beyond_the_devices_is_priced_on_top(here: Cluster) -> None:
    work = _work(gpus=2, tp=2, micro=4)
    here_ = measured.restore(_made_up(work, here, ranks=2), work, here)
    alone = measured.restore(_made_up(work, here, ranks=1), work, here)
    assert here_.breakdown["tp_s"] == 0.0
    assert alone.breakdown["tp_s"] > 0.0
    assert alone.step_seconds == pytest.approx(here_.step_seconds + alone.breakdown["tp_s"], rel=1e-3)
    assert alone.measured_share < here_.measured_share


def test_a_step_that_was_interrupted_stretches_all_parts(here: Cluster) -> None:
    work = _work()
    found = _made_up(work, here)
    whole = sum(lap.median for lap in found.timings.laps.values())
    plain = measured.restore(found, work, here).step_seconds
    stretched = replace(found, timings=replace(found.timings, step=Seconds(1.2 * whole, 0.0, 1)))
    assert measured.restore(stretched, work, here).step_seconds == pytest.approx(1.2 * plain)


@pytest.mark.parametrize(("recipe", "gpus", "devices", "kept"), tabled("workloads", "shrunk_to_devices"))
def test_shrinking_keeps_as_many_ranks_as_there_are_devices(
    recipe: dict[str, int], gpus: int, devices: int, kept: tuple[int, int, int]
) -> None:
    shrunk = shrink_to(_work(gpus=gpus, micro=8, **recipe), devices)
    assert (shrunk.ranks, shrunk.tp, shrunk.ep) == kept
    assert shrunk.workload.model.num_attention_heads == 4 // recipe.get("tp", 1) * shrunk.tp


def test_live_steps_are_ordered_by_their_work(cpu: Device, here: Cluster, tmp_path: Path) -> None:
    """From the same times: what two takings of them say of each other is a matter of who else runs on this machine."""
    file = tmp_path / "times.json"
    steps = [
        measured.project(_work(layers=n), here, cpu, file, layers="torch", budget=0.05).step_seconds for n in (1, 6, 11)
    ]
    assert steps[2] > steps[1] > steps[0]


@pytest.mark.parametrize("sharding", ["no_shard", "optim"])
def test_a_live_projection_rests_on_measurements(cpu: Device, here: Cluster, sharding: str) -> None:
    work = _work(data_parallel_sharding=sharding)
    made = measured.project(work, here, cpu, layers="torch", budget=0.05)
    assert made.measured_share == pytest.approx(1.0, abs=1e-6)
    assert sum(made.breakdown.values()) == pytest.approx(made.step_seconds)
    assert len(made.stage_seconds) == 1


def test_a_gpus_description_does_not_take_times_of_a_cpu(cpu: Device) -> None:
    refusal(measured.project, _work(), catalogue.cluster("h100"), cpu, match="h100_sxm")


def test_layers_that_nothing_here_has_are_refused(cpu: Device, here: Cluster) -> None:
    work = _work()
    with pytest.raises(Unsupported, match="parallel_residual"):
        measured.project(replace(work, model=replace(work.model, parallel_residual=True)), here, cpu)


def test_a_depth_of_token_prediction_takes_a_layer_and_a_head(here: Cluster) -> None:
    work = _work(layers=3, micro=4)
    work = replace(work, model=replace(work.model, mtp_num_layers=1))
    made = measured.restore(_made_up(work, here), work, here)
    forward, first, later = 1 + 4 * 10 + 2 * 3, 2 + 4 * 30 + 2 * 5, 2 + 4 * 20 + 2 * 5
    assert made.step_seconds == pytest.approx(4 * forward + first + 3 * later + 7, rel=1e-4)  # and what joins them


class _Tight:
    """A device with little memory."""

    def __init__(self, device: Device, free: float) -> None:
        self._device, self._free = device, free

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)

    def free_bytes(self) -> float:
        return self._free


def test_too_little_memory_says_what_would_fit(cpu: Device, here: Cluster) -> None:
    work = _work(micro_batch_size=64, global_batch_size=64, seq_length=512)
    with pytest.raises(InputError, match=r"memory.*with micro_batch_size 1 .*it would fit"):
        measured.project(work, here, _Tight(cpu, 0.1 * 2**30))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no smaller batch"):
        measured.project(work, here, _Tight(cpu, 1.0))  # type: ignore[arg-type]
    whole = replace(work, model=zoo.load("llama3_70b"))
    with pytest.raises(InputError, match=r"[0-9]+ times the tp and [0-9]+ times the pp it would fit"):
        measured.project(whole, here, _Tight(cpu, 20 * 2**30))  # type: ignore[arg-type]


def test_a_file_of_times_is_written_once_and_used_after(cpu: Device, here: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    first = measured.project(_work(), here, cpu, path, layers="torch", budget=0.05)
    before = path.read_bytes()
    again = measured.project(_work(), here, cpu, path, layers="torch", budget=0.05)
    assert again.step_seconds == first.step_seconds
    assert path.read_bytes() == before
