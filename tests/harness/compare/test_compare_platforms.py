"""Benchmark files of TPrimat in every shape: read, drawn over time, written and read again; strategies chosen by name."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import command_line
import pytest
from asked import put, refusal, says
from tabled import tabled
from tprimat import STRATEGIES, document, folders

from harness.__main__ import main
from harness.compare import load
from harness.compare.side import Side
from harness.evidence.ingest.context import Context
from harness.evidence.runs_of import runs_of
from harness.measure import spec

TIMES = [31.0, 6.2, 6.05, 6.02, 6.0, 6.01, 5.99, 6.0, 6.02, 5.98, 6.0, 6.01, 5.99, 6.0, 6.0, 6.01]
CURVE = [1e-5 * (i + 1) for i in range(16)]
USED = [100.0 + i for i in range(16)]
GPU = {"device_count": 8, "device_name": "AMD Instinct MI300X", "software_stack": "rocm"}
CONFIG = {"global_batch_size": 128, "micro_batch_size": 2, "sequence_length": 2048, "num_gpus": 8}
METRICS = {"avg_step_time_seconds": 6.0}
SIZES = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "strategy_name": "balanced"}

#: Name of the file, and what differs from the plainest one.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "trainer": ("benchmark_rocm_llama", {}),
    "later trainer": ("train_amd_prim_qwen", {"raw_step_times": None, "step_times": TIMES, "learning_rates": CURVE}),
    "memory by step": ("benchmark_rocm_qwen", {"raw_memory_values": USED, "raw_learning_rates": CURVE}),
    "memory by GPU": ("benchmark_rocm_llama", {"raw_memory_per_gpu": [[each - 5, each] for each in USED]}),
    "short names": (
        "benchmark_rocm_llama",
        {"parallelism_config": None, "parallel_config": {"tensor_parallel": 2, "pipeline_parallel": 1}},
    ),
    "from a log": ("benchmark_rocm_llama", {"parallelism_config": None, "source": "primus_log_extraction"}),
    "model inside": ("results", {"model_name": "llama"}),
}
PLAINEST = {
    "platform": "amd", "gpu_info": GPU, "training_config": CONFIG, "performance_metrics": METRICS, "raw_step_times": TIMES,
    "parallelism_config": SIZES,
}  # fmt: skip


def written(folder: Path, shape: str) -> Path:
    name, differs = SHAPES[shape]
    path = folder / shape.replace(" ", "-") / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {key: value for key, value in {**PLAINEST, **differs}.items() if value is not None}
    return put(path, json.dumps(made))


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> dict[str, Side]:
    folder = tmp_path_factory.mktemp("shapes")
    paths = [written(folder, shape) for shape in SHAPES]
    return dict(zip(SHAPES, load.sides([str(path) for path in paths], lambda: (), Context()), strict=True))


def test_every_shape_is_read(sides: dict[str, Side]) -> None:
    for shape, side in sides.items():
        assert side.step_seconds == pytest.approx(6.0, rel=0.01), shape
        assert (side.gpu, side.gpus) == ("mi300x", 8), shape
        model = "qwen2.5_7b" if "qwen" in SHAPES[shape][0] else "llama3.1_8b"
        assert side.differs["model"] == model, shape
        if shape != "from a log":
            assert side.differs["tp"] == "2", shape
            assert 100 < side.tflops < 400, shape
    for shape in ("trainer", "later trainer", "model inside"):
        assert sides[shape].differs["strategy"] == "balanced"
    for shape in ("memory by step", "memory by GPU"):
        side = sides[shape]
        assert side.memory == {"allocated": pytest.approx(115e9 / 2**30)}
        assert side.series.curves["memory"][0] == pytest.approx(100e9 / 2**30)
    assert list(sides["later trainer"].series.curves["learning rate"]) == pytest.approx(CURVE)


def test_folders_are_compared_drawn_over_time_and_written(tmp_path) -> None:
    folders = [str(written(tmp_path, shape).parent) for shape in ("later trainer", "memory by step")]
    out = tmp_path / "out"
    words = ["compare", "--results-dir", *folders, "--over-time", "--benchmark-files", "--out", str(out), "--json"]
    first = json.loads(command_line.told("harness", *words))
    text = " ".join(t.strip() for t in ElementTree.parse(out / "compare.svg").getroot().itertext())
    for title in ("TFLOP/s/GPU, tokens/s/GPU", "peak memory", "loss", "learning rate", "memory of a step", "step time"):
        assert title in text
    names = {path.name for path in out.glob("benchmark_*.json")}
    assert names == {"benchmark_train-amd-prim-qwen.json", "benchmark_rocm-qwen.json"}
    again = command_line.document("harness", "compare", "--results-dir", out)
    figures = [[row["step, s"] for row in found["tables"][0]["rows"]] for found in (first, again)]
    assert sorted(figures[0]) == sorted(figures[1])
    back = load.sides([str(path) for path in sorted(out.glob("*.json"))], lambda: (), Context())
    assert {side.differs["strategy"] for side in back} == {"balanced"}
    assert all(side.series is not None and "learning rate" in side.series.curves for side in back)


def test_strategies_are_chosen_by_name(tmp_path) -> None:
    words = [
        "run", "strategies", "--strategy", "balanced", "truly-identical", "--jobs", "1", "--out", str(tmp_path),
        "--json",
    ]  # fmt: skip
    text = command_line.told("harness", *words)
    says(text, "llama-mi300x-balanced", "qwen-h100-truly-identical")
    assert "minimal-communication" not in text
    assert "balanced" in command_line.refused("harness", "run", "strategies", "--strategy", "ballanced")


def test_an_empty_folder_says_so(tmp_path) -> None:
    assert "benchmark_*.json" in command_line.refused("harness", "compare", "--results-dir", tmp_path)


# TPrimat's own output: five folders with files of the same names, no micro-batch size in them, and one that is broken.


@pytest.fixture
def folder(tmp_path) -> Path:
    return folders(tmp_path)


def test_the_micro_batch_follows_from_what_it_writes(folder: Path) -> None:
    (run,) = runs_of(folder / "output-04" / "benchmark_cuda_llama.json")
    assert run.recipe.micro_batch_size == 2  # 128 / (4 · 16)
    file = put(folder / "odd.json", document("balanced", 2, 1, global_batch_size=72))
    refusal(runs_of, file, match="micro_batch_size", kind=Exception)


@pytest.mark.parametrize(("stack", "platform", "trainer"), tabled("names", "trainers_of_tprimat"))
def test_its_documents_are_of_the_trainer_of_their_platform(
    tmp_path, stack: str | None, platform: str | None, trainer: str
) -> None:
    file = tmp_path / "benchmark_x_llama.json"
    said = json.loads(document("balanced", 2, 1))
    said["gpu_info"]["software_stack"], said["platform"] = stack, platform
    (run,) = runs_of(put(file, json.dumps(said)))
    assert run.stack.framework == trainer


def test_five_folders_are_five_runs_and_a_broken_file_hides_none(folder: Path, capsys) -> None:
    named = [str(path) for path in sorted(folder.iterdir())]
    whole = command_line.told("harness", "peaks", *named, "--json")
    assert all(name in whole for name, _, _ in STRATEGIES)
    assert command_line.told("harness", "peaks", folder, "--json") == whole
    bad = put(folder / "output-02" / "benchmark_cuda_bad.json", '{"performance_metrics": {}, "training_config": {}}')
    assert main(["peaks", *named, "--json"]) == 0
    left = capsys.readouterr()
    assert left.out == whole
    assert left.err.startswith(f"not read: {bad}: ")
    assert main(["peaks", str(bad)]) == 2
    assert all(f"output-0{number}/benchmark_cuda_llama" in whole for number in range(5))
    bad.write_text("{torn")
    capsys.readouterr()
    assert main(["peaks", *named, "--json"]) == 0
    assert capsys.readouterr().err.startswith(f"not read: {bad}: ")
    assert main(["compare", *named[1:3], "--json"]) == 0
    left = capsys.readouterr()
    assert left.err.startswith(f"not read: {bad}: ")
    assert "output-01/benchmark_cuda_llama is 10.0 % faster than output-02/benchmark_cuda_llama" in left.out


def test_strategies_of_a_training() -> None:
    example = Path(__file__).resolve().parents[3] / "suites/small_strategies.yaml"
    plan = spec.by_strategy(spec.read(example), ["all"], "e.yaml")
    assert [job.id for job in plan.jobs][:5] == [f"llama-{name}" for name in spec.STRATEGIES]
    sizes = {(job.strategy, job.workload.recipe.tp, job.workload.recipe.pp) for job in plan.jobs}
    assert {("memory_optimized", 1, 2), ("balanced", 2, 1), ("minimal_communication", 1, 1)} <= sizes
    assert ("balanced", 1, 2) in sizes  # its Qwen on two processes
    refusal(spec.by_strategy, plan, ["balancd"], "e.yaml", match="nearest: balanced", kind=Exception)
