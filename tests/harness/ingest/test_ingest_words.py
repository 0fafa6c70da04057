"""Texts for recompute, sharding, schedule, precision, frameworks and dates."""

import pytest
from loose_cases import one, record
from tabled import tabled

from harness.evidence.ingest.fields import framework_slug, software_date
from harness.evidence.ingest.record import Record
from harness.evidence.ingest.settings import settings_of
from harness.evidence.ingest.vocabulary import read


@pytest.mark.parametrize(("text", "expected"), tabled("readers", "recompute"))
def test_recompute(text: str, expected: dict[str, object]) -> None:
    run, row = one(**record(recompute=text, framework="torchtitan"))
    assert run.recipe is not None
    assert {name: getattr(run.recipe, name) for name in expected} == expected
    assert row.unread == ()


FULL = "optim_grads_params"


@pytest.mark.parametrize(
    ("text", "degree", "shard"),
    [
        ("ZeRO stage 1, optimizer states sharded over 8 GPUs (hybrid zero)", "optim", 8),
        ("ZeRO stage 1, optimizer states sharded over all data-parallel ranks", "optim", None),
        ("ZeRO stage 2 (sharding stage2, degree 4)", "optim_grads", 4),
        ("sharding stage 1 over 4", "optim", 4),
        ("sharding stage 2 over 8", "optim_grads", 8),
        ("FSDP, shard 128", FULL, 128),
        ("FSDP2, shard 8", FULL, 8),
        ("none (sharding degree 1)", "no_shard", None),
        ("FSDP2, shard 1", "no_shard", None),
        ("distributed optimizer (recipe default)", "optim", None),
        ("DeepSpeed ZeRO stage 1", "optim", None),
        (1, "optim", None),
        ("FSDP SHARD_GRAD_OP (ZeRO-2)", "optim_grads", None),
        ("FSDP FULL_SHARD (ZeRO-3)", FULL, None),
        (3, FULL, None),
        ("none", "no_shard", None),
        ("FSDP HYBRID_SHARD", FULL, 16),
        ("FSDP _HYBRID_SHARD_ZERO2", "optim_grads", 16),
        ("HSDP", FULL, 16),
        ("HSDP: FSDP shard 8, replicas between nodes", FULL, 8),
        ("HSDP (shard inside a node, replicate across nodes)", FULL, 16),
        ("ZeRO-3, partition 8 (MiCS)", FULL, 8),
        ("FSDP within a node, data parallel between nodes", FULL, 16),
    ],
)
def test_sharding_and_its_groups(text: object, degree: str, shard: int | None) -> None:
    run, row = one(
        **record(zero=text, gpus=256, nodes=16, dp=256, global_batch_size=256, metrics={"iteration_ms": 1e4})
    )
    assert (run.recipe.data_parallel_sharding, run.recipe.data_parallel_shard_size) == (degree, shard)
    assert row.unread == ()
    assert ("data_parallel_shard_size=16 (the ranks of a node)" in run.assumed) == (shard == 16)


def test_a_group_of_a_node_is_all_ranks_on_one_node() -> None:
    run, _ = one(**record(zero="HSDP"))
    assert (run.recipe.data_parallel_sharding, run.recipe.data_parallel_shard_size) == (FULL, None)


def test_recompute_that_no_field_holds_is_refused() -> None:
    assert "no equivalent" in one(**record(recompute="remat_policy minimal_offloaded"))[0].problem
    kept = one(**record(recompute="remat_policy save_dot_except_mlpwi", framework="MaxText"))[0].recipe
    assert kept.recompute_saved == ("qkv_proj", "out_proj", "mlpwo")
    assert "not understood" in one(**record(recompute="outer layer groups"))[0].problem
    assert "not modelled" in one(**record(recompute="selective (per-op SAC)"))[0].problem
    stands_for, _ = one(**record(recompute="selective (op SAC)", framework="torchtitan"))
    assert stands_for.recipe.recompute_modules == ("op_sac",)
    assert any("stands for" in text for text in stands_for.assumed)


@pytest.mark.parametrize(("text", "modules", "unread"), tabled("readers", "modules_of_selective_recompute"))
def test_modules_of_selective_recompute(text: str, modules: tuple[str, ...], unread: tuple[str, ...]) -> None:
    found = read("recompute", text)
    assert (found.settings["recompute_modules"], found.unread) == (modules, unread)


@pytest.mark.parametrize(("text", "name", "vpp"), tabled("readers", "schedule"))
def test_schedule(text: str, name: str | None, vpp: int | None) -> None:
    fields = settings_of(Record({"schedule": text}, "t"), "")
    assert (fields.get("pipeline_schedule"), fields.get("vpp")) == (name, vpp)


