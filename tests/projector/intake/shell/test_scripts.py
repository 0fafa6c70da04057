# ruff: noqa: E501 (shell text in tables)
"""Launch scripts as users write them: what is launched wins, what is not known is named."""

from pathlib import Path

import pytest
from asked import put, refusal
from tabled import scripts as written_out
from tabled import tabled

from projector.errors import Unsupported
from projector.intake import detect, scripts

MODEL = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 2 --bf16"
TOKENIZER = "--tokenizer-type Llama2Tokenizer --tokenizer-model /t"
TP = "--tensor-model-parallel-size"
RUN = "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py"


def load(tmp_path, text, args=(), **env):
    file = put(tmp_path / "train.sh", "#!/bin/bash\n" + text)
    return detect.load(file, args=args, env=env)


def seen(loaded):
    recipe = loaded.recipe
    return (loaded.gpus, recipe.tp, recipe.pp, recipe.micro_batch_size, recipe.global_batch_size)


TRAPS = written_out(Path(__file__).parents[1] / "data/traps.sh")


@pytest.mark.parametrize("name", TRAPS)
def test_what_is_launched(name, tmp_path):
    text = TRAPS[name].replace("@RUN", RUN).replace("@MODEL", MODEL).replace("@TP", TP)
    assert seen(load(tmp_path, text)) == (16, 4, 1, 2, 8)


def test_arguments_and_environment(tmp_path):
    text = (
        "case $1 in 8B) L=32; H=4096;; 70B) L=80; H=8192;; *) echo usage; exit 1;; esac\n"
        f"TP=${{TP:-2}}\ntorchrun --nnodes $NNODES --nproc_per_node 8 pretrain_gpt.py {MODEL} --num-layers $L --hidden-size $H "
        f"--micro-batch-size $2 {TP} $TP"
    )
    loaded = load(tmp_path, text, ("70B", "1"), NNODES="4", TP="8")
    assert (*seen(loaded), loaded.model.num_layers) == (32, 8, 1, 1, 4, 80)
    assert "environment=NNODES=4 TP=8" in loaded.assumed
    refusal(load, tmp_path, text, match="--args")
    refusal(load, tmp_path, text, ("8B", "1"), match="--env NNODES")


UNKNOWN = tabled("readers", "scripts_unknown")


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_named(text, tmp_path):
    refusal(load, tmp_path, text.replace("MODEL TP", f"{MODEL} {TP}").replace("MODEL", MODEL), match=UNKNOWN[text])


def test_a_value_of_the_environment_stands_for_a_command(tmp_path):
    text = f"G=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_node $G pretrain_gpt.py {MODEL}"
    assert load(tmp_path, text, G="8").gpus == 8


def test_launches_that_agree_are_one(tmp_path):
    text = (
        f"A='{MODEL}'\nfor r in 0 1; do torchrun --nnodes 2 --nproc_per_node 8 --node_rank $r pretrain_gpt.py $A & done"
    )
    assert load(tmp_path, text).gpus == 16


@pytest.mark.parametrize(
    ("stage", "sharding"), [(0, "optim"), (1, "optim"), (2, "optim_grads"), (3, "optim_grads_params")]
)
def test_deepspeed_configuration_of_the_script(stage, sharding, tmp_path):
    text = (
        f"MBS=2; Z={stage}\ncat <<EOF > ds.json\n"
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": $MBS, "bf16": {"enabled": true},\n'
        ' "zero_optimization": {"stage": $Z}}\nEOF\n'
        f"deepspeed --num_gpus 8 --num_nodes 4 pretrain_gpt.py {MODEL} --global-batch-size 64 --deepspeed --deepspeed_config ds.json "
        "--checkpoint-activations"
    )
    loaded = load(tmp_path, text)
    assert (loaded.framework, loaded.gpus) == ("megatron-deepspeed", 32)
    assert (loaded.recipe.data_parallel_sharding, loaded.recipe.recompute_granularity) == (sharding, "full")
    half = load(tmp_path, text.replace("bf16", "fp16"))  # stage 0 shares what bf16 needs, and nothing in fp16
    assert half.recipe.data_parallel_sharding == (sharding if stage else "no_shard")


@pytest.mark.parametrize(
    ("stated", "options", "told"),
    [
        ('"bf16": {"enabled": true}', "--fp16", ["fp16 (the command line's; ds.json says bf16)"]),
        ('"bf16": {"enabled": true}, "fp16": {"enabled": false}', "--bf16", []),
        (
            '"zero_optimization": {"stage": 2}',
            "--bf16 --zero-stage 1",
            ["zero_stage=2 (ds.json 2, the command line 1)"],
        ),
        ('"train_micro_batch_size_per_gpu": 1', "--bf16", ["micro_batch_size=2 (ds.json 1, the command line 2)"]),
        ('"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64', "--bf16", []),
    ],
)
def test_a_deepspeed_configuration_that_says_something_else_is_told(stated, options, told, tmp_path):
    text = (
        f"cat <<'EOF' > ds.json\n{{{stated}}}\nEOF\ndeepspeed --num_gpus 8 pretrain_gpt.py {MODEL.replace('--bf16', '')} "
        f"--micro-batch-size 2 --global-batch-size 64 --deepspeed --deepspeed_config ds.json {options}"
    )
    assert [line for line in load(tmp_path, text).assumed if "command line" in line] == told


