"""However a training is split over two processes, it computes what one process computes. Slow: real processes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from measure_jobs import DEEPSEEK, GPT, LATENT, LLAMA, QWEN, job

from harness.measure import closed, spec
from harness.measure.closed import Trained

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

MODELS = {"llama": LLAMA, "gpt": GPT, "qwen": QWEN, "deepseek": DEEPSEEK, "latent": LATENT}
SPLITS: dict[str, dict] = {
    "dp2": {},
    "fsdp2": {"data_parallel_sharding": "optim_grads_params"},
    "tp2": {"tp": 2},
    "pp2-1f1b": {"pp": 2},
    "pp2-gpipe": {"pp": 2, "pipeline_schedule": "gpipe"},
    "pp2-interleaved": {"pp": 2, "vpp": 2},
    "pp2-bfs": {"pp": 2, "vpp": 2, "pipeline_schedule": "looped-bfs"},
    "ep2": {"ep": 2},
}


def possible(model: str, split: str) -> bool:
    experts = "moe" in MODELS[model]
    return experts if split == "ep2" else not (split == "tp2" and experts)


CASES = [(model, split) for model in MODELS for split in SPLITS if possible(model, split)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Every model on one process and under every split, in two starts of processes."""
    jobs = [job(f"{name}-one", model, 1, 6) for name, model in MODELS.items()]
    jobs += [job(f"{model}-{split}", MODELS[model], 2, 6, **SPLITS[split]) for model, split in CASES]
    plan, problems = spec.parse({"device": "cpu", "threads": 1, "runs": jobs}, "f")
    assert not problems
    done = closed.train(plan, tmp_path_factory.mktemp("trained"), "f", lambda _: None)
    return {each.run.id: each for each in done}


@pytest.mark.parametrize("model", MODELS)
def test_loss_falls(trained: dict[str, Trained], model: str) -> None:
    first, *_, last = trained[f"{model}-one"].losses
    assert first == pytest.approx(np.log(512), abs=0.15)  # an untrained model knows nothing
    assert last < first - 0.05


@pytest.mark.parametrize(("model", "split"), CASES)
def test_a_split_training_computes_the_same(trained: dict[str, Trained], model: str, split: str) -> None:
    one, two = trained[f"{model}-one"], trained[f"{model}-{split}"]
    assert two.losses == pytest.approx(one.losses, rel=2e-5)
    assert norms(two.path) == pytest.approx(norms(one.path), rel=2e-3)
    assert two.run.gpus == 2


def norms(path: Path) -> list[float]:
    return [
        float(line.partition("grad norm:")[2].split("|")[0])
        for line in path.read_text().splitlines()
        if "grad norm:" in line
    ]


@pytest.mark.parametrize("even", [False, True])
def test_routing_by_the_router_and_in_turns(tmp_path: Path, even: bool) -> None:
    jobs = [
        job("one", DEEPSEEK, 1, 4, moe_router_force_load_balancing=even),
        job("two", DEEPSEEK, 2, 4, moe_router_force_load_balancing=even, ep=2),
    ]
    plan, _ = spec.parse({"device": "cpu", "threads": 1, "runs": jobs}, "f")
    one, two = closed.train(plan, tmp_path, "f", lambda _: None)
    assert two.losses == pytest.approx(one.losses, rel=2e-5)


def test_narrow_types_stay_near_fp32(tmp_path: Path) -> None:
    jobs = [
        job(f"{name}-{precision}", model, 1, 5, precision=precision)
        for name, model in MODELS.items()
        for precision in ("fp32", "bf16", "fp8")
    ] + [
        job(
            "llama-fsdp2",
            LLAMA,
            2,
            5,
            precision="fp8",
            fp8_recipe="rowwise",
            data_parallel_sharding="optim_grads_params",
        )
    ]
    plan, _ = spec.parse({"device": "cpu", "threads": 1, "runs": jobs}, "f")
    done = {each.run.id: each for each in closed.train(plan, tmp_path, "f", lambda _: None)}
    for name in MODELS:
        assert done[f"{name}-bf16"].losses == pytest.approx(done[f"{name}-fp32"].losses, rel=5e-3)
        assert done[f"{name}-fp8"].losses == pytest.approx(done[f"{name}-fp32"].losses, rel=2e-2)
        assert done[f"{name}-fp8"].losses != done[f"{name}-bf16"].losses
        assert done[f"{name}-fp8"].run.recipe.precision == "fp8"
    assert done["llama-fsdp2"].losses == pytest.approx(done["llama-fp32"].losses, rel=2e-2)


def test_the_log_has_the_time_that_was_taken(tmp_path: Path) -> None:
    """The logged steps lie inside the training, none twice."""
    import time

    plan, _ = spec.parse(
        {"device": "cpu", "threads": 1, "runs": [job("long", LLAMA, 1, 60, global_batch_size=16)]}, "f"
    )
    began = time.perf_counter()
    (one,) = closed.train(plan, tmp_path, "f", lambda _: None)
    wall = time.perf_counter() - began
    found = re.findall(r"per iteration \(ms\): ([0-9.]+)|of ([0-9.]+) ms without a core", one.path.read_text())
    total = sum(float(counted or disturbed) for counted, disturbed in found) / 1e3
    assert len(found) == 60
    assert 0 < total < wall
