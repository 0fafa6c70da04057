"""Primus experiments of Megatron-LM: presets found by themselves, defaults of a whole configuration, Primus' switches."""

from pathlib import Path
from typing import Any

import pytest
from asked import put, refusal
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.intake import detect, primus
from projector.intake.loaded import Loaded
from projector.projection import project
from projector.workload.layout import chunks
from tests.projector.intake.primus_tree import checkout, experiment


def load(root: Path, model: str = "dense", **given: Any) -> Loaded:
    return primus.load(experiment(checkout(root), model, **given), env={})


@pytest.mark.parametrize("name", ["PRIMUS_PATH", "PRIMUS_ROOT"])
def test_presets_are_found_where_the_environment_says(tmp_path: Path, name: str) -> None:
    tree = checkout(tmp_path / "checkout")
    file = experiment(tmp_path / "elsewhere", "dense", seq_length=4096)
    assert primus.load(file, env={name: str(tree)}).model.num_layers == 32
    refusal(primus.load, file, env={}, match="configs folder")


def test_nothing_is_open_in_a_whole_configuration(tmp_path: Path) -> None:
    loaded = load(tmp_path, "experts", seq_length=4096, expert_model_parallel_size=8)
    open_fields = set(resolve(loaded.workload(8), "amd").assumed)
    assert {text.partition("=")[0] for text in open_fields} <= {"numa_binding"}
    assert loaded.recipe.recompute_granularity == "none"
    assert (loaded.recipe.overlap_grad_reduce, loaded.recipe.moe_permute_fusion) == (False, False)
    assert loaded.recipe.moe_router_force_load_balancing is False


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
def test_what_is_left_stands_on_the_first_stages(tmp_path, layers: int, pp: int, vpp: int, counts: list[int]) -> None:
    loaded = load(
        tmp_path, seq_length=4096, num_layers=layers, pipeline_model_parallel_size=pp,
        num_virtual_stages_per_pipeline_rank=vpp,
    )  # fmt: skip
    made = project(loaded.workload(8), catalogue.cluster("mi300x"))
    assert [len(chunk.layers) for chunk in chunks(loaded.model, made.resolved.workload.recipe)] == counts
    assert any("one more on the first" in text for text in loaded.assumed) == (len(set(counts)) > 1)


@pytest.mark.parametrize(("keys", "reason"), tabled("readers", "architectures_of_a_later_step_are_named"))
def test_architectures_of_a_later_step_are_named(tmp_path: Path, keys: dict[str, Any], reason: str) -> None:
    loaded = load(tmp_path, seq_length=4096, **keys)
    refusal(project, loaded.workload(8), catalogue.cluster("mi300x"), match=reason, kind=Unsupported)


@pytest.mark.parametrize("word", ["v4_indexer_distill_loss_coeff", "dsa_indexer_loss_coeff"])
def test_compressed_attention_and_streams_are_read(tmp_path: Path, word: str) -> None:
    sizes = {"q_lora_rank": 64, "qk_pos_emb_head_dim": 16, "o_groups": 2, "o_lora_rank": 32, "attn_sliding_window": 128}
    stated = {"hc_mult": 4, "compress_ratios": "[0]*16+[4,128]*8+[0]", "attn_sink": True, "index_topk": 256}
    assert not load(tmp_path, seq_length=4096, **sizes, **stated, **{word: 0.0}).model.compressed.trained
    stated |= {word: 0.01}
    model = load(tmp_path, seq_length=4096, **sizes, **stated).model
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


@pytest.mark.parametrize(("keys", "schedule", "vpp"), tabled("readers", "schedules_act_when_their_patch_is_on"))
def test_schedules_act_when_their_patch_is_on(tmp_path, keys: dict[str, Any], schedule: str | None, vpp: int) -> None:
    loaded = load(tmp_path, seq_length=4096, pipeline_model_parallel_size=4, **keys)
    assert (loaded.recipe.pipeline_schedule, loaded.recipe.vpp) == (schedule, vpp)
    assert project(loaded.workload(8), catalogue.cluster("mi300x")).step_seconds > 0


def test_a_file_that_extends_an_experiment_is_one(tmp_path: Path) -> None:
    """Primus merges the two; what the file itself states beside modules reaches no trainer."""
    file = experiment(checkout(tmp_path), "dense", seq_length=4096)
    loaded = detect.load(put(file.with_name("child.yaml"), f"extends: [{file.name}]\nmicro_batch_size: 64\n"))
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