@pytest.mark.parametrize(("section", "told"), tabled("readers", "what_stands_deep_in_deepspeeds_configuration_is_told"))
def test_what_stands_deep_in_deepspeeds_configuration_is_told(section, told, tmp_path):
    text = (
        f"cat <<'EOF' > ds.json\n{{{section}}}\nEOF\n"
        f"deepspeed --num_gpus 8 pretrain_gpt.py {MODEL} --global-batch-size 64 --deepspeed --deepspeed_config ds.json "
    )
    unmodelled = [text for text in load(tmp_path, text).unmodelled if "." in text.partition("=")[0]]
    assert len(unmodelled) == bool(told)
    assert all(told in text for text in unmodelled)


RECOMPUTE = tabled("readers", "scripts_recompute")


@pytest.mark.parametrize("words", RECOMPUTE)
def test_recompute_in_the_words_of_every_year(words, tmp_path):
    recipe = load(tmp_path, f"{RUN} {MODEL} {words}").recipe
    assert (recipe.recompute_granularity, recipe.recompute_method, recipe.recompute_num_layers) == RECOMPUTE[words]


VOCABULARY = {
    TOKENIZER: 32000,
    "--tokenizer-type GPT2BPETokenizer --vocab-file $V --merge-file $M": 50257,
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B": 128256,
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model /data/Qwen2.5-7B-Instruct/": 151665,
    "--tokenizer-type NullTokenizer --vocab-size 128256": 128257,
    "--tokenizer-type SentencePieceTokenizer --tokenizer-model /m/deepseek-v3/tokenizer.model": 128815,
    "--vocab-size 100": 100,
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model $T": 128256,
}


@pytest.mark.parametrize("words", VOCABULARY)
def test_vocabulary(words, tmp_path):
    loaded = load(tmp_path, f"{RUN} {MODEL} {words}")
    assert loaded.model.vocab_size == VOCABULARY[words]
    stated = [text for text in loaded.assumed if text.startswith("vocab_size=")]
    assert bool(stated) == (words != "--vocab-size 100")


def test_an_encoder_and_a_decoder_have_tokens_and_layers_of_their_own(tmp_path):
    """NVIDIA/Megatron-LM@157006d6 examples/t5/train_t5_220m_distributed.sh, its arguments; BERT's words and 100 more."""
    stated = (
        "--encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 --num-attention-heads 12 --kv-channels 64 "
        "--ffn-hidden-size 3072 --encoder-seq-length 512 --max-position-embeddings 512 --micro-batch-size 64 "
        "--global-batch-size 512 --bf16 --vocab-extra-ids 100 --vocab-file bert-large-cased-vocab.txt "
        "--tokenizer-type BertWordPieceCase --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1"
    )
    command = f"torchrun --nproc_per_node 8 pretrain_t5.py {stated}"
    loaded = load(tmp_path, f"{command} --decoder-seq-length 128")
    assert (loaded.recipe.seq_length, loaded.recipe.encoder_seq_length, loaded.gpus) == (128, 512, 8)
    assert (loaded.model.num_layers, loaded.model.encoder.num_layers) == (12, 12)
    assert (loaded.model.vocab_size, loaded.model.position_embedding_type) == (29096, "learned_absolute")
    unsaid = load(tmp_path, f"{command.replace('--tokenizer-type BertWordPieceCase', '')} --decoder-seq-length 128")
    assert unsaid.model.vocab_size == 30622  # pretrain_t5.py, args_defaults
    refusal(load, tmp_path, command, match="decoder_seq_length")


def test_what_a_script_leaves_open_may_be_said_beside_it(tmp_path):
    hub = "accelerate launch --num_processes 8 sft.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --bf16"
    for command in (f"{RUN} {MODEL.replace('--seq-length 2048', '')}", hub):
        refusal(load, tmp_path, command, match="seq_length")
        file = tmp_path / "train.sh"
        assert detect.load(file, said={"seq_length": 4096}).recipe.seq_length == 4096


def test_a_file_above_is_the_same_by_either_path(tmp_path):
    (tmp_path / "common.sh").write_text("TP=4")
    (tmp_path / "jobs").mkdir()
    for name in ("../common.sh", tmp_path / "common.sh"):
        assert load(tmp_path / "jobs", f"source {name}\n{RUN} {MODEL} {TP} $TP").recipe.tp == 4


OTHERS = tabled("readers", "scripts_others")


@pytest.mark.parametrize("command", OTHERS)
def test_other_trainers_are_named(command, tmp_path):
    refusal(load, tmp_path, f"torchrun --nproc_per_node 8 {command} {MODEL}", match=OTHERS[command], kind=Unsupported)


def test_the_dropout_that_nobody_turned_off_is_told(tmp_path):
    told = {"hidden_dropout=0.1"}
    path = tmp_path / "run.sh"
    words = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --global-batch-size 16 --vocab-size 32000"
    loaded = scripts.load(put(path, words))
    assert told <= set(loaded.unmodelled)
    assert loaded.recipe.attention_dropout == 0.1
    path.write_text(f"{words} --attention-dropout 0.0 --hidden-dropout 0")
    assert not told & set(scripts.load(path).unmodelled)
