"""What is put back is the difference between the whole run and the one that ran; what cannot be is refused at once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml
from asked import refusal, says

from projector.benchmark.device import Device
from projector.benchmark.entry import BEST_SHARE, Entry, entry
from projector.benchmark.entry_files import write
from projector.benchmark.prices import layer_kinds, stages_of
from projector.benchmark.probe import Probed, probe
from projector.benchmark.shrink import shrink_to
from projector.benchmark.stopwatch import Stopwatch
from projector.benchmark.timed_run import TimedRun, eager, refuse
from projector.benchmark.timings import Asked
from projector.cli.source import workload as read
from projector.errors import Unsupported
from projector.frameworks.types import Resolved
from projector.hardware import catalogue, efficiency
from projector.projection import project
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.model import Model
from projector.workload.workload import Workload
from tests.workloads import workload

H100 = catalogue.cluster("h100")
FUSED = "megatron-core with transformer engine"


def _work(model: Model | None = None, gpus: int = 8, **recipe: Any) -> Workload:
    stated = {"global_batch_size": 16, "seq_length": 8192, "precision": "bf16", "recompute_granularity": "none"}
    stated |= {"gradient_accumulation_fusion": False}
    return workload(model or zoo.load("llama3_8b", num_layers=4), gpus, **stated | recipe)


def _asked(resolved: Resolved, devices: int, narrow: bool = False) -> Asked:
    shrunk = shrink_to(resolved.workload, devices, narrow)
    return Asked(
        workload=shrunk.workload, execution=resolved.execution, parts=layer_kinds(resolved, stages_of(resolved)),
        stages=(), collectives=(), sharded=False, ranks=shrunk.ranks,
    )  # fmt: skip


def _layer(
    work: Workload, devices: int, source: str = FUSED, narrow: bool = False
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float], set[str]]:
    """Of a layer (a depth of token prediction where there is one), (forward, backward) seconds: priced as it ran; restored
    from exactly these; priced whole; and the groups whose communication was added."""
    resolved = project(work, H100).resolved
    stages, asked = stages_of(resolved), _asked(resolved, devices, narrow)
    ran = TimedRun(resolved, asked, H100, source)
    layers = [(made, part) for stage in stages for made, part in stage.each() if made[0][1] is not None]
    made, part = max(layers, key=lambda each: len(each[0]))
    there = [tuple(phase.seconds for phase in ran.phases(*each)) for each in made]
    here = (sum(each[0] for each in there), sum(each[1] for each in there))
    restored, whole = ran.restored(made, part, *here), ran.whole(part)
    beyond = {group for phase in restored for group in phase.exposed}
    theirs, all_ = ((p[0].seconds, p[1].seconds) for p in (restored, whole))
    return here, theirs, all_, beyond


def test_times_that_models_give_are_restored_to_what_models_give_of_the_whole() -> None:
    mixtral = zoo.load("mixtral_8x7b", num_layers=2)
    sandwich = replace(zoo.load("llama3_8b", num_layers=2), sandwich_norm=True)
    predicted = replace(mixtral, mtp_num_layers=1)
    for devices, work, added in (
        (2, _work(tp=2, sequence_parallel=True), set()),  # kept whole: not charged again
        (1, _work(tp=2, sequence_parallel=True), {"tp"}),
        (2, _work(tp=8, sequence_parallel=True), {"tp"}),
        (1, _work(cp=8), {"cp"}),
        (8, _work(tp=2, cp=2, sequence_parallel=True), {"cp"}),
        (8, _work(mixtral, ep=8), set()),
        (2, _work(mixtral, ep=8), {"ep"}),
        (1, _work(recompute_granularity="selective"), set()),
        (1, _work(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1), set()),
        (1, _work(precision="fp8"), set()),
        (1, _work(sandwich), set()),
        (1, _work(predicted), set()),
        (2, _work(replace(predicted, mtp_num_layers=2), ep=8), {"ep"}),
    ):
        ran, restored, whole, beyond = _layer(work, devices)
        case = (devices, work.recipe, ran, restored, whole)
        assert restored == pytest.approx(whole, rel=1e-5), case
        assert beyond == added or added == {"cp"}, case  # a ring may hide all of it


def test_what_a_layer_left_out_changes_its_time_in_the_direction_it_must() -> None:
    plain = _layer(_work(), 1)[1]
    ran, whole, _, _ = _layer(_work(cp=8), 1)
    assert whole[0] > 1.2 * ran[0]  # eight times the keys of each query: see the FLOPs of attention
    assert whole[0] < plain[0]
    ran, selective, _, _ = _layer(_work(recompute_granularity="selective"), 1)
    assert selective[0] == ran[0]
    assert selective[1] > 1.02 * ran[1]
    ran, narrow, _, _ = _layer(_work(precision="fp8"), 1)
    assert narrow[0] < 0.9 * ran[0]
    eight_on_two, eight_on_one = (_layer(_work(tp=8, sequence_parallel=True), n) for n in (2, 1))
    assert eight_on_two[1] == pytest.approx(eight_on_one[1], rel=1e-6)
    assert eight_on_two[1][0] - eight_on_two[0][0] < eight_on_one[1][0] - eight_on_one[0][0]  # tp 2 is in the time


def test_eager_layers_are_made_as_fast_as_the_fused_ones_that_they_stand_for() -> None:
    fused = {"apply_rope_fusion": True, "bias_activation_fusion": True, "cross_entropy_fusion": "te"}
    work = _work(**fused)
    resolved = project(work, H100).resolved
    assert set(fused) <= set(eager(resolved, "torch", _asked(resolved, 1)))
    assert not eager(resolved, FUSED, _asked(resolved, 1))
    assert eager(resolved, "megatron-core", _asked(resolved, 1)) == ("apply_rope_fusion",)  # without its kernels
    ran, restored, whole, _ = _layer(work, 1, "torch")
    assert restored == pytest.approx(whole, rel=1e-6)
    assert sum(whole) < sum(ran)
    ran, restored, whole, _ = _layer(work, 1)
    assert restored == pytest.approx(ran, rel=1e-6)
    compiled = project(_work(torch_compile=True), H100).resolved
    assert eager(compiled, FUSED, _asked(compiled, 1)) == ("torch_compile",)
    buffered = project(_work(gradient_accumulation_fusion=True), H100).resolved
    assert eager(buffered, FUSED, _asked(buffered, 1)) == ("gradient_accumulation_fusion",)  # of Megatron's own buffers


def test_8_bit_linears_that_ran_are_not_put_back() -> None:
    """Of the whole run, in times as priced; casts kernel by kernel are taken off, those of the run's engine stay."""
    for scaling in ("tensorwise", "rowwise", "blockwise"):
        work = _work(precision="fp8", fp8_recipe=scaling)
        ran, restored, whole, _ = _layer(work, 1, narrow=True)
        assert restored == pytest.approx(ran, rel=1e-9), scaling
        assert whole == pytest.approx(ran, rel=1e-9), scaling
        wide, again, _, _ = _layer(work, 1)
        assert again == pytest.approx(whole, rel=1e-6)
        assert sum(ran) < sum(wide)
    ran, restored, whole, _ = _layer(_work(precision="fp8", fp8_recipe="tensorwise"), 1, "torch", narrow=True)
    assert sum(ran) > 1.05 * sum(whole)
    assert restored == pytest.approx(whole, rel=1e-6)
    delayed = project(_work(precision="fp8", fp8_recipe="delayed"), H100).resolved
    assert "fp8_recipe" in eager(delayed, "torch", _asked(delayed, 1, narrow=True))
    assert not eager(delayed, FUSED, _asked(delayed, 1, narrow=True))


