"""Every collective of a step: its parts add up, and to the parts of the step."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.cli import communication as view
from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.projection import Projection, project
from projector.workload import zoo
from projector.workload.lora import LoRA
from tests.workloads import workload

H100 = catalogue.default_cluster("h100_sxm")
PARTS = ("tp_s", "ep_s", "cp_s", "pp_s", "dp_s")


def run(model: str = "llama3_8b", gpus: int = 64, framework: str = "megatron-lm", **stated: Any) -> Projection:
    base = {"global_batch_size": 256, "data_parallel_sharding": "optim"}
    return project(workload(model, gpus, framework, **base | stated), H100, communication=True)


def sound(made: Projection) -> None:
    for part in PARTS:
        exposed = sum(row.exposed for row in made.communication if row.part == part)
        assert exposed == pytest.approx(made.breakdown[part], abs=1e-9 * made.step_seconds)
    for row in made.communication:
        assert row.seconds > 0
        assert -1e-12 <= row.hidden <= row.seconds * (1 + 1e-12)
        assert bool(row.algorithm) == (row.count > 0)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama3_8b", {"tp": 4, "sequence_parallel": True, "tp_comm_overlap": True}),
    ("llama3_8b", {"tp": 2, "pp": 4, "vpp": 2, "overlap_p2p_comm": True, "overlap_grad_reduce": True}),
    ("llama3_8b", {"cp": 4, "cp_comm_type": "p2p"}),
    ("llama3_8b", {"data_parallel_sharding": "optim_grads_params"}),
    ("llama3_8b", {"num_distributed_optimizer_instances": 2, "overlap_param_gather": True}),
    ("qwen3_30b_a3b", {"ep": 8, "moe_token_dispatcher_type": "flex", "pp": 4}),
    ("qwen3_30b_a3b", {"ep": 8, "moe_token_dispatcher_type": "alltoall", "overlap_moe_expert_parallel_comm": True}),
    (
        "qwen3_30b_a3b",
        {"ep": 8, "pp": 4, "vpp": 2, "moe_token_dispatcher_type": "alltoall", "overlap_moe_expert_parallel_comm": True},
    ),
]


@pytest.mark.parametrize(("model", "stated"), CASES)
def test_rows_add_up_to_the_step(model: str, stated: dict[str, Any]) -> None:
    made = run(model, **stated)
    sound(made)
    assert made.communication


@given(
    tp=st.sampled_from((1, 2, 4)), pp=st.sampled_from((1, 2, 4)), cp=st.sampled_from((1, 2)),
    vpp=st.sampled_from((1, 2)), sharding=st.sampled_from(("no_shard", "optim", "optim_grads", "optim_grads_params")),
    overlap=st.booleans(), framework=st.sampled_from(("megatron-lm", "torchtitan", "maxtext")),
)  # fmt: skip
def test_rows_add_up_whatever_runs(
    tp: int, pp: int, cp: int, vpp: int, sharding: str, overlap: bool, framework: str
) -> None:
    stated: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "data_parallel_sharding": sharding}
    try:
        made = run(framework=framework, overlap_grad_reduce=overlap, overlap_param_gather=overlap, **stated)
    except (InputError, Unsupported):
        return
    sound(made)


def test_bytes_and_counts_are_those_of_the_layers() -> None:
    """Eight billion parameters in bf16 gathered over 64 ranks; two reductions of the hidden state a layer and pass."""
    made = run(data_parallel_sharding="optim", tp=4, sequence_parallel=False, pp=1)
    rows = {row.name: row for row in made.communication}
    assert rows["param_all_gather"].bytes == pytest.approx(2 * 8.03e9 / 4, rel=0.02)
    assert rows["fc2.ar"].count == 32 * made.resolved.workload.num_microbatches
    assert rows["fc2.ar"].bytes == 4096 * 4096 * 2


def test_without_peers_there_is_nothing() -> None:
    made = run(gpus=1, global_batch_size=4, data_parallel_sharding="no_shard")
    assert made.communication == ()


def test_the_parts_of_the_table_make_its_total() -> None:
    rows = run("qwen3_30b_a3b", ep=8, pp=4, moe_token_dispatcher_type="alltoall").communication
    table = view.table(rows)
    at = [column.title for column in table.columns].index("ms")
    assert sum(float(row[at]) for row in table.rows[:-1]) == pytest.approx(
        float(table.rows[-1][at]), abs=0.1 * len(table.rows)
    )


def test_gradients_of_a_tensor_on_two_stages_are_summed_once_a_step() -> None:
    """The vocabulary at both ends of a tied model and under a prediction depth, whole on every data-parallel rank, in the
    type of the buffers; nothing on one stage, of untied models, and of adapters."""

    def sent(model: str, **stated: Any) -> list[tuple[str, float, float]]:
        made = run(model, **stated)
        sound(made)
        return [(row.operation, row.count, row.bytes) for row in made.communication if row.name == "grad_tied"]

    model = zoo.load("llama3.2_1b")
    assert not model.untie_embeddings_and_output_weights
    whole = 4.0 * model.vocab_size * model.hidden_size
    for stated, share in (({"pp": 4}, 1.0), ({"pp": 2, "tp": 2}, 0.5), ({"pp": 2, "grad_reduce_in_bf16": True}, 0.5)):
        ((kind, count, nbytes),) = sent("llama3.2_1b", **stated)
        assert (kind, count) == ("all_reduce", 1.0)
        assert nbytes == pytest.approx(whole * share, rel=0.02)  # the vocabulary is padded
    assert sent("llama3.2_1b", pp=2, gpus=32) == sent("llama3.2_1b", pp=2, gpus=128)
    assert not sent("llama3.2_1b", tp=2)
    assert not sent("llama3_8b", pp=4)
    assert not sent("llama3.2_1b", pp=2, lora=LoRA(dim=16))
    assert len(sent("deepseek_v3", pp=4, ep=8, pipeline_model_parallel_layout="Et*15|t*16|t*15|t*15mL")) == 1
