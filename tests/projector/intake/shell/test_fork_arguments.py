"""Arguments of Megatron-LM's forks on a launch script's command line: in its own words, refused by name, or told."""

from pathlib import Path

import pytest
from asked import refusal
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import scripts
from projector.intake.loaded import Loaded
from projector.workload.layout import chunks
from projector.workload.lora import LoRA

_BASE = (
    "--num-layers 32 --hidden-size 1024 --num-attention-heads 16 --ffn-hidden-size 4096 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 "
    "--attention-dropout 0 --hidden-dropout 0"
)

_EXPERTS = "--num-experts 8 --moe-router-topk 2"


def _loaded(folder: Path, options: str, *, before: str = "") -> Loaded:
    path = folder / "run.sh"
    path.write_text(f"#!/bin/bash\n{before}\ntorchrun --nproc_per_node 8 pretrain_gpt.py {_BASE} {options}\n")
    return scripts.load(path)


def _layers(loaded: Loaded) -> list[int]:
    assert loaded.recipe is not None
    return [len(chunk.layers) for chunk in chunks(loaded.model, loaded.recipe)]


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--overlapped-distributed-optimizer", "data_parallel_sharding", "optim"),
        ("--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo", "cp_comm_type", "a2a"),
        ("--context-parallel-size 2 --context-parallel-algo megatron_cp_algo", "cp_comm_type", "p2p"),
        ("--optimizer hybridadam", "optimizer_cpu_offload", True),
        ("--cpu-optimizer", "optimizer_cpu_offload", True),
        ("--pipeline-model-parallel-size 4 --enable-zbh1-pipeline", "pipeline_schedule", "zb-h1"),
        (f"{_EXPERTS} --tensor-model-parallel-size 2 --expert-model-parallel-size 2 --moe-tp-extend-ep", "ep", 4),
        (f"{_EXPERTS} --tensor-model-parallel-size 2 --expert-model-parallel-size 2 --moe-tp-extend-ep", "etp", 1),
    ],
)
def test_a_forks_word_is_read_as_megatrons(tmp_path: Path, options: str, field: str, value: object) -> None:
    loaded = _loaded(tmp_path, options)
    assert getattr(loaded.recipe, field) == value
    assert not loaded.unmodelled


def test_gates_and_adapters_of_forks(tmp_path: Path) -> None:
    plain, *gated = (_loaded(tmp_path, option).model for option in ("", "--swiglu", "--gelu-tanh", "--t5-swiglu"))
    assert not plain.gated_linear_unit
    assert all(model.gated_linear_unit and model.ffn_hidden_size == plain.ffn_hidden_size for model in gated)
    tuned = _loaded(tmp_path, "--lora-r 8 --lora-alpha 32 --lora-target-modules linear_qkv linear_proj").recipe
    assert tuned.lora == LoRA(dim=8, targets=("linear_qkv", "linear_proj"))
    assert _loaded(tmp_path, "--lora-r 8").recipe.lora is None


@pytest.mark.parametrize("words", ["--bf16 banana", "--micro-batch-size 1 2", "--swiglu num-layers 4"])
def test_a_word_of_no_option_is_refused(tmp_path: Path, words: str) -> None:
    refusal(_loaded, tmp_path, words, match="argparse stops at it")


