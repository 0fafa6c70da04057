"""Several ranks time together: processes started here, groups in place, split layers that compute what whole ones do."""

import importlib
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import command_line
import pytest
from asked import refusal
from benchmark_cases import SIZES, SMALL, TWO_RANKS, tiny

from projector.benchmark import measured, processes
from projector.benchmark.device import Device
from projector.benchmark.processes import JobFile
from projector.cli import run as projector
from projector.errors import InputError
from projector.hardware import catalogue
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.workload import Workload
from tests.workloads import written


def _routed() -> Model:
    model = zoo.load("deepseek_v2_lite", num_layers=2, **SIZES | {"num_attention_heads": 2})
    assert model.moe is not None
    return replace(model, moe=replace(model.moe, num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=32))


def _work(model: Model | None = None, framework: str = "pytorch", **recipe: Any) -> Workload:
    stated = {"global_batch_size": 4, "recompute_granularity": "none"}
    stated |= {"data_parallel_sharding": "no_shard", "overlap_grad_reduce": False}
    stated |= {"create_attention_mask_in_dataloader": False}  # sent to the other tensor-parallel ranks before any layer
    whole = tiny(gpus=2, framework=framework, **stated | recipe)
    return replace(whole, model=model or whole.model)


@pytest.fixture
def two(cpu: Device) -> Device:
    if processes.available(cpu) < 2:
        pytest.skip("needs two cores")
    return cpu


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda: _work(), id="dp", marks=pytest.mark.night),  # as ranks of srun do
        pytest.param(lambda: _work(data_parallel_sharding="optim_grads_params"), id="fsdp"),
        pytest.param(lambda: _work(data_parallel_sharding="optim"), id="zero1", marks=pytest.mark.night),
        pytest.param(lambda: _work(tp=2), id="tp dtensor", marks=pytest.mark.night),
        pytest.param(lambda: _work(framework="megatron-lm", tp=2, sequence_parallel=True), id="tp sequence"),
        pytest.param(lambda: _work(pp=2), id="pp", marks=pytest.mark.night),
        pytest.param(lambda: _work(_routed(), ep=2), id="ep"),
        pytest.param(lambda: _work(_routed(), framework="megatron-lm", tp=2, etp=2), id="etp", marks=pytest.mark.night),
    ],
)
def test_every_kind_of_parallelism_is_timed_in_place(two: Device, work: Callable[[], Workload]) -> None:
    whole, cluster = work(), catalogue.cluster("cpu")
    found = measured.measure(whole, cluster, two, layers="torch", budget=0.05)
    assert found.asked.ranks == 2
    assert (found.asked.workload.recipe.tp, found.asked.workload.recipe.ep) == (whole.recipe.tp, whole.recipe.ep)
    assert all(time.median > 0 for _, time in found.timings.collectives)
    made = measured.restore(found, whole, cluster)
    assert made.step_seconds > 0
    assert sum(made.breakdown.values()) == pytest.approx(made.step_seconds)
    assert made.breakdown["tp_s"] == made.breakdown["ep_s"] == 0.0  # inside the layers, nothing was priced on top


@pytest.mark.slow
def test_ranks_of_torchrun_agree(two: Device, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from projector.benchmark import measured\n"
        "from projector.benchmark.device import open_device\n"
        "from projector.cli.source import workload\n"
        "from projector.hardware import catalogue\n"
        "made = measured.project(workload(sys.argv[1]), catalogue.cluster('cpu'), open_device('cpu'), budget=0.05)\n"
        "import torch.distributed as dist\n"
        "Path(f'{sys.argv[2]}/{dist.get_rank()}').write_text(repr(made.step_seconds))\n"
        "dist.destroy_process_group()\n"
    )
    config = written(tmp_path / "config.yaml", SMALL, TWO_RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run([*command, str(config), str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = ((tmp_path / str(rank)).read_text() for rank in range(2))
    assert first == second
    assert math.isfinite(float(first))


@pytest.mark.slow
def test_a_rank_that_fails_is_told_with_what_it_wrote(two: Device) -> None:
    job = JobFile("projector.benchmark.processes:cores", None, "cpu", 1, 2, 60.0)  # takes no payload
    refusal(processes.launch, job, match="cores")


@pytest.mark.slow
def test_split_layers_compute_what_whole_ones_do(two: Device) -> None:
    job = JobFile("tests.projector.benchmark.parity:differences", None, "cpu", 1, 2, 120.0)
    try:
        found = processes.launch(job)
    except InputError as error:
        pytest.skip(str(error)) if "No module named 'tests" in str(error) else pytest.fail(str(error))
    assert set(found) == {"tensor parallel", "sequence parallel", "dtensor", "experts", "alibi", "alibi, dtensor"}
    assert all(value < 1e-4 for value in found.values()), found


def test_without_torch_the_extra_is_named_and_the_exit_code_is_2(small: Path, monkeypatch, capsys) -> None:
    plain: Callable[..., ModuleType] = importlib.import_module

    def without(name: str, package: str | None = None) -> ModuleType:
        if name.partition(".")[0] == "torch":
            raise ImportError(name)
        return plain(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    for command in ("benchmark", "performance"):
        flags = ["--config", str(small)]
        flags += ["--profiling-mode", "benchmark", "--save-benchmark", "x.json"] if command == "performance" else []
        assert "[benchmark]" in command_line.refused("projector", command, *flags)
    for command in (["probe"], ["record", "--dry-run"]):
        assert projector(command) == 2
        assert "[benchmark]" in capsys.readouterr().err
