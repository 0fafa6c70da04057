"""Documents packed into a sequence: attention by the sum of squared lengths, everything else by tokens."""

from dataclasses import replace
from typing import Any

import pytest
from asked import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.frameworks.flops import flops_per_token
from projector.hardware import catalogue
from projector.layers import lower
from projector.layers.context_parallel import ranks_of
from projector.operators.types import Attention, Collective, Gemm, GroupedGemm, Scan
from projector.projection import Projection, project
from projector.workload import zoo
from projector.workload.field_facts import about_of
from projector.workload.lora import LoRA
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_recipe
from projector.workload.workload import Workload
from tests import workloads
from tests.workloads import workload

CLUSTER = catalogue.default_cluster("h100_sxm")


def case(name: str = "llama3_8b", **fields: object) -> Workload:
    stated = {"global_batch_size": 16, "seq_length": 32768, "tp": 8, "sequence_parallel": True}
    return workload(name, **stated | fields)


def attention(job: Workload) -> list[Attention]:
    made = resolve(job, "nvidia", "hopper")
    block = lower.layer(job.model.layer_kinds[0], made)
    return [op for op in (*block.forward, *block.backward_input) if isinstance(op, Attention)]


def test_attention_costs_the_sum_of_squared_lengths_and_nothing_else_changes() -> None:
    whole = attention(case())
    lengths = (16384, 8192, 4096, 4096)
    packed = attention(case(document_lengths=lengths))
    share = sum(length**2 for length in lengths) / 32768**2
    assert sum(op.flops for op in packed) == pytest.approx(share * sum(op.flops for op in whole))
    assert sum(op.launches for op in packed) == sum(op.launches for op in whole)
    assert [op.flops for op in attention(case(document_lengths=(32768,)))] == [op.flops for op in whole]
    made, other = (
        lower.layer(job.model.layer_kinds[0], resolve(job, "nvidia", "hopper"))
        for job in (case(), case(document_lengths=lengths))
    )
    assert made.saves == other.saves
    assert [op for op in made.forward if not isinstance(op, Attention)] == [
        op for op in other.forward if not isinstance(op, Attention)
    ]
    counted = [flops_per_token(case(document_lengths=each), "megatron-2026-05") for each in (None, (32768,), lengths)]
    assert counted[0] == counted[1] == flops_per_token(case(), "megatron-2025-04")
    model, squares = case().model, sum(length**2 for length in lengths)
    scores = 6 * model.num_layers * model.num_attention_heads * model.kv_channels
    assert counted[0] - counted[2] == pytest.approx(scores * (32768 - squares / 32768))
    times = [project(case(document_lengths=each), CLUSTER).step_seconds for each in ((32768,), lengths, (1024,) * 32)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(project(case(), CLUSTER).step_seconds, rel=1e-9)


def test_recurrences_of_documents_run_beside_one_another() -> None:
    job = case("nemotron_h_8b", document_lengths=(4096,) * 8)
    block = lower.layer(job.model.layer_kinds[0], resolve(job, "nvidia", "hopper"))
    assert max(op.steps for op in block.forward if isinstance(op, Scan)) == 4096 // 128


def test_what_does_not_fit_is_named() -> None:
    for lengths in ((32768, 1), (0, 16)):
        refusal(project, case(document_lengths=lengths), CLUSTER, match="document_lengths")
    refusal(project, case(document_lengths=(1024,), tp=4, cp=2), CLUSTER, match="a2a", kind=Unsupported)
    assert project(case(document_lengths=(16384,) * 2, tp=4, cp=2, cp_comm_type="a2a"), CLUSTER).step_seconds > 0


def pieces(job: Workload) -> tuple[float, float, int]:
    """FLOP, bytes of messages and launches of attention's forward on one rank."""
    made = resolve(job, "nvidia", "hopper")
    block = lower.layer(job.model.layer_kinds[0], made)
    ops = [op for op in block.forward if op.name.startswith(("core_attn", "cp."))]
    sent = sum(op.bytes for op in ops if isinstance(op, Collective))
    return sum(op.flops for op in ops if isinstance(op, Attention)), sent, sum(op.launches for op in ops)  # type: ignore[attr-defined]


def test_dynamic_context_parallelism_gives_each_document_the_ranks_that_hold_it() -> None:
    """All short: what one rank costs; one long: what static context parallelism costs; between them between."""
    dynamic = {"tp": 2, "cp": 4, "dynamic_context_parallel": True}
    short, long, mixed = (8192,) * 4, (32768,), (16384, 8192, 4096, 4096)
    assert [ranks_of(length, 8192) for length in (1, 8192, 8193, 16384, 16385, 32768)] == [1, 1, 2, 2, 4, 4]
    alone = case(tp=2, cp=1, seq_length=8192, document_lengths=(8192,))
    static = case(tp=2, cp=4)
    assert pieces(case(document_lengths=short, **dynamic)) == pieces(alone)
    assert pieces(case(document_lengths=long, **dynamic)) == pieces(static)
    flops, sent, _ = pieces(case(document_lengths=mixed, **dynamic))
    squares = sum(length**2 for length in mixed) / 32768**2
    assert flops == pytest.approx(squares * 4 * pieces(static)[0] / 4, rel=0.01)
    ring = 8192 * 8 // 2 * 2 * 128 * 2.0  # keys and values of a rank's tokens, sent once in a ring of two
    assert sent == ring * 2 / 4
    assert 0 < sent < pieces(static)[1]
    times = [project(case(document_lengths=each, **dynamic), CLUSTER).step_seconds for each in (short, mixed, long)]
    assert times == sorted(times)
    assert times[2] == pytest.approx(project(static, CLUSTER).step_seconds, rel=1e-9)
    memory = [project(case(document_lengths=each, **dynamic), CLUSTER).memory.allocated for each in (short, long)]
    assert memory[0] == memory[1]


def test_dynamic_context_parallelism_that_nobody_can_place_is_refused() -> None:
    dynamic = {"tp": 2, "cp": 4, "dynamic_context_parallel": True}
    refusal(project, case(**dynamic), CLUSTER, match="document_lengths", kind=Unsupported)
    with pytest.raises(Unsupported, match="latent attention"):
        project(case("deepseek_v2_lite", document_lengths=(4096,), **dynamic | {"tp": 1}), CLUSTER)
    with pytest.raises(Unsupported, match="state is divided"):
        project(case("nemotron_h_8b", document_lengths=(4096,), **dynamic), CLUSTER)
    with pytest.raises(InputError, match="power of two"):
        project(case(seq_length=24576, document_lengths=(4096,), **dynamic | {"tp": 1, "cp": 6}), CLUSTER)


# Direct preference optimisation: pairs of sequences, and a forward of the frozen model beside that of the trained
# one.

PAIRS_CLUSTER = catalogue.cluster("h100")


def pairs_case(name: str = "llama3.1_8b", **fields: object) -> Workload:
    return workload(name, **{"global_batch_size": 32, "tp": 2, "sequence_parallel": True} | fields)


def products(job: Workload, kind: int = -1) -> tuple[float, float]:
    """FLOP of the products of a layer, forward and backward."""
    block = lower.layer(job.model.layer_kinds[kind], resolve(job, "nvidia", "hopper"))
    ways = (block.forward, (*block.backward_input, *block.backward_weight))
    return tuple(sum(op.flops for op in way if isinstance(op, Gemm | GroupedGemm)) for way in ways)  # type: ignore[return-value]


def run(**fields: object) -> Projection:
    return project(pairs_case(**fields), PAIRS_CLUSTER)  # type: ignore[arg-type]


def test_a_pair_is_two_sequences_and_the_reference_one_forward_more() -> None:
    for name in ("llama3.1_8b", "deepseek_v2_lite"):
        twice = products(pairs_case(name, micro_batch_size=2))
        pairs, alone = (
            products(pairs_case(name, rlhf_type="dpo")),
            products(pairs_case(name, rlhf_type="dpo", reference_free=True)),
        )
        assert alone == pytest.approx(twice)
        assert pairs == pytest.approx((2 * twice[0], twice[1]))
    assert pairs_case(rlhf_type="dpo").tokens_per_step == 2 * pairs_case().tokens_per_step
    assert pairs_case(rlhf_type="dpo").num_microbatches == pairs_case().num_microbatches


def test_a_step_lasts_a_third_longer_and_its_memory_grows_by_frozen_weights() -> None:
    twice, alone = run(micro_batch_size=2, global_batch_size=64), run(rlhf_type="dpo", reference_free=True)
    assert alone.step_seconds == pytest.approx(twice.step_seconds)
    assert alone.tgs == pytest.approx(twice.tgs)
    pairs = run(rlhf_type="dpo")
    assert 1.25 < pairs.step_seconds / alone.step_seconds < 1.4
    assert pairs.mfu / alone.mfu == pytest.approx(4 / 3 * alone.step_seconds / pairs.step_seconds)
    more, none = (weights(one) - weights(other) for one, other in ((pairs, alone), (alone, twice)))
    assert none == 0
    assert more == pytest.approx(2 * count(zoo.load("llama3.1_8b")).total / 2, rel=0.01)  # 16 bits, over tp
    thin = {"lora": LoRA(dim=16)}
    with_, without = run(rlhf_type="dpo", **thin), run(rlhf_type="dpo", reference_free=True, **thin)
    assert weights(with_) == weights(without)  # adapters that are switched off: no second copy
    assert 1.3 < with_.step_seconds / without.step_seconds < 1.6  # a forward beside one and a data gradient


def weights(made: Projection) -> float:
    return made.memory.components["weights"]


def test_adapters_are_off_in_the_reference() -> None:
    job = pairs_case(rlhf_type="dpo", lora=LoRA(dim=16, targets=("linear_qkv",)))
    block = lower.layer(job.model.layer_kinds[0], resolve(job, "nvidia", "hopper"))
    names = [op.name for op in block.forward]
    assert names.count("qkv") == 2
    assert names.count("qkv.lora_a") == 1


def test_longer_messages_and_gathers() -> None:
    for more in ({"pp": 2, "tp": 1, "sequence_parallel": False}, {"data_parallel_sharding": "optim_grads_params"}):
        free, pairs = (run(rlhf_type="dpo", reference_free=each, **more) for each in (True, False))
        assert pairs.step_seconds > free.step_seconds


def test_another_kind_of_training_is_named() -> None:
    given = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 64, "rlhf_type": "ppo"}
    _, problems = parse_recipe(given, "f")
    assert [each.key for each in problems] == ["recipe.rlhf_type"]
    assert replace(pairs_case().recipe, rlhf_type="dpo").reference


