"""Trainers' files and command lines by ``data/trainers.yaml``, and what a table cannot say: DeepSpeed, FSDP, scales."""

import json
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import put, refusal

from projector.errors import InputError, Unsupported
from projector.intake import detect, huggingface
from projector.intake.loaded import Loaded
from projector.workload.parameters import count
from projector.workload.validate import problems
from tests.workloads import written

TABLE = yaml.safe_load((Path(__file__).parent / "data/trainers.yaml").read_text())
FILES = TABLE.pop("files")
CASES = [
    pytest.param({"of": of, **case}, id=f"{of}: {name}") for of, table in TABLE.items() for name, case in table.items()
]


def read(root: Path, case: Mapping[str, Any]) -> Loaded:
    for name, content in case.get("beside", {}).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(json.dumps(content))
    base = {key: value for key, value in FILES[case["of"]].items() if key != case.get("without")}
    file = written(root / "own.yaml", case.get("only", base), case.get("set", {}))
    if "script" in case:
        file = put(root / "run.sh", f"#!/bin/bash\n{case['script']}\n")
    return detect.load(file, **case.get("given", {}))


def listed(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_read_as_the_table_says(tmp_path: Path, case: Mapping[str, Any]) -> None:
    for key, kind in (("refused", InputError), ("unsupported", Unsupported)):
        if key in case:
            refusal(read, tmp_path, case, match=case[key], kind=kind)
            return
    loaded = read(tmp_path, case)
    work = loaded.workload() if loaded.gpus else loaded.workload(case.get("gpus", 8))
    assert problems(work) == ()
    for place, value in case.get("is", {}).items():
        held = attrgetter(place)(work if place.startswith(("recipe", "model", "padded")) else loaded)
        assert (list(held) if isinstance(held, tuple) else held) == value, place
    if "parameters" in case:
        total, near = case["parameters"]
        assert count(loaded.model).total == pytest.approx(total, rel=near)
    assert sorted(case.get("told", loaded.unmodelled)) == sorted(loaded.unmodelled)
    for word in listed(case.get("tells", [])):
        assert any(word in text for text in loaded.unmodelled)
    assert case.get("said", "") in "\n".join(loaded.assumed)
    assert case.get("unsaid", "nothing of the kind") not in "\n".join(loaded.assumed)
    assert set(case.get("ignored", "").split()) <= set(loaded.ignored)


BOTH = pytest.mark.parametrize("of", ["axolotl", "llama_factory"])
FULL, GRADIENTS = "optim_grads_params", "optim_grads"


@BOTH
@pytest.mark.parametrize(("stage", "sharding"), [(0, "no_shard"), (1, "optim"), (2, GRADIENTS), (3, FULL)])
def test_zero_is_that_of_the_file_beside_or_above(tmp_path: Path, of: str, stage: int, sharding: str) -> None:
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": zero, "train_batch_size": "auto"}))
    (tmp_path / "runs").mkdir()
    loaded = read(tmp_path / "runs", {"of": of, "set": {"deepspeed": "zero.json"}})
    assert (loaded.framework, loaded.recipe.data_parallel_sharding) == ("deepspeed", sharding)
    assert loaded.recipe.optimizer_cpu_offload is True
    assert any("offload_param" in text for text in loaded.unmodelled)
    refusal(read, tmp_path / "runs", {"of": of, "set": {"deepspeed": "gone.json"}}, match=r"deepspeed.*gone")


@BOTH
@pytest.mark.parametrize(
    ("word", "sharding", "offloaded", "told"),
    [
        ("full_shard auto_wrap", FULL, None, False),
        ("shard_grad_op auto_wrap offload", GRADIENTS, True, False),
        ("no_shard", "no_shard", None, False),
        ("hybrid_shard auto_wrap", FULL, None, True),
        ("hybrid_shard_zero2", GRADIENTS, None, True),
    ],
)
def test_words_of_fsdp(tmp_path: Path, of: str, word: str, sharding: str, offloaded: bool | None, told: bool) -> None:
    loaded = read(tmp_path, {"of": of, "set": {"fsdp": word}})
    assert (loaded.recipe.data_parallel_sharding, loaded.recipe.optimizer_cpu_offload) == (sharding, offloaded)
    assert any("--data-parallel-shard-size" in text for text in loaded.unmodelled) == told


FSDP = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_machines": 2, "num_processes": 16}
ZERO = {"distributed_type": "DEEPSPEED", "num_machines": 2, "num_processes": 16}


@pytest.mark.parametrize(
    ("file", "options", "gpus", "sharding", "offloaded"),
    [
        (FSDP | {"fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, "", 16, GRADIENTS, None),
        (FSDP | {"fsdp_config": {"fsdp_offload_params": True}}, "--num_processes 8", 8, FULL, True),
        (ZERO | {"deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu"}}, "", 16, FULL, True),
        (ZERO | {"deepspeed_config": {"deepspeed_config_file": "ds.json"}}, "", 16, "optim", None),
        ({"num_machines": 1, "num_processes": 4}, "", 4, "no_shard", None),
        (None, "--num_processes 8 --use_fsdp --fsdp_sharding_strategy 2", 8, GRADIENTS, None),
        (None, "--num_processes 8 --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu", 8, FULL, True),
        (None, "--num_processes 8 --use_deepspeed", 8, GRADIENTS, None),
    ],
)
@pytest.mark.parametrize("program", ["-m axolotl.cli.train own.yaml", "train.py"])
def test_accelerate_hands_on_what_its_file_and_options_say(
    tmp_path: Path,
    program: str,
    file: Mapping[str, object] | None,
    options: str,
    gpus: int,
    sharding: str,
    offloaded: bool | None,
) -> None:
    words = FILES["llama_factory"].items() if "own" not in program else ()
    beside = {
        "ds.json": {"zero_optimization": {"stage": 1}},
        "acc.yaml": {"compute_environment": "LOCAL_MACHINE", **(file or {})},
    }
    said = " ".join(f"--{key} {value}" for key, value in words if key != "finetuning_type")
    script = f"accelerate launch {'--config_file acc.yaml' if file else ''} {options} {program} {said}"
    loaded = read(tmp_path, {"of": "axolotl", "beside": beside, "script": script})
    assert (loaded.gpus, loaded.recipe.data_parallel_sharding) == (gpus, sharding)
    assert loaded.recipe.optimizer_cpu_offload is offloaded
    assert loaded.framework == ("deepspeed" if "deepspeed" in f"{file} {options}" else "pytorch")


def test_attention_and_mlp_of_mpt() -> None:
    config = {
        "model_type": "mpt", "d_model": 1024, "n_heads": 16, "n_layers": 2, "vocab_size": 1000, "max_seq_len": 4096,
    }  # fmt: skip
    rotary = {"rope": True, "attn_type": "grouped_query_attention", "kv_n_heads": 4, "sliding_window_size": 256}
    model = huggingface.from_mapping(
        {**config, "attn_config": rotary, "ffn_config": {"ffn_type": "mptglu", "ffn_hidden_size": 2816}}, "x"
    ).model
    assert (model.position_embedding_type, model.num_query_groups, model.window_size) == ("rope", 4, 256)
    assert (model.gated_linear_unit, model.ffn_hidden_size) == (True, 2816)
    plain = huggingface.from_mapping(config, "x").model
    assert (plain.num_query_groups, plain.position_embedding_type) == (16, "learned_absolute")
    assert plain.gated_linear_unit is False
    shared = huggingface.from_mapping({**config, "attn_config": {"attn_type": "multiquery_attention"}}, "x").model
    assert shared.num_query_groups == 1
    refusal(huggingface.from_mapping, {**config, "ffn_config": {"ffn_type": "mb_dmoe"}}, "x", match="ffn_type")


def test_a_scale_doubles_heads_and_mlp_then_width_then_layers(tmp_path: Path) -> None:
    counts = []
    for scale in (1, 2, 4, 8, 64, 128):
        case = {"of": "maxtext", "without": "model_name", "set": {"global_parameter_scale": scale}}
        model = read(tmp_path, case).model
        counts.append(count(model).total / scale)
        doubled = (model.num_layers // 16) * (model.hidden_size // 2048) * (model.ffn_hidden_size // 7168)
        assert doubled == scale
        assert model.num_attention_heads * 7168 == model.ffn_hidden_size * 16
    assert max(counts[-2:]) < 1.0e9  # the embedding grows less than the layers


def test_what_torchtune_packs_is_all_that_it_leaves_open(tmp_path: Path) -> None:
    assert [text for text in read(tmp_path, {"of": "torchtune"}).unmodelled if "dataset.packed" not in text] == []


@pytest.mark.parametrize(
    ("place", "told"), [("step2_dpo_finetuning/run.sh", True), ("rlhf/run_sft.sh", False), ("adpotion/run.sh", False)]
)
def test_a_folder_says_what_a_program_trains(tmp_path: Path, place: str, told: bool) -> None:
    file = tmp_path / place
    file.parent.mkdir()
    words = "--model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --max_length 512"
    file.write_text(f"torchrun --nproc_per_node 8 main.py {words}\n")
    assert any("preference training" in text for text in detect.load(file).unmodelled) is told
