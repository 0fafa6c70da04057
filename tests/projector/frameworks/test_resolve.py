"""Framework files and how they fill a recipe."""

import dataclasses

import pytest
from asked import refusal
from tabled import tabled

from projector.frameworks import Resolved, find, load, names, resolve
from projector.hardware import catalogue
from projector.memo import clear_caches
from projector.projection import project
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.validate import value_problems
from projector.workload.workload import Workload
from tests import workloads

LLAMA = Model(
    name="llama-like", family="llama", num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32,
    num_query_groups=8, kv_channels=128, vocab_size=128256,
)  # fmt: skip
OPTIONAL = set(tabled("frameworks", "optional_fields"))


def workload(framework: str, **recipe: object) -> Workload:
    return workloads.workload(LLAMA, framework=framework, **recipe)


@pytest.mark.parametrize("name", names())
def test_every_framework_states_every_field(name: str) -> None:
    resolved = resolve(workload(name, tp=2), "nvidia", "hopper")
    left = {f.name for f in dataclasses.fields(Recipe) if getattr(resolved.workload.recipe, f.name) is None}
    assert left <= OPTIONAL
    assert load(name).sources, f"{name} names no source"


def test_what_the_recipe_states_is_kept() -> None:
    stated = {"sequence_parallel": True, "recompute_granularity": "full", "data_parallel_sharding": "optim"}
    resolved = resolve(workload("megatron-lm", tp=2, **stated))
    assert resolved.workload.recipe.sequence_parallel is True
    assert resolved.workload.recipe.recompute_granularity == "full"
    assert resolved.assumed == ()


def test_an_uncertain_default_is_reported() -> None:
    found = resolve(workload("megatron-lm"), published=True)
    assert found.assumed == ("recompute_granularity=none", "data_parallel_sharding=optim")


def test_a_plan_does_what_its_framework_does_by_default() -> None:
    """Megatron-LM megatron/training/arguments.py: the distributed optimizer is a switch that is off."""
    planned = resolve(workload("megatron-lm"))
    assert planned.assumed == ()
    assert planned.workload.recipe.data_parallel_sharding == "no_shard"
    assert resolve(workload("primus"), published=True).workload.recipe.numa_binding is True
    assert resolve(workload("primus")).workload.recipe.numa_binding is False
    for published in (True, False):  # a framework's own default is not what publications of its parent did
        fsdp = resolve(workload("torchtitan"), published=published).workload.recipe.data_parallel_sharding
        assert fsdp == "optim_grads_params"


def test_what_a_published_run_of_experts_leaves_out_is_what_such_runs_do() -> None:
    """Of runs with experts alone, reported as assumed, and never against a word of the recipe or a framework's default."""

    experts = zoo.load("deepseek_v3")

    def made(framework: str, model: Model = experts, published: bool = True, **stated: object) -> Resolved:
        return resolve(workloads.workload(model, framework=framework, **stated), published=published)

    found = made("megatron-lm")
    assert found.workload.recipe.moe_permute_fusion is True
    assert "moe_permute_fusion=True" in found.assumed
    assert made("megatron-lm", published=False).workload.recipe.moe_permute_fusion is False
    assert made("megatron-lm", moe_permute_fusion=False).workload.recipe.moe_permute_fusion is False
    dense = made("megatron-lm", LLAMA).workload.recipe, made("megatron-lm", LLAMA, published=False).workload.recipe
    assert dense[0] == dataclasses.replace(dense[1], data_parallel_sharding="optim")
    assert made("primus").workload.recipe.moe_permute_fusion is False
    assert made("deepspeed").workload.recipe.overlap_grad_reduce is False
    assert made("megatron-bridge").workload.recipe.cross_entropy_fusion == "te"


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    assert resolve(workload("primus", tp=1)).workload.recipe.sequence_parallel is False
    assert resolve(workload("primus", tp=2)).workload.recipe.sequence_parallel is True


