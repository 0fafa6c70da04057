"""The Calculon adapter on a stand-in with the same interface (Calculon is not on the package index)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import peer_fakes
import pytest
from test_peers_refusals import run_of

from harness import predictors
from harness.contracts.runs import BREAKDOWN
from harness.evaluation import evaluate
from harness.evaluation.evaluate import Selected
from harness.predictors import Predictor, calculon, calculon_inputs, peer
from projector.hardware import catalogue


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
    published = {
        "num_procs": 280, "tensor_par": 8, "pipeline_par": 35, "data_par": 1, "tensor_par_net": 0,
        "pipeline_par_net": 1, "data_par_net": 0, "batch_size": 280, "microbatch_size": 1, "datatype": "float16",
        "fused_activation": False, "attention_type": "multihead", "activation_recompute": "attn_only",
        "pipeline_interleaving": 3,
        "optimizer_sharding": False, "tensor_par_comm_type": "rs_ag", "seq_par_ag_redo": True,
        "data_par_overlap": False, "weight_offload": False, "activations_offload": False, "optimizer_offload": False,
        "training": True,
    }  # fmt: skip
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


@pytest.mark.parametrize(
    ("model", "recipe", "words"),
    [
        ("llama3_8b", {}, "calculon has no grouped-query attention"),
        ("gpt3_6.7b", {"data_parallel_sharding": "optim_grads_params"}, "calculon has no optim_grads_params sharding"),
        ("gpt3_6.7b", {"tp": 2, "pp": 3}, ""),
    ],
)
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


def test_it_stands_beside_ours_on_the_same_rows(tool: Predictor) -> None:
    runs = [replace(run_of(tp=t), id=f"tp{t}") for t in (2, 4)] + [replace(run_of("llama3_8b"), id="grouped")]
    tools = (*predictors.load(["simulate"]), tool)
    made = evaluate.evaluate([Selected("s", r) for r in runs], tools)
    held = {(r.predictor, r.run_id): r for r in made.rows if r.fit == "heldout"}
    assert [held["calculon", i].error is not None for i in ("tp2", "tp4", "grouped")] == [True, True, False]
    assert all(held["simulate", i].error is not None for i in ("tp2", "tp4", "grouped"))
    row = held["calculon", "tp2"]
    assert sum(row.breakdown.values()) == pytest.approx(row.projected_step_seconds)