def test_schedule_with_layout_and_overlap() -> None:
    fields = read("schedule", "interleaved via layout Ett|(tt|)*6mL with 1F1B EP A2A overlap").settings
    assert fields["pipeline_model_parallel_layout"] == "Ett|(tt|)*6mL"
    assert fields["overlap_moe_expert_parallel_comm"] is True


@pytest.mark.parametrize(("text", "gpu", "name", "scaling"), tabled("readers", "precision"))
def test_precision(text: str, gpu: str, name: str, scaling: str | None) -> None:
    run, row = one(**record(precision=text, gpu=gpu))
    assert (run.recipe.precision, run.recipe.fp8_recipe, row.unread) == (name, scaling, ())


@pytest.mark.parametrize(("text", "start", "end"), tabled("readers", "layers_of_another_precision"))
def test_layers_of_another_precision(text: str, start: int, end: int) -> None:
    recipe = one(**record(precision=text, gpu="B200"))[0].recipe
    assert recipe.first_last_layers_bf16
    assert (recipe.num_layers_at_start_in_bf16, recipe.num_layers_at_end_in_bf16) == (start, end)


@pytest.mark.parametrize(("key", "value", "backend"), tabled("readers", "attention"))
def test_attention(key: str, value: object, backend: str) -> None:
    run, row = one(**record(other={key: value}))
    assert (run.recipe.attention_backend, row.unread) == (backend, ())


def test_graphs_of_modules_and_what_their_switch_says() -> None:
    words = one(**record(other={"cuda_graphs": "moe_router, moe_preprocess"}))[0].recipe
    off = one(**record(other={"cuda_graph_impl": "none", "cuda_graph_scope": ["full_iteration"]}))[0].recipe
    assert (words.cuda_graph_scope, off.cuda_graph_scope) == (("moe_router", "moe_preprocess"), ())


def test_a_type_that_nothing_casts_leaves_no_copy_in_fp32() -> None:
    pure = one(**record(framework="pytorch", other={"torch_dtype": "bfloat16", "mixed_precision": "no"}))[0].recipe
    amp, said = one(**record(framework="pytorch", other={"torch_dtype": "bfloat16"}))
    assert (pure.main_params_dtype, pure.exp_avg_dtype, amp.recipe.main_params_dtype) == ("bf16", "bf16", None)
    assert said.unread == ("torch_dtype: bf16, without mixed_precision",)


@pytest.mark.parametrize(("other", "layers", "unread"), tabled("readers", "activations_on_the_host"))
def test_activations_on_the_host(other: dict[str, object], layers: int | None, unread: tuple[str, ...]) -> None:
    run, row = one(**record(other=other))
    assert run.recipe.cpu_offloading_num_layers == layers
    assert tuple(text.partition(":")[0] for text in row.unread) == unread


MOE = {"model": "Mixtral 8x7B", "ep": 8, "gpu": "MI300X"}


@pytest.mark.parametrize(
    ("framework", "zero", "name"), tabled("readers", "a_trainer_of_hugging_face_runs_on_what_it_is_given")
)
def test_a_trainer_of_hugging_face_runs_on_what_it_is_given(framework: str, zero: object, name: str) -> None:
    assert one(**record(framework=framework, zero=zero))[0].stack.framework == name


@pytest.mark.parametrize(("stated", "way"), [(True, "fused"), (False, "loop"), ("HF loop", "loop"), ("turbo", "fused")])
def test_experts_run_as_the_row_says(stated: object, way: str) -> None:
    recipe = one(**record(**MOE, framework="DeepSpeed", other={"grouped_gemm": stated}))[0].recipe
    assert recipe.moe_grouped_gemm == way


def test_units_of_dispatch_are_those_of_the_dispatcher() -> None:
    turbo = one(**record(**MOE, deepep=True, other={"turbo_deepep_num_cu": 80}))[0].recipe
    hybrid = {"moe_hybridep_num_sms": 16, "moe_token_dispatcher_type": "flex"}
    own = one(**record(**MOE, other=hybrid | {"moe_flex_dispatcher_backend": "hybridep"}))[0].recipe
    other = one(**record(**MOE, other=hybrid | {"moe_flex_dispatcher_backend": "deepep"}))[0].recipe
    assert [recipe and recipe.moe_deepep_num_sms for recipe in (turbo, own, other)] == [80, 16, None]


@pytest.mark.parametrize(("text", "slug"), tabled("readers", "framework"))
def test_framework(text: str, slug: str) -> None:
    assert framework_slug(text) == slug


@pytest.mark.parametrize(("texts", "date"), tabled("readers", "dates"))
def test_dates(texts: tuple[str, ...], date: str) -> None:
    assert software_date(*texts) == date