def test_experts_beside_tensor_parallelism_run_with_sequence_parallelism_alone() -> None:
    """Megatron-Core starts none without, so that a recipe that says nothing has it; a dense one has the flag's default."""
    for model, on in (("mixtral_8x7b", True), (LLAMA, False)):
        case = workloads.workload(model, framework="megatron-lm", gpus=8, tp=2)
        assert resolve(case).workload.recipe.sequence_parallel is on


def test_rules_depend_on_the_device() -> None:
    assert resolve(workload("megatron-lm"), "amd", "cdna4").execution.kernels.gemm == "hipblaslt"
    assert resolve(workload("megatron-lm"), "nvidia", "ampere").execution.kernels.attention == "fa2"
    assert resolve(workload("megatron-lm"), "nvidia", "blackwell").execution.kernels.attention == "cudnn"


def test_products_come_from_the_library_of_the_stack() -> None:
    """rocBLAS on MI250X before PyTorch 2.5, cuBLAS before CUDA 12.6 Update 2 on Hopper: slower, there alone."""
    from projector.hardware import catalogue
    from projector.hardware.efficiency import of
    from projector.kernels.simulate import shared
    from projector.operators.types import Gemm

    def chosen(date: str, arch: str, vendor: str, framework: str = "megatron-deepspeed"):
        return resolve(dataclasses.replace(workload(framework), framework_date=date), vendor, arch).execution

    def seconds(name: str, date: str, dtype: str, framework: str = "megatron-deepspeed") -> float:
        gpu = catalogue.gpu(name)
        op = Gemm(name="fc1", m=4096, n=20480, k=5120, dtype=dtype, layout="TN", out_bytes=2.0)
        model = shared(gpu, of(gpu), chosen(date, gpu.arch, gpu.vendor, framework))
        return model.times([op]).seconds[0] * gpu.peak_of(dtype) / op.flops

    assert chosen("2024-04", "gfx90a", "amd").kernels.gemm == "rocblas"
    assert chosen("2024-10", "gfx90a", "amd").kernels.gemm == "hipblaslt"
    assert chosen("2024-04", "gfx942", "amd").kernels.gemm == "hipblaslt"
    assert 1.3 * seconds("mi250x", "2024-10", "fp16") < seconds("mi250x", "2024-04", "fp16") < 1 / 0.4
    for framework, before, since in (
        ("nemo", "2024-10", "2024-11"),
        ("maxtext", "2024-10", "2024-11"),
        ("torchtitan", "2025-03", "2025-04"),
        ("megatron-lm", "2024-10", ""),
    ):
        for gpu, dtype in (("h100_sxm", "bf16"), ("h100_sxm", "fp16"), ("h200", "fp8")):
            old, new = (seconds(gpu, date, dtype, framework) for date in (before, since))
            assert 1.03 * new < old < 1.15 * new, (framework, gpu, dtype)
        for gpu in ("a100_sxm_80gb", "b200"):
            assert seconds(gpu, before, "bf16", framework) == seconds(gpu, since, "bf16", framework)


def test_a_named_attention_backend_says_where_scores_lie() -> None:
    """Megatron-DeepSpeed's --use-flash-attn, Megatron-LM's --attention-backend unfused."""
    for framework, default in (("megatron-deepspeed", True), ("primus", False)):
        for backend, materialised in (
            (None, default),
            ("flash", False),
            ("fa2", False),
            ("fused", False),
            ("unfused", True),
        ):
            found = resolve(workload(framework, attention_backend=backend), "amd", "gfx942").execution
            assert found.fusion.attention_materialised is materialised


