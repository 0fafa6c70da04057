"""Primus experiments of Megatron-LM: presets found by themselves, defaults of a whole configuration, Primus' switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.intake import detect, primus
from projector.intake.loaded import Loaded
from projector.projection import project
from projector.workload.layout import chunks
from projector.workload.recipe import Recipe
from projector.workload.validate import problems
from tests.projector.intake.primus_tree import checkout, experiment


def load(root: Path, model: str = "dense", **given: Any) -> Loaded:
    return primus.load(experiment(checkout(root), model, **given), env={})


def recipe_of(root: Path, model: str = "dense", **given: Any) -> Recipe:
    recipe = load(root, model, **given).recipe
    assert recipe is not None
    return recipe


def test_presets_are_found_above_the_file(tmp_path: Path) -> None:
    loaded = load(tmp_path, seq_length=4096)
    assert loaded.recipe is not None
    assert (loaded.recipe.micro_batch_size, loaded.recipe.global_batch_size) == (2, 16)
    assert loaded.model.num_layers == 32
    assert not any("presets" in text for text in loaded.assumed)


@pytest.mark.parametrize("name", ["PRIMUS_PATH", "PRIMUS_ROOT"])
def test_presets_are_found_where_the_environment_says(tmp_path: Path, name: str) -> None:
    tree = checkout(tmp_path / "checkout")
    file = experiment(tmp_path / "elsewhere", "dense", seq_length=4096)
    assert primus.load(file, env={name: str(tree)}).model.num_layers == 32
    with pytest.raises(InputError, match="configs folder"):
        primus.load(file, env={})


def test_the_folder_names_the_gpu_and_it_is_said(tmp_path: Path) -> None:
    loaded = load(tmp_path, folder="a/configs/MI355X/deep/er", seq_length=4096)
    assert loaded.cluster == "mi355x"
    assert "cluster=mi355x (the folder MI355X)" in loaded.assumed


def test_the_platform_goes_before_the_folder(tmp_path: Path) -> None:
    beside = {"platform": {"config": "platform_MI325X.yaml"}}
    assert load(tmp_path, beside=beside, seq_length=4096).cluster == "mi325x"
    assert load(tmp_path, folder="configs", seq_length=4096).cluster is None


def test_nothing_is_open_in_a_whole_configuration(tmp_path: Path) -> None:
    loaded = load(tmp_path, "experts", seq_length=4096, expert_model_parallel_size=8)
    open_fields = set(resolve(loaded.workload(8), "amd").assumed)
    assert {text.partition("=")[0] for text in open_fields} <= {"numa_binding"}
    assert loaded.recipe is not None
    assert loaded.recipe.recompute_granularity == "none"
    assert (loaded.recipe.overlap_grad_reduce, loaded.recipe.moe_permute_fusion) == (False, False)
    assert loaded.recipe.moe_router_force_load_balancing is False


@pytest.mark.parametrize(
    "null", [{"recompute_granularity": None}, {"recompute_granularity": None, "recompute_method": "block"}]
)
def test_null_is_the_default(tmp_path: Path, null: dict[str, Any]) -> None:
    assert recipe_of(tmp_path, seq_length=4096, **null).recompute_granularity == "none"


@pytest.mark.parametrize(
    ("count", "method", "granularity"), [(0, "block", "none"), (4, "block", "full"), (1, "uniform", "full")]
)
def test_the_first_no_layers_are_no_recomputation(tmp_path: Path, count: int, method: str, granularity: str) -> None:
    recipe = recipe_of(
        tmp_path, seq_length=4096, recompute_granularity="full", recompute_method=method, recompute_num_layers=count
    )
    assert recipe.recompute_granularity == granularity


def test_layers_by_number_are_recomputed_whatever_the_count(tmp_path: Path) -> None:
    recipe = recipe_of(
        tmp_path, seq_length=4096, recompute_granularity="full", recompute_method="block", recompute_num_layers=0,
        recompute_layer_ids="0,3",
    )  # fmt: skip
    assert (recipe.recompute_granularity, recipe.recompute_layer_ids) == ("full", (0, 3))


@pytest.mark.parametrize("stated", [None, 1, 8])
def test_a_dense_model_has_no_expert_tensor_size(tmp_path: Path, stated: int | None) -> None:
    loaded = load(
        tmp_path, seq_length=4096, tensor_model_parallel_size=8, expert_model_parallel_size=1,
        expert_tensor_parallel_size=stated,
    )  # fmt: skip
    assert loaded.recipe is not None
    assert (loaded.recipe.tp, loaded.recipe.etp) == (8, 1)
    assert problems(loaded.workload(8)) == ()


def test_experts_are_cut_as_the_rest_unless_said(tmp_path: Path) -> None:
    assert recipe_of(tmp_path, "experts", seq_length=4096, tensor_model_parallel_size=2).etp == 2
    stated = recipe_of(
        tmp_path, "experts", seq_length=4096, tensor_model_parallel_size=2, expert_tensor_parallel_size=1
    )
    assert stated.etp == 1


@pytest.mark.parametrize(
    ("stage", "dispatcher", "gemm", "fused"),
    [(0, "alltoall", "te", None), (1, "alltoall", "te", True), (2, "flex", "fused", True), (3, "flex", "fused", True)],
)
def test_sync_free_stages(tmp_path: Path, stage: int, dispatcher: str, gemm: str, fused: bool | None) -> None:
    """rocm_arg_validation.py: the router and the permutation from stage 1, DeepEP and grouped products from stage 2."""
    recipe = recipe_of(
        tmp_path, "experts", seq_length=4096, enable_primus_turbo=True, turbo_sync_free_moe_stage=stage,
        use_turbo_attention=True,
    )  # fmt: skip
    assert (recipe.moe_token_dispatcher_type, recipe.moe_grouped_gemm, recipe.moe_router_fusion) == (
        dispatcher,
        gemm,
        fused,
    )
    assert (recipe.sync_free_stage, recipe.use_turbo_attention) == (stage, True)
    assert recipe.moe_permute_fusion is (stage > 0)


def test_turbo_switches_act_under_the_main_one_only(tmp_path: Path) -> None:
    switches = {"use_turbo_attention": True, "use_turbo_deepep": True, "turbo_sync_free_moe_stage": 2}
    recipe = recipe_of(tmp_path, "experts", seq_length=4096, enable_primus_turbo=False, **switches)
    assert (recipe.use_turbo_attention, recipe.moe_token_dispatcher_type, recipe.sync_free_stage) == (
        False,
        "alltoall",
        0,
    )


def test_mega_moe_takes_the_place_of_the_whole_layer(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "experts", seq_length=4096, enable_primus_turbo=True, use_turbo_mega_moe=True)
    stated = (recipe.moe_token_dispatcher_type, recipe.moe_flex_dispatcher_backend, recipe.moe_grouped_gemm)
    assert stated == ("flex", "mega_moe", "fused")


def test_earlier_names_of_the_turbo_switches(tmp_path: Path) -> None:
    old = {"use_turbo_grouped_mlp": True, "use_turbo_parallel_linear": True}
    recipe = recipe_of(tmp_path, "experts", seq_length=4096, enable_primus_turbo=True, **old)
    assert (recipe.moe_grouped_gemm, recipe.use_turbo_gemm) == ("fused", True)


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "counts"),
    [
        (27, 4, 1, [7, 7, 7, 6]),
        (61, 8, 1, [8, 8, 8, 8, 8, 7, 7, 7]),
        (126, 8, 1, [16] * 6 + [15] * 2),
        (60, 4, 2, [8] * 4 + [7] * 4),
        (32, 4, 1, [8] * 4),
    ],
)
def test_what_is_left_stands_on_the_first_stages(
    tmp_path: Path, layers: int, pp: int, vpp: int, counts: list[int]
) -> None:
    loaded = load(
        tmp_path, seq_length=4096, num_layers=layers, pipeline_model_parallel_size=pp,
        num_virtual_stages_per_pipeline_rank=vpp,
    )  # fmt: skip
    made = project(loaded.workload(8), catalogue.cluster("mi300x"))
    assert [len(chunk.layers) for chunk in chunks(loaded.model, made.resolved.workload.recipe)] == counts
    assert any("one more on the first" in text for text in loaded.assumed) == (len(set(counts)) > 1)


def test_adapters(tmp_path: Path) -> None:
    lora = {"enabled": True, "dim": 16, "target_modules": ["linear_qkv"]}
    recipe = recipe_of(tmp_path, seq_length=4096, lora=lora)
    assert recipe.lora is not None
    assert (recipe.lora.dim, recipe.lora.targets) == (16, ("linear_qkv",))
    assert recipe_of(tmp_path, seq_length=4096, lora={**lora, "enabled": False}).lora is None


def test_the_vocabulary_is_the_tokenizers_or_the_one_of_mock_data(tmp_path: Path) -> None:
    real, mock = load(tmp_path, seq_length=4096), load(tmp_path, seq_length=4096, mock_data=True)
    assert (real.model.vocab_size, mock.model.vocab_size) == (128256, 131072)
    assert all(any("vocab_size" in text for text in loaded.assumed) for loaded in (real, mock))
    assert load(tmp_path, seq_length=4096, mock_data=True, vocab_size=50304).model.vocab_size == 50304


def test_keys_where_primus_reads_nothing_are_named(tmp_path: Path) -> None:
    loaded = load(tmp_path, seq_length=4096, beside={"micro_batch_size": 7})
    assert loaded.recipe is not None
    assert loaded.recipe.micro_batch_size == 2
    assert any("micro_batch_size: beside modules" in text for text in loaded.assumed)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"model_type": "mamba"}, "Mamba layers"),
        ({"model_type": "mamba", "spec": ["x.hybrid", "gdn_hybrid_stack_spec"]}, "gated delta-net"),
        ({"experimental_attention_variant": "dsa"}, "DeepSeek sparse attention"),
    ],
)
def test_architectures_of_a_later_step_are_named(tmp_path: Path, keys: dict[str, Any], reason: str) -> None:
    loaded = load(tmp_path, seq_length=4096, **keys)
    with pytest.raises(Unsupported, match=reason):
        project(loaded.workload(8), catalogue.cluster("mi300x"))


@pytest.mark.parametrize("word", ["v4_indexer_distill_loss_coeff", "dsa_indexer_loss_coeff"])
def test_compressed_attention_and_streams_are_read(tmp_path: Path, word: str) -> None:
    sizes = {"q_lora_rank": 64, "qk_pos_emb_head_dim": 16, "o_groups": 2, "o_lora_rank": 32, "attn_sliding_window": 128}
    stated = {"hc_mult": 4, "compress_ratios": "[0]*16+[4,128]*8+[0]", "attn_sink": True, "index_topk": 256}
    assert not load(tmp_path, seq_length=4096, **sizes, **stated, **{word: 0.0}).model.compressed.trained
    stated |= {word: 0.01}
    model = load(tmp_path, seq_length=4096, **sizes, **stated).model
    assert model is not None
    assert (model.hyper_connections, model.attention_sinks, model.compressed.index_topk) == (4, True, 256)
    assert model.compressed.trained
    assert [kind.name.split("_")[0] for kind in model.layer_kinds[15:18]] == [
        "compressed0",
        "compressed4",
        "compressed128",
    ]
    with pytest.raises(InputError, match="compress_ratios"):
        project(
            load(tmp_path, seq_length=4096, **sizes, compress_ratios="[4]").workload(8), catalogue.cluster("mi300x")
        )


@pytest.mark.parametrize("given", [{"model_type": "flux_schnell"}, {"framework": "diffusion"}])
def test_what_is_no_language_model_says_so(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="not a language model"):
        load(tmp_path, **given)


@pytest.mark.parametrize(
    ("pattern", "every"), [([1, 0] * 16, 2), ([1, 1, 1, 0] * 8, 4), ([1] * 32, None), (2, 2), ([0] * 32, 1)]
)
def test_windowed_layers_by_a_list(tmp_path: Path, pattern: object, every: int | None) -> None:
    model = load(tmp_path, seq_length=4096, window_size=[128, 0], window_attn_skip_freq=pattern).model
    assert (model.window_size, model.window_attn_skip_freq) == (128, every)


def test_an_irregular_list_of_windowed_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="window_attn_skip_freq"):
        load(tmp_path, seq_length=4096, window_size=[128, 0], window_attn_skip_freq=[1, 0, 0, *[1] * 29])


def test_a_preset_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unheard_of\.yaml"):
        load(tmp_path, "unheard_of")


@pytest.mark.parametrize(
    ("keys", "schedule", "vpp"),
    [
        ({"patch_zero_bubble": True, "enable_zero_bubble": True}, "zb-h1", 1),
        ({"patch_zero_bubble": True, "enable_zero_bubble": True, "zero_bubble_v_schedule": True}, "v-half", 2),
        ({"patch_zero_bubble": True, "enable_1f1b_v": True}, "v-1f1b", 2),
        (
            {
                "patch_zero_bubble": True,
                "enable_zero_bubble": True,
                "zero_bubble_v_schedule": True,
                "zero_bubble_v_schedule_mem_setup": "zb",
            },
            "zbv",
            2,
        ),
        ({"patch_primus_pipeline": True, "pp_algorithm": "v-min"}, "v-min", 2),
        ({"patch_primus_pipeline": True, "pp_algorithm": "zero-bubble"}, "zb-h1", 1),
        ({"patch_primus_pipeline": True, "pp_algorithm": "zero-bubble-heuristic"}, "zb-2p", 1),
        ({"enable_zero_bubble": True, "pp_algorithm": "zbv-formatted"}, None, 1),
    ],
)
def test_schedules_act_when_their_patch_is_on(
    tmp_path: Path, keys: dict[str, Any], schedule: str | None, vpp: int
) -> None:
    loaded = load(tmp_path, seq_length=4096, pipeline_model_parallel_size=4, **keys)
    assert loaded.recipe is not None
    assert (loaded.recipe.pipeline_schedule, loaded.recipe.vpp) == (schedule, vpp)
    assert project(loaded.workload(8), catalogue.cluster("mi300x")).step_seconds > 0


def test_a_file_that_extends_an_experiment_is_one(tmp_path: Path) -> None:
    """Primus merges the two; what the file itself states beside modules reaches no trainer."""
    file = experiment(checkout(tmp_path), "dense", seq_length=4096)
    child = file.with_name("child.yaml")
    child.write_text(f"extends: [{file.name}]\nmicro_batch_size: 64\n")
    loaded = detect.load(child)
    assert loaded.recipe is not None
    assert (loaded.framework, loaded.recipe.micro_batch_size) == ("primus", 2)
    assert any("micro_batch_size: beside modules" in text for text in loaded.assumed)


def test_more_layers_than_there_are_means_all_of_them(tmp_path: Path) -> None:
    """Method block recomputes the first n layers of a stage; experiments say 80 of models with fewer."""
    full = {"seq_length": 4096, "recompute_granularity": "full", "recompute_method": "block"}
    times = {
        count: project(
            load(tmp_path, **full, recompute_num_layers=count).workload(8), catalogue.cluster("mi300x")
        ).step_seconds
        for count in (16, 32, 80)
    }
    assert times[16] < times[32] == times[80]


def test_a_trainer_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    assert load(tmp_path, trainer="my_trainer", seq_length=4096).model.num_layers == 32
