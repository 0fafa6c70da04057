"""What both peers cannot be told of a run, and what happens where their package is not there."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import peer_fakes
import pytest
from asked import ROOT, says
from tabled import tabled

from harness import predictors
from harness.contracts.runs import BREAKDOWN, Measured, MeasuredRun, Source, Stack
from harness.predictors import Predictor, calculon, calculon_inputs, peer
from projector.errors import InputError
from projector.hardware import catalogue
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from tests.workloads import workload


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
        *tabled("refusals", "limits_of_peers"),
        ("gpt3_6.7b", {"lora": LoRA(dim=16)}, "low-rank adapters"),
        ("deepseek_v2_lite", {}, "multi-head latent attention"),
    ],
)
def test_every_limit_has_its_words(model: str, recipe: dict[str, object], words: str) -> None:
    assert words in limits_of(run_of(model, **recipe))


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
    says(said, "projector-harness[peers]", "github.com/calculon-ai/calculon on PYTHONPATH", "nearest: simulate")


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
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("--with: found 'calculon'") == 1
    assert "Traceback" not in done.stderr
    assert not (project_folder / "out").exists()


# The llm-analysis adapter, on the package where it is installed and on a stand-in with the same interface.


@pytest.fixture(params=["stand-in", "package"])
def llm(request, monkeypatch, tmp_path) -> Iterator[Predictor]:
    fake = request.param == "stand-in"
    if not fake and importlib.util.find_spec("llm_analysis") is None:
        pytest.skip("llm-analysis is not installed (extra: peers)")
    folder = peer_fakes.llm_analysis_package(tmp_path) if fake else None
    with peer_fakes.importable(monkeypatch, "llm_analysis", folder):
        (made,) = predictors.load(["llm-analysis"])
        yield made


def forward_flops(run: MeasuredRun) -> float:
    """FLOP of one micro-batch by the formula of release 0.2.2: every MLP is two linears of 4 · hidden."""
    work = run.workload
    m, b, s = work.model, work.recipe.micro_batch_size, work.recipe.seq_length
    groups = m.num_attention_heads / m.num_query_groups
    h = m.hidden_size
    layer = 4 * b * s * h**2 + 4 * b * s * h**2 / groups + 4 * b * s**2 * h + 16 * b * s * h**2
    return layer * m.num_layers + 2 * b * s * h * work.padded_vocab_size


@pytest.mark.parametrize(
    ("recipe", "passes"),
    [
        ({"recompute_granularity": "none"}, 3.0),
        ({"recompute_granularity": "full", "tp": 2, "pp": 2}, 4.0),
        ({"recompute_granularity": "none", "micro_batch_size": 4, "tp": 4, "sequence_parallel": True}, 3.0),
    ],
)
def test_step_time_is_its_closed_form(llm: Predictor, recipe: dict[str, object], passes: float) -> None:
    run = run_of(**recipe)
    made = llm.predict(run)
    r = run.workload.recipe
    expected = passes * forward_flops(run) * run.workload.num_microbatches / (r.tp * r.pp * 312e12)
    assert made.step_seconds == pytest.approx(expected, rel=1e-9), made.reason
    assert made.breakdown == {"compute_s": made.step_seconds}
    assert made.memory_gib > 0
    assert "flops_efficiency=1 (its default)" in made.assumed
    assert made.seconds_to_project > 0


def test_a_gpu_that_it_has_no_file_of_comes_from_the_data_sheet(llm: Predictor) -> None:
    known, other = run_of(), run_of(gpu="mi300x")
    ours, its = llm.predict(other), llm.predict(known)
    assert its.step_seconds / ours.step_seconds == pytest.approx(1307.4e12 / 312e12, rel=0.01)
    assert any("mi300x from the data sheet" in a for a in ours.assumed)
    assert not any("data sheet" in a for a in its.assumed)


@pytest.mark.parametrize(("recipe", "words"), tabled("refusals", "llm_analysis"))
def test_refusals_name_every_reason(llm: Predictor, recipe: dict[str, object], words: str) -> None:
    made = llm.predict(run_of(**recipe))
    assert (made.status, made.reason, made.step_seconds) == ("unsupported", words, None)


def test_fully_sharded_data_parallelism_is_its_zero_stage_3(llm: Predictor) -> None:
    whole = llm.predict(run_of(data_parallel_sharding="no_shard"))
    sharded = llm.predict(run_of(data_parallel_sharding="optim_grads_params"))
    assert whole.step_seconds == sharded.step_seconds
    assert (sharded.memory_gib or 0) < (whole.memory_gib or 0)


def test_a_run_that_does_not_fit_keeps_its_time(llm: Predictor) -> None:
    made = llm.predict(run_of("gpt3_175b", data_parallel_sharding="no_shard"))
    assert made.status == "out-of-memory"
    assert made.step_seconds is not None
    assert "GiB of 80 GiB" in made.reason


# The Calculon adapter on a stand-in with the same interface (Calculon is not on the package index).


@pytest.fixture
def tool(monkeypatch, tmp_path) -> Iterator[Predictor]:
    with peer_fakes.importable(monkeypatch, "calculon", peer_fakes.calculon_checkout(tmp_path)):
        (made,) = predictors.load(["calculon"])
        yield made


def execution(gpus: int = 8, per_node: int = 8, model: str = "gpt3_6.7b", **recipe: object) -> dict[str, Any]:
    return calculon_inputs.execution(peer.state(run_of(model, gpus=gpus, **recipe))[0].workload, per_node)


def test_the_step_is_its_total_time_and_the_parts_sum_to_it(tool: Predictor) -> None:
    made = tool.predict(run_of(tp=2, pp=2, recompute_granularity="full"))
    assert made.status == "ok", made.reason
    assert made.step_seconds == pytest.approx(sum(made.breakdown.values()))
    assert set(made.breakdown) <= set(BREAKDOWN)
    assert made.breakdown["bubble_s"] > 0
    assert any("unfused" in a for a in made.assumed)


def test_execution_of_the_published_validation() -> None:
    """Its own file validation/seqsel/tab5/turing-530B_seqsel.json, from our recipe of the same run."""
    made = execution(
        gpus=280, model="megatron_530b", tp=8, pp=35, vpp=3, sequence_parallel=True, recompute_granularity="selective",
        global_batch_size=280, bias_activation_fusion=False, data_parallel_sharding="no_shard",
    )  # fmt: skip
    published = tabled("published", "calculon_execution")
    assert {key: made[key] for key in published} == published
    assert set(made) == calculon_inputs.EXECUTION_FIELDS


def test_groups_sit_on_the_tier_that_holds_them() -> None:
    tiers = ("tensor_par_net", "data_par_net", "pipeline_par_net")
    assert [execution(8, tp=2, pp=2)[t] for t in tiers] == [0, 0, 0]
    assert [execution(32, tp=4, pp=4)[t] for t in tiers] == [0, 0, 1]
    assert [execution(32, tp=8, pp=1)[t] for t in tiers] == [0, 1, 1]
    assert [execution(32, per_node=4, tp=8, pp=4)[t] for t in tiers] == [1, 1, 1]


def test_switches() -> None:
    parallel = execution(tp=2, sequence_parallel=True, tp_comm_overlap=True, data_parallel_sharding="optim")
    assert (parallel["tensor_par_comm_type"], parallel["tensor_par_overlap"]) == ("rs_ag", "ring")
    assert parallel["optimizer_sharding"]
    alone = execution(1, global_batch_size=8, tp_comm_overlap=True, data_parallel_sharding="optim")
    assert not any((alone["optimizer_sharding"], alone["data_par_overlap"], alone["seq_par_ag_redo"]))
    assert (alone["tensor_par_comm_type"], alone["tensor_par_overlap"]) == ("ar", "none")
    again = execution(tp=2, sequence_parallel=True, recompute_granularity="full")
    assert not again["seq_par_ag_redo"]


def test_a_gated_unit_becomes_a_plain_mlp_of_equal_weights() -> None:
    gated = peer.state(run_of("llama2_7b"))[0].workload
    assert calculon_inputs.application(gated)["feedforward"] * 2 == gated.model.ffn_hidden_size * 3
    assert any("feedforward" in said for said in calculon_inputs.simplified(gated))
    plain = peer.state(run_of())[0].workload
    assert calculon_inputs.application(plain)["feedforward"] == plain.model.ffn_hidden_size


@pytest.mark.parametrize(("model", "recipe", "words"), tabled("refusals", "calculon"))
def test_refusals(tool: Predictor, model: str, recipe: dict[str, object], words: str) -> None:
    made = tool.predict(run_of(model, **recipe))
    assert made.step_seconds is None
    assert made.status in ("unsupported", "invalid")
    assert words in made.reason


def test_what_it_rejects_itself_is_said_in_its_words(tool: Predictor) -> None:
    short = tool.predict(run_of("gpt3_175b"))
    assert (short.status, short.step_seconds) == ("out-of-memory", None)
    assert short.reason.startswith("calculon: Mem tier1 needs")
    lonely = tool.predict(run_of(gpus=6, tp=2, global_batch_size=63))
    assert (lonely.status, lonely.reason) == ("unsupported", "refused by calculon: Network tier0 isn't fully used")


def its(name: str) -> Mapping[str, Any]:
    return calculon.system_file(name)


def test_its_own_system_stands_as_it_is(tool: Predictor) -> None:
    made, said = calculon_inputs.system(catalogue.cluster("h100_sxm"), its)
    assert made == its("h100_80g_nvl8")
    assert said == ()


def test_a_system_from_the_data_sheet_keeps_every_efficiency(tool: Predictor) -> None:
    cluster = catalogue.cluster("mi300x")
    made, said = calculon_inputs.system(cluster, its)
    base = its("h100_80g_nvl8")
    assert made["matrix"]["float16"]["tflops"] == pytest.approx(cluster.gpu.peak["bf16"] / 1e12)
    assert made["matrix"]["float16"]["gflops_efficiency"] == base["matrix"]["float16"]["gflops_efficiency"]
    assert made["mem1"]["GiB"] == pytest.approx(cluster.gpu.memory_bytes / 2**30)
    assert made["mem1"]["MB_efficiency"] == base["mem1"]["MB_efficiency"]
    assert made["networks"][0]["bandwidth"] == pytest.approx(cluster.intra.bandwidth / 1e9, rel=0.01)
    assert made["networks"][0]["efficiency"] == base["networks"][0]["efficiency"]
    assert any("mi300x from the data sheet" in s for s in said)
    assert base == its("h100_80g_nvl8"), "its file must not change"
    ampere, _ = calculon_inputs.system(catalogue.cluster("a100_sxm_40gb"), its)
    assert ampere["vector"]["float16"]["tflops"] == pytest.approx(78)