@pytest.mark.parametrize("name", names())
def test_what_was_resolved_before_changes_nothing(name: str) -> None:
    """Recipes alike but for their sizes and places are filled from one: each as it would be alone, and looked at once."""
    sizes = {"tp": 2, "pp": 2, "gpus": 8}
    stages = {"pipeline_model_parallel_layout": "E" + "t" * 15 + "|" + "t" * 17 + "L", "vpp": 1}
    every = (
        {},
        {"recompute_num_layers": 4},
        {"decoder_first_pipeline_num_layers": 12},
        {"decoder_first_pipeline_num_layers": 14, "recompute_num_layers": 2},
        {"account_for_loss_in_pipeline_split": True},
        stages,
        {**stages, "pipeline_model_parallel_layout": "E" + "t" * 17 + "|" + "t" * 15 + "L"},
    )
    loads = [workload(name, **sizes, recompute_granularity="full", **each) for each in every]
    clear_caches()
    resolved = [resolve(load) for load in loads]
    for one, found in zip(loads, resolved, strict=True):
        clear_caches()
        assert found == resolve(one)
        assert not value_problems(one)
    for wrong in (4.0, -1, "4"):  # 4 is known to be sound
        made = workload(name, **sizes, recompute_granularity="full", recompute_num_layers=wrong)
        assert [each.key for each in value_problems(made)] == ["recipe.recompute_num_layers"]


def test_recipe_switches_change_the_execution() -> None:
    plain = resolve(workload("megatron-lm")).execution
    assert plain.fusion.wgrad_accumulation == "fused"
    assert plain.data_parallel.grad_bytes == 4.0
    changed = resolve(workload("megatron-lm", gradient_accumulation_fusion=False, grad_reduce_in_bf16=True)).execution
    assert changed.fusion.wgrad_accumulation == "separate"
    assert changed.data_parallel.reduce_bytes == changed.data_parallel.grad_bytes == 2.0
    sharded = resolve(workload("megatron-lm", data_parallel_sharding="optim_grads_params"))
    assert sharded.execution.data_parallel.name == "megatron_fsdp"
    assert sharded.execution.data_parallel.reduces_every_microbatch(sharded.workload)


@pytest.mark.parametrize(("text", "name"), tabled("names", "frameworks_by_free_text"))
def test_free_text_finds_the_framework(text: str, name: str | None) -> None:
    assert find(text) == name


@pytest.mark.parametrize(("framework", "arch", "expected"), tabled("frameworks", "attention_on_amd"))
def test_attention_on_amd_is_what_the_stack_calls(framework: str, arch: str, expected: str) -> None:
    recipe = Recipe(micro_batch_size=1, global_batch_size=8, seq_length=4096)
    job = Workload(model=LLAMA, recipe=recipe, gpus=8, framework=framework)
    assert resolve(job, "amd", arch).execution.kernels.attention == expected


def test_every_number_of_a_framework_has_a_source(tmp_path):
    """A number that no entry of ``sources`` covers, and an entry of an unknown kind, are errors that name the number."""
    from projector.frameworks import profiles_io

    def problems(sources, rule=""):
        path = tmp_path / "mine.yaml"
        path.write_text(f"title: Mine\nextends: megatron-lm\nsources: {sources}\n{rule}"
                        "execution: {runtime: {launch_us: 6.0}}\n")  # fmt: skip
        return [(p.key, p.found) for p in refusal(profiles_io._read, path).problems]

    stated = "[{title: a trace, kind: fitted, values: [runtime.launch_us]}]"
    assert problems("[a page]") == [("sources", "nothing for runtime.launch_us")]
    assert problems(stated.replace("fitted", "guessed")) == [("execution.runtime.launch_us.kind", "guessed")]
    rule = "rules:\n  - when: {vendor: amd}\n    execution: {runtime: {step_ms: 9.0}}\n"
    assert problems(stated, rule) == [("rules[0].sources", "nothing for runtime.step_ms")]
    stale = stated.replace("launch_us]", "launch_us, runtime.step_ms]")
    assert problems(stale) == [("sources", "runtime.step_ms")], "a source of what the file does not state"


