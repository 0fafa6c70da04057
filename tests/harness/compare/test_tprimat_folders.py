"""TPrimat's own output: five folders with files of the same names, no micro-batch size in them, and one that is broken."""

import json
from pathlib import Path

import pytest
from tprimat import STRATEGIES, document, folders

from harness.cli import main
from harness.evidence.runs_of import runs_of
from harness.measure import spec


@pytest.fixture
def folder(tmp_path) -> Path:
    return folders(tmp_path)


def test_the_micro_batch_follows_from_what_it_writes(folder: Path) -> None:
    (run,) = runs_of(folder / "output-04" / "benchmark_cuda_llama.json")
    assert run.recipe.micro_batch_size == 2  # 128 / (4 · 16)
    file = folder / "odd.json"
    file.write_text(document("balanced", 2, 1, global_batch_size=72))
    with pytest.raises(Exception, match="micro_batch_size"):
        runs_of(file)


@pytest.mark.parametrize(
    ("stack", "platform", "trainer"),
    [
        ("cuda", None, "nemo"),
        ("nemo", "amd", "nemo"),
        ("rocm", None, "primus"),
        (None, "nvd", "nemo"),
        (None, "amd", "primus"),
    ],
)
def test_its_documents_are_of_the_trainer_of_their_platform(
    tmp_path, stack: str | None, platform: str | None, trainer: str
) -> None:
    file = tmp_path / "benchmark_x_llama.json"
    said = json.loads(document("balanced", 2, 1))
    said["gpu_info"]["software_stack"], said["platform"] = stack, platform
    file.write_text(json.dumps(said))
    (run,) = runs_of(file)
    assert run.stack.framework == trainer


def test_five_folders_are_five_runs_and_a_broken_file_hides_none(folder: Path, capsys) -> None:
    named = [str(path) for path in sorted(folder.iterdir())]
    assert main(["peaks", *named, "--json"]) == 0
    whole = capsys.readouterr().out
    assert all(name in whole for name, _, _ in STRATEGIES)
    assert main(["peaks", str(folder), "--json"]) == 0
    assert capsys.readouterr().out == whole
    bad = folder / "output-02" / "benchmark_cuda_bad.json"
    bad.write_text('{"performance_metrics": {}, "training_config": {}}')
    assert main(["peaks", *named, "--json"]) == 0
    left = capsys.readouterr()
    assert left.out == whole
    assert left.err.startswith(f"not read: {bad}: ")
    assert main(["peaks", str(bad)]) == 2


def test_strategies_of_a_training(tmp_path) -> None:
    example = Path(__file__).resolve().parents[3] / "examples/measure/strategies.yaml"
    plan = spec.by_strategy(spec.read(example), ["all"], "e.yaml")
    assert [job.id for job in plan.jobs][:5] == [f"llama-{name}" for name in spec.STRATEGIES]
    sizes = {(job.strategy, job.workload.recipe.tp, job.workload.recipe.pp) for job in plan.jobs}
    assert {("memory_optimized", 1, 2), ("balanced", 2, 1), ("minimal_communication", 1, 1)} <= sizes
    assert ("balanced", 1, 2) in sizes  # its Qwen on two processes
    with pytest.raises(Exception, match="nearest: balanced"):
        spec.by_strategy(plan, ["balancd"], "e.yaml")