@pytest.mark.parametrize(
    ("word", "on"), [("false", False), ("=False", False), ("0", False), ("true", True), ("", True)]
)
def test_a_switch_with_a_value_says_it(tmp_path: Path, word: str, on: bool) -> None:
    option = f"--sequence-parallel{'' if word.startswith('=') else ' '}{word} --tensor-model-parallel-size 2"
    assert _loaded(tmp_path, option).recipe.sequence_parallel is on


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--pipeline-model-parallel-size 4 --num-layer-list 7,8,9,8", [7, 8, 9, 8]),
        ("--pipeline-model-parallel-size 4 --custom-pipeline-layers 0,10,11,11", [0, 10, 11, 11]),
        ("--pipeline-model-parallel-size 4 --hetero-pipeline-layer-split 7 8 9 8", [7, 8, 9, 8]),
        ("--num-layers 61 --pipeline-model-parallel-size 8 --decoder-first-pipeline-num-layers 5", [5, *[8] * 7]),
        ("--pipeline-model-parallel-size 4 --noop-layers 0,31", [7, 8, 8, 7]),
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 --noop-layers 30,31",
            [4, 4, 4, 4, 4, 4, 4, 2],
        ),
        (
            "--pipeline-model-parallel-size 4 --schedules-method dualpipev --noop-layers 29,30,31",
            [4, 4, 4, 4, 4, 4, 4, 1],
        ),
        ("--num-layers 22 --pipeline-model-parallel-size 8 --allow-padding-num-layers", [2, 3, 3, 3, 3, 3, 3, 2]),
        ("--num-layers 21 --pipeline-model-parallel-size 8 --allow-padding-num-layers", [2, 2, 3, 3, 3, 3, 3, 2]),
    ],
)
def test_layers_stand_where_the_fork_puts_them(tmp_path: Path, options: str, expected: list[int]) -> None:
    loaded = _loaded(tmp_path, options)
    assert _layers(loaded) == expected
    assert loaded.model.num_layers == sum(expected)


def test_places_without_a_layer_hold_no_experts_either(tmp_path: Path) -> None:
    stages = "--first-k-dense-replace 3 --pipeline-model-parallel-size 4 --noop-layers 1,31"
    assert _loaded(tmp_path, f"{_EXPERTS} {stages}").model.moe.moe_layer_freq == (0, 0, *[1] * 28)


def test_whole_chunks_are_replayed(tmp_path: Path) -> None:
    virtual = "--pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 1 --allow-padding-num-layers"
    replay = "--recompute-granularity full --recompute-method chunk --recompute-num-layers 2"
    loaded = _loaded(tmp_path, f"--num-layers 30 {virtual} {replay}")
    assert loaded.recipe.recompute_layer_ids == tuple(range(15))
    assert _layers(loaded) == [0, *[1] * 30, 0]
    each = (
        "--pipeline-model-parallel-size 4 --custom-pipeline-layers 7,8,9,8 --custom-pipeline-recompute-layers 1,0,2,0"
    )
    counted = _loaded(tmp_path, f"{each} --recompute-granularity full --recompute-method block").recipe
    assert counted.recompute_layer_ids == (0, 15, 16)


@pytest.mark.parametrize(("options", "reason"), tabled("readers", "what_is_another_run_is_refused_by_name"))
def test_what_is_another_run_is_refused_by_name(tmp_path: Path, options: str, reason: str) -> None:
    refusal(_loaded, tmp_path, options, match=reason, kind=Unsupported)


@pytest.mark.parametrize(
    "options",
    ["--my-own-tensor-parallel-degree 1", "--schedule-method vanilla", "--log-parallel-sizes", "--tp-2d false"],
)
def test_what_cuts_nothing_is_no_reason(tmp_path: Path, options: str) -> None:
    assert _loaded(tmp_path, options).recipe is not None


@pytest.mark.parametrize("options", ["--gas 8", "--deepspeed --deepspeed_config ds.json"])
def test_what_is_accumulated_is_in_the_batch(tmp_path: Path, options: str) -> None:
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}')
    path = tmp_path / "run.sh"
    base = _BASE.replace("--global-batch-size 64", "--stage sft")
    path.write_text(
        f"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py {base} --pipe-parallel-size 4 {options}\n"
    )
    recipe = scripts.load(path).recipe
    assert (recipe.pp, recipe.micro_batch_size, recipe.global_batch_size) == (4, 1, 8 * 2)


def test_an_accumulation_that_only_a_run_knows_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    base = _BASE.replace("--global-batch-size 64", "--gas $STEPS")
    path.write_text(f"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py {base}\n")
    refusal(scripts.load, path, match="gradient_accumulation_steps")
    assert scripts.load(path, env={"STEPS": "3"}).recipe.global_batch_size == 24


