"""What both peers cannot be told of a run, and what happens where their package is not there."""

import os
import subprocess
import sys
from pathlib import Path

import peer_fakes
import pytest

from harness import predictors
from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.predictors import peer
from projector.errors import InputError
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from tests.workloads import workload

ROOT = Path(__file__).resolve().parents[2]


def run_of(model: str = "gpt3_6.7b", gpu: str = "a100_sxm_80gb", gpus: int = 8, **recipe: object) -> MeasuredRun:
    stated = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048, **recipe}
    return MeasuredRun(
        id="r",
        source=Source(title="made up"),
        gpu=gpu,
        gpus=gpus,
        stack=Stack(framework="megatron-lm"),
        model=zoo.load(model),
        recipe=Recipe(**stated),  # type: ignore[arg-type]
        measured=Measured(step_seconds=5.0, tgs=64 * 2048 / 5.0 / gpus),
    )


def limits_of(run: MeasuredRun) -> list[str]:
    return list(peer.limits(peer.state(run)[0].workload))


def test_a_plain_megatron_run_is_within_the_limits() -> None:
    assert limits_of(run_of(tp=2, pp=2, sequence_parallel=True, recompute_granularity="full")) == []


@pytest.mark.parametrize(
    ("model", "recipe", "words"),
    [
        ("mixtral_8x7b", {}, "experts in its step time"),
        ("gpt3_6.7b", {"precision": "fp8"}, "fp8 training"),
        ("gpt3_6.7b", {"cp": 2}, "context parallelism"),
        ("gpt3_6.7b", {"lora": LoRA(dim=16)}, "low-rank adapters"),
        ("gpt3_6.7b", {"cpu_offloading_num_layers": 4}, "activation offload of single layers"),
        ("gpt3_6.7b", {"pp": 2, "decoder_first_pipeline_num_layers": 14}, "uneven pipeline stages"),
        ("gpt3_6.7b", {"pp": 2, "pipeline_schedule": "zbv"}, "zbv schedule"),
        (
            "gpt3_6.7b",
            {"data_parallel_sharding": "optim_grads_params", "data_parallel_shard_size": 4},
            "hybrid sharding",
        ),
        ("gpt3_6.7b", {"recompute_granularity": "selective", "recompute_modules": ("mlp",)}, "recompute of mlp"),
        (
            "gpt3_6.7b",
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3},
            "recompute of some layers only",
        ),
    ],
)
def test_every_limit_has_its_words(model: str, recipe: dict[str, object], words: str) -> None:
    assert words in limits_of(run_of(model, **recipe))


def test_multi_head_latent_attention_is_refused() -> None:
    assert "multi-head latent attention" in limits_of(run_of("deepseek_v2_lite"))


@pytest.mark.parametrize(
    ("granularity", "modules", "mode"),
    [(None, None, "none"), ("none", None, "none"), ("full", None, "full"), ("selective", ("core_attn",), "attention")],
)
def test_recompute_that_both_know(granularity: str | None, modules: tuple[str, ...] | None, mode: str) -> None:
    stated = workload("gpt3_6.7b", recompute_granularity=granularity, recompute_modules=modules)
    assert peer.recompute_mode(stated) == mode


def test_absent_packages_are_named_all_at_once(monkeypatch) -> None:
    monkeypatch.setattr(peer, "located", lambda *_: None)
    with peer_fakes.importable(monkeypatch, "calculon", None), pytest.raises(InputError) as caught:
        predictors.load(["llm-analysis", "calculon", "simulat"])
    said = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "projector-harness[peers]" in said
    assert "github.com/calculon-ai/calculon on PYTHONPATH" in said
    assert "nearest: simulate" in said


def test_an_unrelated_package_of_the_same_name_is_not_run(monkeypatch, tmp_path) -> None:
    peer_fakes.write(tmp_path, {"calculon/__init__.py": "raise SystemExit('this code must not run')"})
    with (
        peer_fakes.importable(monkeypatch, "calculon", tmp_path),
        pytest.raises(InputError, match="the package named calculon there is another program"),
    ):
        predictors.load(["calculon"])


def test_a_calculon_with_other_inputs_is_refused(monkeypatch, tmp_path) -> None:
    peer_fakes.calculon_checkout(tmp_path)
    path = tmp_path / "calculon" / "llm" / "llm.py"
    path.write_text(path.read_text().replace('"optimizer_offload", "training")', '"optimizer_offload", "expert_par")'))
    with (
        peer_fakes.importable(monkeypatch, "calculon", tmp_path),
        pytest.raises(InputError, match="does not differ in expert_par, training"),
    ):
        predictors.load(["calculon"])


def test_the_command_line_says_it_once_and_exits_with_two(project_folder: Path) -> None:
    peer_fakes.write(project_folder / "other", {"calculon/__init__.py": "raise SystemExit('this code must not run')"})
    path = os.pathsep.join([str(project_folder / "other"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", "suites/tiny.yaml", "--with", "calculon"], cwd=project_folder,
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("--with: found 'calculon'") == 1
    assert "Traceback" not in done.stderr
    assert not (project_folder / "out").exists()
