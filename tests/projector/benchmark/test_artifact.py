"""Files of times: the same out as in, never half of one, refused where they are of something else."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import command_line
import pytest
from asked import put, refusal, says
from benchmark_cases import SMALL, tiny

from projector.benchmark import artifact, measured
from projector.benchmark.device import Device
from projector.benchmark.measured import Measurement
from projector.benchmark.whole_step import anchored
from projector.cli import run as projector
from projector.cli.source import workload
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.projection import project
from projector.workload.workload import Workload
from tests.workloads import written


@pytest.fixture(scope="module")
def taken(cpu: Device, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workload, Measurement]:
    work = workload(str(written(tmp_path_factory.mktemp("taken") / "small.yaml", SMALL, {})))
    return work, measured.measure(work, catalogue.cluster("cpu"), cpu, layers="torch", budget=0.02)


@pytest.fixture
def file(taken: tuple[Workload, Measurement], cpu: Device, tmp_path: Path) -> Path:
    _, found = taken
    path = tmp_path / "kept" / "times.json"
    artifact.save(path, found.timings, found.asked, found.notes, cpu)
    return path


def test_what_is_read_is_what_was_written(taken: tuple[Workload, Measurement], file: Path, cpu: Device) -> None:
    work, found = taken
    assert artifact.timings_of(file, artifact.read(file)) == found.timings
    assert measured.load(file, work, catalogue.cluster("cpu"), cpu) == found
    assert list(file.parent.iterdir()) == [file]


def test_a_file_says_what_was_measured_where_with_which_versions(file: Path, cpu: Device) -> None:
    document = artifact.read(file)
    assert document["schema"] == artifact.SCHEMA
    assert document["torch"] == cpu.torch.__version__
    assert document["device"] == {"type": "cpu", "title": cpu.title, "gpu": "cpu", "arch": cpu.arch}
    assert set(document["environment"]) >= {"threads", "ranks", "dtype", "layers", "driver", "python"}
    for lap in document["timings"]["laps"].values():
        assert set(lap) == {"median", "spread", "samples", "quiet"}


def _changed(file: Path, change: dict[str, object]) -> None:
    """Other values in ``file`` at dotted paths, none at those of None."""
    held = json.loads(file.read_text())
    for path, value in change.items():
        *steps, last = path.split(".")
        inside = held
        for step in steps:
            inside = inside[step]
        inside[last] = value
        if value is None:
            del inside[last]
    file.write_text(json.dumps(held))


_TITLE, _LENGTH, _VERSION = {"device.title": "another"}, {"work.recipe.seq_length": 4096}, {"torch": "1.13.1"}


@pytest.mark.parametrize(
    ("change", "key", "found", "expected"),
    [
        ({"schema": 99}, "schema", "99", "2: measure again"),
        (_TITLE, "device.title", "'another'", ""),
        (_LENGTH, "work.recipe.seq_length", "4096", "64"),
        (_VERSION, "torch", "1.13.1", "the major version here"),
        ({"timings": None}, "timings", "None", "cut or changed"),
        (
            {"timings.laps": {"forward embedding": {"median": 1.0, "wrong": 2.0}}},
            "timings",
            "wrong",
            "--save-benchmark",
        ),
        ({"environment.ranks": "many"}, "environment", "many", "ranks"),
    ],
)
def test_what_does_not_fit_is_refused(
    file: Path,
    taken: tuple[Workload, Measurement],
    cpu: Device,
    change: dict[str, object],
    key: str,
    found: str,
    expected: str,
) -> None:
    _changed(file, change)
    (line,) = str(refusal(measured.load, file, taken[0], catalogue.cluster("cpu"), cpu)).splitlines()
    assert all(word in line for word in (str(file), key, found, expected)), line


def test_all_mismatches_are_told_at_once(file: Path, taken: tuple[Workload, Measurement], cpu: Device) -> None:
    _changed(file, _TITLE | _LENGTH | _VERSION)
    assert len(refusal(measured.load, file, taken[0], catalogue.cluster("cpu"), cpu).problems) == 3


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\x00\x01"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    refusal(artifact.read, put(tmp_path / "other.json", content), match="save-benchmark")


def test_without_a_device_the_clusters_gpu_must_be_that_of_the_file(
    file: Path, taken: tuple[Workload, Measurement]
) -> None:
    measured.load(file, taken[0], catalogue.cluster("cpu"))
    refusal(measured.load, file, taken[0], catalogue.cluster("h100"), match="h100_sxm")


def test_a_place_that_cannot_be_written_is_told(taken: tuple[Workload, Measurement], cpu: Device, tmp_path) -> None:
    _, found = taken
    place = put(tmp_path / "a file", "") / "times.json"
    refusal(artifact.save, place, found.timings, found.asked, (), cpu, match="a file that can be written")


def test_both_commands_use_a_file(file: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--config", str(small), "--load-benchmark", str(file)]
    shown = command_line.told("projector", "benchmark", *flags)
    says(shown, "Simulated against measured", "layer dense, backward")
    shown = command_line.told("projector", "benchmark", *flags, "--memory")
    says(shown, "counted MiB", "with activations as counted")
    for command in (["memory"], ["both", "--profiling-mode", "both", "--memory-safety-margin", "0.05"]):
        assert "with activations as counted" in command_line.told("projector", *command, *flags)
    assert command_line.document("projector", "memory", *flags)["benchmark"]["peak"] > 0
    assert projector(["performance", *flags, "--profiling-mode", "both", "--json"]) == 0
    assert "benchmark" in json.dumps(json.loads(capsys.readouterr().out))
    scaled = ["--target-nodes", "8", "--global-batch-size", "16", "--sub-target-nodes", "1"]
    assert projector(["performance", *flags, "--profiling-mode", "benchmark", *scaled]) == 0
    assert "efficiency" in capsys.readouterr().out


def test_devices_are_asked_without_a_file(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert projector(["performance", "--config", str(small), "--benchmark-gpus", "1", "--budget", "0.05"]) == 0
    assert "Benchmark: pp 1" in capsys.readouterr().out


def test_a_file_without_a_mode_that_uses_it_is_refused(file: Path, small: Path, capsys) -> None:
    assert projector(["performance", "--config", str(small), "--load-benchmark", str(file)]) == 2
    assert "--profiling-mode" in capsys.readouterr().err


def test_another_workload_exits_with_2(file: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small.write_text(small.read_text().replace("seq_length: 64", "seq_length: 128"), encoding="utf-8")
    assert projector(["benchmark", "--config", str(small), "--load-benchmark", str(file)]) == 2
    assert "work.recipe.seq_length: found 64, expected 128" in capsys.readouterr().err


def test_one_file_serves_every_run_with_these_layers(
    taken: tuple[Workload, Measurement], file: Path, cpu: Device
) -> None:
    """Twice the layers on two stages, more micro-batches, data-parallel ranks: each as if it had been measured itself."""
    work, cluster = taken[0], catalogue.cluster("cpu")
    model, recipe = replace(work.model, num_layers=4, name="another"), replace(work.recipe, global_batch_size=16)
    deep = measured.load(file, replace(work, model=model), cluster, cpu)
    (once,), (twice,) = (
        deep.timings.updated.values(),
        [stage.elements(deep.timings.weights) for stage in deep.asked.stages],
    )
    assert twice == once + 2 * sum(deep.timings.weights["layer dense"])
    short, long = (
        measured.restore(each, run, cluster) for each, run in ((taken[1], work), (deep, replace(work, model=model)))
    )
    assert short.step_seconds < long.step_seconds < 2.5 * short.step_seconds
    for change in ({"pp": 2}, {}, {"data_parallel_sharding": "optim"}):
        wide = replace(work, model=model, gpus=4, recipe=replace(recipe, **change))  # type: ignore[arg-type]
        found = measured.load(file, wide, cluster, cpu)
        made = measured.restore(found, wide, cluster)
        assert sum(made.breakdown.values()) == pytest.approx(made.step_seconds)
        assert made.measured_share < 1.0  # messages and reductions are priced


def test_layers_that_a_file_lacks_are_refused_with_the_reason(
    file: Path, taken: tuple[Workload, Measurement], cpu: Device
) -> None:
    work = taken[0]
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    for change, word in (
        (full, "layer dense recomputed, too"),
        ({"micro_batch_size": 2}, "micro_batch_size: found 1, expected 2"),
    ):
        other = replace(work, recipe=replace(work.recipe, **change))
        refusal(measured.load, file, other, catalogue.cluster("cpu"), cpu, match=word)


def test_the_conditions_of_the_device_stand_beside_its_times(file: Path) -> None:
    conditions = artifact.timings_of(file, artifact.read(file)).conditions
    assert list(conditions) == ["before", "after layers", "after updates", "after collectives"]
    assert all(set(each) <= {"clock_mhz", "load"} and each for each in conditions.values())


def test_what_layers_save_is_counted_once_and_moves_the_peak(taken: tuple[Workload, Measurement]) -> None:
    work, found = taken
    cluster = catalogue.cluster("cpu")
    simulated = project(work, cluster)
    made = anchored(found.asked, found.timings, simulated, cluster)
    assert set(made.parts) == {"embedding", "layer dense", "head"}
    for ours, theirs in (made.parts["layer dense"], made.parts["head"]):
        assert 0.5 * theirs < ours < 1.5 * theirs  # eager norms of a CPU keep copies in fp32
    double = replace(found.timings, saved={key: 2 * ours for key, (ours, _) in made.parts.items()})
    moved = anchored(found.asked, double, simulated, cluster)
    assert moved.peak == pytest.approx(moved.projected + simulated.memory.components["activations"])


# What a forward leaves for its backward is counted of whole layers and of those whose weights are shards, too.


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A group of two of which this process is the first; what it sends goes nowhere."""
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_half_the_heads_and_widths_leave_more_than_half_and_less_than_all(cpu: Device) -> None:
    import torch
    import torch.distributed as dist

    from projector.benchmark import source, step_laps
    from projector.benchmark.layers_parallel import Group, Ranks
    from projector.benchmark.layers_parts import LayerSetup
    from projector.benchmark.task import saved_bytes

    work = tiny(gpus=2, layers=1, tp=2, global_batch_size=1)
    execution = resolve(work, cpu.vendor, cpu.arch).execution

    def counted(tp: Group) -> float:
        layers = source.find("torch", LayerSetup(work, "cpu", Ranks(tp=tp), execution))
        parts = [("layer dense", False, layers.layer(work.model.layer_kinds[0]))]
        strip = step_laps.Strip(layers.embedding(), parts, layers.head())
        ids = torch.zeros(1, 32, dtype=torch.int64)
        return saved_bytes(strip, lambda: (ids, ids))["layer dense"]

    whole, split = counted(Group()), counted(Group(2, 0, dist.group.WORLD))
    assert 0.5 * whole < split < whole
