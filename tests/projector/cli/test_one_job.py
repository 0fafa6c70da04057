"""One job, one answer: flags, a YAML case, a Hugging Face ``config.json`` and a launch script say the same
step and memory."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projector.cli import _parser
from projector.cli.inputs import read_case
from projector.cli.parser import parse
from projector.errors import InputError
from projector.projection import project

_SIZES = {
    "num_layers": 8, "hidden_size": 1024, "ffn_hidden_size": 3584, "num_attention_heads": 16, "num_query_groups": 8,
}  # fmt: skip
_VOCABULARY = 32000


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Recipe fields of a job on 32 GPUs, with the number of experts beside them."""
    experts = draw(st.sampled_from([0, 8]))
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    ep = draw(st.sampled_from([1, 2, 4])) if experts else 1
    stated: dict[str, Any] = {"tp": tp, "pp": pp, "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048}
    stated |= {"ep": ep} if experts else {}
    stated |= {"etp": draw(st.sampled_from([1, tp]))} if experts and draw(st.booleans()) else {}
    stated |= {"sequence_parallel": True} if tp > 1 else {}
    stated |= {"data_parallel_sharding": "optim"} if draw(st.booleans()) else {}
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    stated |= full if draw(st.booleans()) else {}
    return {"experts": experts, **stated}


def _huggingface(experts: int) -> dict[str, Any]:
    sizes = {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 16}
    rest = {"num_key_value_heads": 8, "vocab_size": _VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    if experts:
        routed = {"num_local_experts": experts, "num_experts_per_tok": 2, "sliding_window": None}
        return {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **sizes, **rest, **routed}
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes, **rest, "tie_word_embeddings": False}


def _flags(recipe: dict[str, Any]) -> list[str]:
    """In the words of Megatron-LM's command line."""
    names = {
        "tp": "tensor-model-parallel-size",
        "pp": "pipeline-model-parallel-size",
        "ep": "expert-model-parallel-size",
    }
    names |= {"etp": "expert-tensor-parallel-size"}
    words = []
    for name, value in recipe.items():
        if name == "data_parallel_sharding":
            words += ["--use-distributed-optimizer"]
        else:
            words += [f"--{names.get(name, name.replace('_', '-'))}", *([] if value is True else [str(value)])]
    return words


def _script(experts: int, recipe: dict[str, Any]) -> str:
    words = [f"--{name.replace('_', '-')} {value}" for name, value in _SIZES.items()]
    words += [f"--num-experts {experts} --moe-router-topk 2 --moe-ffn-hidden-size 3584"] if experts else []
    # a script that leaves these out says no; the other forms leave them to what its users run
    words += ["--moe-grouped-gemm"] if experts else []
    words += ["--group-query-attention --swiglu --normalization RMSNorm --disable-bias-linear --bf16", *_flags(recipe)]
    words += ["--untie-embeddings-and-output-weights --position-embedding-type rope --max-position-embeddings 4096"]
    words += [f"--vocab-size {_VOCABULARY} --tokenizer-type HuggingFaceTokenizer"]
    return "torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py " + " \\\n  ".join(words) + "\n"


def _answer(words: list[str]) -> tuple[float, float] | str:
    """Step seconds and bytes of the fullest rank; the reason where it is refused."""
    options = parse(_parser(), ["performance", *words])
    try:
        case = read_case(options)
        projection = project(case.workload, case.cluster)
    except InputError as error:
        return ", ".join(sorted({problem.key.rpartition(".")[2] for problem in error.problems}))
    return projection.step_seconds, max(rank.allocated for rank in projection.memory.ranks)


@given(jobs())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_job_in_every_form(tmp_path, job: dict[str, Any]) -> None:
    recipe = dict(job)
    experts = recipe.pop("experts")
    hf = tmp_path / "config.json"
    hf.write_text(json.dumps(_huggingface(experts)))
    where = ["--gpu", "h100", "--gpus", "32"]
    flags = _answer(["--model", str(hf), *where, *_flags(recipe)])
    case = {"model": "config.json", "gpu": "h100", "gpus": 32, "framework": "megatron-lm", "recipe": recipe}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    (tmp_path / "train.sh").write_text(_script(experts, recipe))
    assert isinstance(flags, tuple), flags
    for form in (["--config", str(tmp_path / "case.yaml")], ["--config", str(tmp_path / "train.sh"), "--gpu", "h100"]):
        assert _answer(form) == pytest.approx(flags, rel=1e-12), form


def test_experts_follow_tensor_parallelism_where_nobody_says(tmp_path) -> None:
    """Megatron-LM's default; a refusal says what would fit."""
    base = [
        "--model", "mixtral_8x7b", "--gpu", "h100", "--tp", "2", "--mbs", "1", "--gbs", "64", "--seq-length", "2048",
    ]  # fmt: skip
    split = read_case(parse(_parser(), ["performance", *base, "--ep", "8", "--gpus", "16"]))
    assert split.workload.recipe.etp == 2
    assert any(text.startswith("etp=2") for text in split.assumed)
    whole = read_case(parse(_parser(), ["performance", *base, "--ep", "8", "--gpus", "16", "--etp", "1"]))
    assert whole.workload.recipe.etp == 1
    with pytest.raises(InputError, match="etp=1"):
        read_case(parse(_parser(), ["performance", *base, "--ep", "8", "--gpus", "8"]))
    other = read_case(
        parse(_parser(), ["performance", *base, "--ep", "8", "--gpus", "16", "--framework", "torchtitan"])
    )
    assert other.workload.recipe.etp == 1