@pytest.mark.parametrize(
    ("position", "date", "scores"),
    [("alibi", "2023-11", True), ("rope", "2023-11", False), ("alibi", "2024-06", False)],
)
def test_biased_positions_kept_paddlenlp_from_flash_attention(position: str, date: str, scores: bool) -> None:
    case = workload("paddlenlp")
    case = dataclasses.replace(
        case, framework_date=date, model=dataclasses.replace(case.model, position_embedding_type=position)
    )
    assert resolve(case, "nvidia", "ampere").execution.fusion.attention_materialised == scores


@pytest.mark.parametrize(("arch", "lora", "stated", "how"), tabled("frameworks", "adapters_of_mlperf"))
def test_submissions_of_adapters_run_as_their_configuration_files_say(
    arch: str, lora: bool, stated: str | None, how: str
) -> None:
    case = workload("mlperf")
    recipe = dataclasses.replace(case.recipe, cp=8, cp_comm_type=stated, lora=LoRA(dim=16) if lora else None)
    found = resolve(dataclasses.replace(case, recipe=recipe), "nvidia", arch)
    assert found.workload.recipe.cp_comm_type == how
    assert (found.workload.recipe.cuda_graph_scope == ()) == lora
    assert found.execution.fusion.activation_casts == lora


def test_submissions_before_2024_had_neither_graphs_nor_weights_in_fp8() -> None:
    for date, fp8, scope in (("2023-09", False, ()), ("2024-04", True, ("attn", "mlp"))):
        case = dataclasses.replace(workload("mlperf", precision="fp8"), framework_date=date)
        recipe = resolve(case, "nvidia", "hopper").workload.recipe
        assert (recipe.fp8_param_gather, recipe.cuda_graph_scope) == (fp8, scope)


def test_primus_forces_routing_where_it_trains_from_scratch_alone() -> None:
    """configs/models/megatron/primus_megatron_model.yaml leaves it off; the files of its pre-training benchmarks set it."""
    scratch, tuned = (
        resolve(workload("primus", lora=lora), "amd", "gfx950").workload.recipe
        for lora in (None, LoRA(dim=16, targets=("linear_qkv",)))
    )
    assert (scratch.moe_router_force_load_balancing, tuned.moe_router_force_load_balancing) == (True, False)
    assert tuned.mock_data is False


def test_trainers_ran_the_attention_and_reductions_of_their_month() -> None:
    """llm-foundry's tables: PURE, then DEFAULT, on Triton's FlashAttention; InternEvo's first on FlashAttention 1."""

    def chosen(framework: str, date: str):
        return resolve(dataclasses.replace(workload(framework), framework_date=date), "nvidia", "ampere")

    assert [chosen("llm-foundry", d).execution.data_parallel.reduce_bytes for d in ("2023-05", "2023-10", "")] == [
        2,
        4,
        4,
    ]
    for framework, last, first in (("llm-foundry", "2024-01", "2024-04"), ("internevo", "2023-07", "2023-09")):
        assert chosen(framework, last).execution.kernels.attention == "fa1"
        assert chosen(framework, first).execution.kernels.attention == "fa2"
    fused = [chosen("internevo", date).workload.recipe.bias_activation_fusion for date in ("2023-07", "2023-11")]
    assert fused == [False, True]


def test_maxtext_keeps_a_share_of_every_activation_on_each_rank_of_its_tensor_axis() -> None:
    """Its logical axes put the embedding of activations on the tensor axis, so what a rank saves of as many tokens falls
    with tp; where tensor parallelism keeps inputs of layers whole it does not."""

    def saved(tp: int, **recipe: object) -> float:
        kept = {"micro_batch_size": 4, "seq_length": 4096, "gpus": 8, "recompute_granularity": "full", **recipe}
        load = workload("maxtext", tp=tp, recompute_saved=("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context"), **kept)
        return project(load, catalogue.cluster("h200")).memory.components["activations"]

    assert saved(4) < 0.4 * saved(1) < saved(4, sequence_parallel=False)