# A switch over a group of one rank changes nothing: neither the time nor the memory of a step, for any framework.
# What is no switch of a group: another implementation of data parallelism (FSDP, ZeRO-2 and ZeRO-3 keep other
# copies even for one rank), and types or kernels of a rank's own work.

_GPU = {"primus": "mi355x", "maxtext": "mi355x"}
_CHOICES = {name: about_of(Recipe)[name].choices for name in ("cp_comm_type", "moe_token_dispatcher_type")}
_SWITCH = st.sampled_from((True, False))
#: By the size that is one: the fields that only matter to a group of it.
_SWITCHES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "tp": {"sequence_parallel": _SWITCH, "tp_comm_overlap": _SWITCH, "muon_tp_mode": st.sampled_from(("blockwise",))},
    "cp": {"cp_comm_type": st.sampled_from(_CHOICES["cp_comm_type"]), "dynamic_context_parallel": _SWITCH},
    "pp": {
        "pipeline_schedule": st.sampled_from(("1f1b", "gpipe", "zb_h1", "zbv", "interleaved")),
        "overlap_p2p_comm": _SWITCH,
        "defer_embedding_wgrad_compute": _SWITCH,
        "microbatch_group_size_per_vp_stage": st.integers(1, 8),
        "account_for_embedding_in_pipeline_split": _SWITCH,
        "account_for_loss_in_pipeline_split": _SWITCH,
        "pipeline_remainder": st.sampled_from(("weighted", "first")),
        "allow_uneven_pipeline_split": _SWITCH,
    },
    "ep": {
        "moe_token_dispatcher_type": st.sampled_from(_CHOICES["moe_token_dispatcher_type"]),
        "moe_deepep_num_sms": st.integers(8, 64),
        "moe_all_to_all_kernel": st.sampled_from(("collective", "one_shot")),
        "moe_shared_expert_overlap": _SWITCH,
        "overlap_moe_expert_parallel_comm": _SWITCH,
        "delay_wgrad_compute": _SWITCH,
    },
    "dp": {
        "overlap_grad_reduce": _SWITCH,
        "overlap_param_gather": _SWITCH,
        "ddp_bucket_size": st.integers(10**6, 10**8),
        "num_distributed_optimizer_instances": st.just(1),
    },
}