@pytest.mark.parametrize(("options", "key"), tabled("readers", "what_megatron_asserts_is_an_error"))
def test_what_megatron_asserts_is_an_error(tmp_path: Path, options: str, key: str) -> None:
    assert key in {problem.key for problem in refusal(_loaded, tmp_path, options).problems}


def test_a_count_that_only_a_run_prints_is_no_zero(tmp_path: Path) -> None:
    counted = "N=$(($(ds_ssh nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)-2))"
    with pytest.raises(InputError, match="known only when it runs"):
        _loaded(tmp_path, "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size $N", before=counted)


def test_places_to_fill_in_are_told(tmp_path: Path) -> None:
    loaded = _loaded(tmp_path, "--data-path $DATA", before="DATA=/data/<YOUR DATA>/text_document")
    assert any("<YOUR DATA>" in note for note in loaded.assumed)
    refusal(_loaded, tmp_path, "--num-layers $LAYERS", before="LAYERS=<number of layers>", match="fill in")


def test_a_template_beside_the_script_is_filled_in_by_sed(tmp_path: Path) -> None:
    made = 'sed "s/STAGE/2/" ds_TEMPLATE.json | sed "s/GBS/${GBS}/" > ds.json'
    options = "--deepspeed --deepspeed_config ds.json"
    refusal(_loaded, tmp_path, options, before=f"GBS=64\n{made}", match=r"ds_TEMPLATE\.json")
    (tmp_path / "ds_TEMPLATE.json").write_text('{"train_batch_size": GBS, "zero_optimization": {"stage": STAGE}}')
    loaded = _loaded(tmp_path, options, before=f"GBS=64\n{made}")
    assert loaded.recipe.data_parallel_sharding == "optim_grads"


@pytest.mark.parametrize(
    ("name", "size"),
    [("models/ver3.0/llm-jp-tokenizer-100k.ver3.0b1.model", 99574), ("org/test_150k_vocab_tokenizer", 150_000)],
)
def test_a_tokenizers_name_counts_before_its_type(tmp_path: Path, name: str, size: int) -> None:
    path = tmp_path / "run.sh"
    line = _BASE.replace("--vocab-size 32000", f"--tokenizer-type Llama2Tokenizer --tokenizer-model {name}")
    path.write_text(f"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py {line}\n")
    assert scripts.load(path).model.vocab_size == size


def test_dualpipev_is_two_chunks_a_rank_with_exchanges_beside_the_other_direction(tmp_path: Path) -> None:
    recipe = _loaded(tmp_path, "--schedules-method dualpipev --moe-fb-overlap --pipeline-model-parallel-size 4").recipe
    assert (recipe.pipeline_schedule, recipe.vpp, recipe.pp) == ("dualpipe-v", 2, 4)
    assert recipe.overlap_moe_expert_parallel_comm


def test_the_gate_of_shared_experts_has_another_name_in_mindspeed(tmp_path: Path) -> None:
    shared = f"{_EXPERTS} --moe-shared-expert-intermediate-size 2048"
    for option in ("--shared-expert-gate", "--moe-shared-expert-gate"):
        assert _loaded(tmp_path, f"{shared} {option}").model.moe.moe_shared_expert_gate
    assert not _loaded(tmp_path, shared).model.moe.moe_shared_expert_gate


def test_answers_that_nothing_pads_have_lengths_that_nothing_states(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="lengths that nothing states"):
        _loaded(tmp_path, "--is-instruction-dataset --no-pad-to-seq-lengths")
    for padded in (
        "--is-instruction-dataset",
        "--is-instruction-dataset --no-pad-to-seq-lengths --pack",
        "--no-pad-to-seq-lengths",
    ):
        assert _loaded(tmp_path, padded).recipe.seq_length == 2048


@pytest.mark.parametrize(
    ("options", "month"), tabled("readers", "an_option_that_a_release_no_longer_takes_dates_the_stack")
)
def test_an_option_that_a_release_no_longer_takes_dates_the_stack(tmp_path: Path, options: str, month: str) -> None:
    loaded = _loaded(tmp_path, options)
    assert loaded.framework_date == month
    assert any(text.startswith(f"framework_date={month} (the last") for text in loaded.assumed) == bool(month)