def test_what_differs_is_said() -> None:
    mixed = _work(cp=2, tp=2, sequence_parallel=True, precision="fp8", recompute_granularity="selective")
    notes = " ".join(shrink_to(mixed, 1).notes)
    assert not any("fp8" in note for note in shrink_to(mixed, 1, narrow=True).notes)
    for word in ("sequence-parallel", "exchanges are priced", "fp8 changes is priced", "selective"):
        assert word in notes


def test_what_cannot_be_timed_is_refused_before_anything_is() -> None:
    model = zoo.load("llama3_8b", num_layers=2)
    for work, word in (
        (_work(replace(model, window_size=1024)), "w1024"),
        (_work(replace(model, hybrid_layer_pattern="*-")), "attention"),
        (_work(lora=LoRA(dim=8)), "LoRA"),
        (_work(replace(model, parallel_residual=True)), "parallel_residual"),
        (_work(optimizer="muon"), "muon"),
    ):
        refusal(refuse, project(work, H100).resolved, match=word, kind=Unsupported)


# A probe of the CPU makes an entry that the catalogue loads and that a small model is projected on.


@pytest.fixture(scope="module")
def probed(cpu: Device) -> Probed:
    return probe(cpu, Stopwatch(cpu, samples=3, flush=False, most=0.005, warm=0.0), largest=128)