def _made(framework: str, model: str, group: str, stated: dict[str, Any]) -> Projection:
    sizes: dict[str, Any] = {
        "tp": 2, "pp": 2, "cp": 2, "ep": 2 if model != "llama3.1_8b" else 1, "sequence_parallel": True,
    }  # fmt: skip
    sizes |= {group: 1} if group != "dp" else {"cp": 1}
    if sizes["tp"] == 1 or framework == "maxtext":
        del sizes["sequence_parallel"]
    gpus = 4 if group == "dp" else 16
    load = workloads.workload(model, gpus, framework, seq_length=8192, recompute_granularity="none", **sizes | stated)
    return project(load, catalogue.default_cluster(_GPU.get(framework, "h100_sxm")))


@pytest.mark.parametrize("group", sorted(_SWITCHES))
@pytest.mark.parametrize(
    "framework", ["megatron-lm", "primus", "torchtitan", "megatron-bridge", "automodel", "maxtext"]
)
@settings(max_examples=5)
@given(data=st.data())
def test_a_switch_over_a_group_of_one_changes_nothing(framework: str, group: str, data: st.DataObject) -> None:
    # experts have a group of replicas of their own where the dense part has none
    model = (
        "llama3.1_8b"
        if group == "dp"
        else "mixtral_8x7b"
        if group == "ep"
        else data.draw(st.sampled_from(("llama3.1_8b", "mixtral_8x7b")))
    )
    name = data.draw(st.sampled_from(sorted(_SWITCHES[group])))
    stated = {name: data.draw(_SWITCHES[group][name])}
    try:
        made, plain = (_made(framework, model, group, said) for said in (stated, {}))
    except Unsupported:
        return
    assert made.step_seconds == pytest.approx(plain.step_seconds, rel=1e-12), stated
    assert made.memory.allocated == pytest.approx(plain.memory.allocated, rel=1e-12), stated


@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-bridge", "torchtitan"])
def test_a_switch_over_a_group_of_several_changes_something(framework: str) -> None:
    """The law is about the size of the group: the same switches do something where it has two ranks."""
    deepep = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    plain, made = (_made(framework, "mixtral_8x7b", "cp", said) for said in ({}, deepep))
    assert made.step_seconds != plain.step_seconds
