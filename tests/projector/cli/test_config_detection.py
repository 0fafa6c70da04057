"""What stands in a file decides how it is read, whatever it is called."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_command import DEEPSEEK, MIXTRAL
from hypothesis import given
from hypothesis import strategies as st

from projector.cli import _parser
from projector.cli.parser import parse
from projector.cli.recipe_flags import said
from projector.errors import InputError
from projector.intake import detect, same_question
from projector.workload import zoo
from projector.workload.validate import problems

DATA = Path(__file__).parents[1] / "intake" / "data"
CASE = "model: llama3.1_8b\nrecipe: {micro_batch_size: 1, global_batch_size: 64, seq_length: 4096}\n"


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.txt", "a", "a.log"])
@pytest.mark.parametrize(("source", "family"), [(MIXTRAL, "mixtral"), (DEEPSEEK, "deepseek_v3")])
def test_the_name_does_not_matter(tmp_path, name, source, family):
    file = tmp_path / name
    file.write_text(Path(source).read_text())
    assert detect.load(file).model.family == family


def test_examples_are_valid():
    primus, case = detect.load(MIXTRAL), detect.load(DEEPSEEK)
    assert (primus.framework, primus.gpus) == ("primus", None)
    assert problems(primus.workload(64)) == ()
    assert (case.framework, case.gpus, case.cluster) == ("megatron-lm", 1024, "h100_sxm")
    assert case.model == zoo.load("deepseek_v3")
    assert problems(case.workload()) == ()


def test_log_mapping_and_script(tmp_path):
    assert detect.load(DATA / "dump_mixtral.log").gpus == 64
    args = {"num-layers": 4, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 1024, "vocab-size": 32000}
    args |= {"micro-batch-size": 1, "global-batch-size": 8, "world-size": 8}
    mapping = tmp_path / "args.json"
    mapping.write_text(json.dumps(args))
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py " + " ".join(f"--{key} {value}" for key, value in args.items())
    )
    first, second = detect.load(mapping), detect.load(script)
    assert (first.model.num_layers, first.gpus) == (4, 8)
    assert second.recipe is not None
    assert (second.model.hidden_size, second.model.vocab_size, second.gpus) == (512, 32000, 8)
    # a command line is whole: what it leaves out is Megatron-LM's default, not a profile's
    assert (second.recipe.sequence_parallel, second.recipe.data_parallel_sharding) == (False, "no_shard")


def test_arguments_over_a_known_model(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py "
        "--micro-batch-size 1 --global-batch-size 8 --seq-length 1024 --num-layers 12"
    )
    model = detect.load(script, model="deepseek_v3").model
    assert (model.num_layers, model.hidden_size, model.name) == (12, 7168, "deepseek_v3")


def test_case_keys(tmp_path):
    file = tmp_path / "case.yaml"
    file.write_text(CASE + "nodes: 4\ngpu: b200\nframework: nemo\nframework_date: 2025-06\nnotes: text\n")
    with pytest.raises(InputError, match="gpus"):
        detect.load(file).workload()
    loaded = detect.load(file)
    assert (loaded.nodes, loaded.gpus, loaded.cluster) == (4, None, "b200")
    assert loaded.workload(32).framework_date == "2025-06"
    assert loaded.assumed == ()
    file.write_text(CASE)
    assert detect.load(file).assumed == ("framework=megatron-lm",)


def test_case_model_of_a_base(tmp_path):
    file = tmp_path / "case.yaml"
    file.write_text(CASE.replace("llama3.1_8b", "{base: llama3.1_8b, num_layers: 4}"))
    assert detect.load(file).model.num_layers == 4


@pytest.mark.parametrize("kind", ["primus", "case", "huggingface", "megatron"])
def test_kinds(kind):
    mappings = {
        "primus": {"modules": {}, "model": "x"},
        "case": {"model": "x"},
        "huggingface": {"model_type": "llama", "hidden_size": 4},
        "megatron": {"--num-layers": 4, "model": "gpt"},
    }
    assert detect.kind_of(mappings[kind]) == kind
    assert detect.kind_of(None) == "megatron"


@given(st.fixed_dictionaries({}, optional={
    **{name: st.integers(1, 64) for name in ("tp", "micro_batch_size", "seq_len", "gbs", "lora_alpha")},
    "sequence_parallel": st.booleans(), "recompute_granularity": st.sampled_from(["full", "selective", "nonsense"]),
}), st.sampled_from(["{}", "[]", "text"]))  # fmt: skip
def test_an_unread_file_ends_in_the_flags_that_ask_the_same(stated, other):
    text = same_question.flags({"run": {**stated, "other": other}, "model_name": "meta-llama/Llama-3.1-8B"})
    words = re.sub(r" --[\w-]+ (…|N)(?= |$)", "", text).partition(":")[2].split()
    read = {"tp": "tp", "micro_batch_size": "micro_batch_size", "seq_len": "seq_length", "gbs": "global_batch_size"}
    read |= {name: name for name in ("sequence_parallel", "recompute_granularity")}
    told = said(parse(_parser(), ["performance", *words]), {}, [])
    meant = {read[name]: value for name, value in stated.items() if name in read and value not in (False, "nonsense")}
    assert {name: value for name, value in told.recipe.items() if value is not None} == meant


def test_huggingface_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match="--model"):
        detect.load(tmp_path)