@pytest.fixture(scope="module")
def made(probed: Probed) -> Entry:
    return entry(probed, "here")


def test_everything_is_measured_or_said_to_be_assumed(probed: Probed, made: Entry) -> None:
    best = max(taken.flop_rate for taken in probed.gemms if getattr(taken.op, "dtype", "") == "bf16")
    assert made.gpu.peak["bf16"] == pytest.approx(best / BEST_SHARE)
    assert made.gpu.memory_bandwidth > 0
    assert probed.host_launch > 0
    assert {each.kind for each in made.origins.values()} <= {"measured", "derived", "assumed"}
    assert made.origins["tdp_watts"].kind == "assumed"
    for key, each in made.parameters.items():
        assert each.value > 0 or key == "gemm.burst", key
        assert each.low is None or each.low <= each.value <= (each.high or each.value) * (1 + 1e-9), key
        if key.startswith(("stream.", "gemm.loop", "attention.")) and not key.endswith("_us"):
            assert 0 < each.value <= 1, key


def test_the_entry_loads_and_a_model_is_projected(made: Entry, small: Path, tmp_path: Path) -> None:
    files = write(made, tmp_path / "hardware", "torch, here")
    cluster = catalogue.cluster(str(files[-1]))
    assert cluster.gpu.name == "here"
    assert cluster.gpu.memory_bandwidth == pytest.approx(made.gpu.memory_bandwidth, rel=1e-4)
    loaded = efficiency.of(cluster.gpu)
    assert loaded["gemm.loop.bf16"] == pytest.approx(made.parameters["gemm.loop.bf16"].value, rel=1e-4)
    assert loaded.parameters["stream.copy"].kind == "measured"
    assert project(read(str(small)), cluster).step_seconds > 0


def test_the_command_writes_what_performance_takes(small: Path, tmp_path: Path, cpu: Device) -> None:
    out = tmp_path / "hw"
    flags = ["--device", "cpu", "--largest", "128", "--samples", "3", "--no-flush", "--name", "Mine 1"]
    shown = command_line.told("projector", "probe", *flags, "--out", out)
    says(shown, "assumed:", "measured")
    assert yaml.safe_load((out / "mine_1.yaml").read_text(encoding="utf-8"))["name"] == "mine_1"
    cluster = str(out / "mine_1.cluster.yaml")
    assert command_line.document("projector", "performance", "--config", small, "--cluster", cluster)


def test_a_device_whose_efficiency_file_is_gone_says_so(made: Entry, small: Path, tmp_path: Path) -> None:
    files = write(made, tmp_path, "torch, here")
    files[1].unlink()
    refusal(project, read(str(small)), catalogue.cluster(str(files[-1])), match=r"here\.efficiency\.yaml")


def test_an_unwritable_folder_is_said_before_anything_is_timed(cpu: Device) -> None:
    assert "--out" in command_line.refused("projector", "probe", "--device", "cpu", "--out", "/proc/nowhere")


def test_a_device_that_hardly_runs_is_refused(probed: Probed) -> None:
    slow = tuple(replace(each, timing=replace(each.timing, median=each.timing.median * 1e6)) for each in probed.gemms)
    refusal(entry, replace(probed, gemms=slow), "here", match="less than one operation a clock", kind=ValueError)
