"""``--write``: each kind of file, read back as a user reads any file of its kind, is the same projection."""

import argparse
import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml
from asked import put, refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projector.cli import _parser
from projector.cli.inputs import Case, read_case
from projector.cli.options import selection
from projector.cli.parser import parse
from projector.cli.start_files import NAMES, write
from projector.errors import InputError
from projector.projection import project

LLAMA = ("--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "16", "--gbs", "64", "--tp", "2")
DENSE = (*LLAMA, "--pp", "2", "--use-distributed-optimizer", "--sequence-parallel", "--overlap-grad-reduce")
AGAIN = (*LLAMA, "--use-distributed-optimizer", "--recompute-granularity", "full")
EXPERTS = ("--model", "qwen3_30b_a3b", *LLAMA[2:8], "--ep", "8", "--use-distributed-optimizer")
LATENT = ("--model", "deepseek_v3", "--gpu", "h100", "--gpus", "256", "--gbs", "512", "--ep", "64", "--tp", "4")
SHARDED = (*LLAMA, "--framework", "torchtitan", "--data-parallel-sharding", "optim_grads_params")
ENDS = ("--decoder-first-pipeline-num-layers", "7", "--decoder-last-pipeline-num-layers", "7")
COUNTED = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
OFF = ("--no-create-attention-mask-in-dataloader", "--no-gradient-accumulation-fusion")
UNEVEN = ("--allow-uneven-pipeline-split",)
DEEP = (*LATENT[:6], "--gbs", "2048", "--ep", "32", "--pp", "8", "--use-distributed-optimizer")
#: Layouts, each with the kinds of files that cannot say it.
LAYOUTS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (DENSE, ()),
    (AGAIN, ()),
    ((*LLAMA, "--pp", "4", "--vpp", "2"), ()),
    ((*LLAMA, "--cp", "2", "--seq", "16384"), ()),
    ((*LLAMA, "--precision", "fp8", "--recompute-granularity", "selective"), ()),
    ((*LLAMA, "--pp", "4", *ENDS), ()),
    ((*LLAMA, "--pp", "4", "--set", "model.num_layers=30", *COUNTED), ()),
    ((*LLAMA[:5], "20", "--gbs", "80", "--pp", "5", *UNEVEN), ()),
    ((*LLAMA[:5], "20", "--gbs", "80", "--pp", "5", *UNEVEN, "--pipeline-remainder", "first"), ("nemo",)),
    ((*LLAMA, "--pp", "4", "--pipeline-model-parallel-layout", "Et*7|t*9|t*9|t*7L"), ("nemo",)),
    (EXPERTS, ("nemo",)),
    ((*LATENT, "--use-distributed-optimizer", "--tp-comm-overlap"), ("nemo",)),
    (("--model", "llama3_8b", *LLAMA[2:], "--cp", "8", "--seq", "32k", *OFF), ("nemo",)),
    ((*DEEP, *UNEVEN), ("nemo",)),
    ((*DENSE, "--framework", "nemo"), ()),
    ((*LLAMA, "--framework", "nemo"), ()),
    ((*DENSE, "--framework", "primus"), ()),
]
CASES = [(kind, *of) for of in LAYOUTS for kind in NAMES if kind not in ("torchtitan", "patch")]
CASES += [(kind, SHARDED, ()) for kind in ("case", "torchtitan")]


def projected(*words: str, cwd: Path) -> tuple[float, float]:
    with contextlib.chdir(cwd):
        document = command_line.document("projector", "performance", *words)
    return document["projections"]["simulate"]["step_seconds"], document["memory"]["allocated"]


def read(*words: str) -> tuple[argparse.Namespace, Case, list[float]]:
    """What the flags say, with its step, its memory and the end of its interval."""
    options = parse(selection(), words)
    case = read_case(options)
    made = project(case.workload, case.cluster)
    return options, case, [made.step_seconds, made.memory.allocated, case.known.expect(made).high]


@pytest.mark.parametrize(("kind", "words", "refused"), CASES)
def test_what_is_written_is_read_back_to_the_same_projection(
    kind: str, words: tuple[str, ...], refused: tuple[str, ...], tmp_path: Path
) -> None:
    options, case, wanted = read(*words)
    file = tmp_path / NAMES[kind]
    if kind in refused:
        with pytest.raises(InputError, match=r"no word for|or a pipeline_model_parallel_layout"):
            write([str(file)], case, case.workload, options)
        return
    assert write([str(file)], case, case.workload, options) == (file,)
    assert read("--config", str(file))[2] == pytest.approx(wanted, rel=1e-9)
    if kind in ("run.sh", "sbatch"):
        assert subprocess.run(["bash", "-n", file], check=False).returncode == 0


def test_flags_go_before_what_a_file_says_above_itself(tmp_path: Path) -> None:
    options, case, _ = read(*DENSE)
    file = tmp_path / "run.sh"
    write([str(file)], case, case.workload, options)
    _, other, _ = read("--config", str(file), "--gpu", "mi300x", "--gpus", "32", "--framework", "primus")
    assert (other.cluster.gpu.name, other.workload.gpus, other.workload.framework) == ("mi300x", 32, "primus")
    for wrong, expected in (("gpus=many", "a whole number"), ("gpu=h100", "gpus")):
        refusal(read, "--config", str(put(file, file.read_text().replace("gpus=16", wrong))), match=expected)
        file.write_text(file.read_text().replace(wrong, "gpus=16"))


@pytest.mark.parametrize(
    ("words", "kinds", "expected"),
    [
        (DENSE, ("kubernetes",), "--write: found 'kubernetes'"),
        (EXPERTS, ("run.sh", "nemo"), "no word for qk_layernorm"),
        (SHARDED, ("nemo",), "of torchtitan: case, torchtitan, patch"),
        (EXPERTS, ("torchtitan",), "of megatron-lm: case, run.sh"),
    ],
)
def test_what_a_kind_of_file_cannot_say_is_refused_and_nothing_is_written(
    words: tuple[str, ...], kinds: tuple[str, ...], expected: str, tmp_path
) -> None:
    flags = [word for kind in kinds for word in ("--write", kind)]
    done = command_line.run("projector", "performance", *words, *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert not list(tmp_path.iterdir())


def test_ask_and_search_write_their_best(tmp_path) -> None:
    words = ("--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "8", "--gbs", "64", "--budget")
    for command, budget in (("ask", "0"), ("search", "0.1s")):
        done = command_line.run(
            "projector", command, *words, budget, "--write", f"{command}.sh", "--json", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        best = json.loads(done.stdout)
        best = best["answers"][0] if command == "ask" else best["best"][0]
        assert projected("--config", f"{command}.sh", cwd=tmp_path)[0] == pytest.approx(best["step_seconds"], rel=1e-9)


def test_what_has_words_is_written_where_the_best_has_none(tmp_path) -> None:
    """NeMo's experts are split as its dense layers are; who asked for its file still has the whole answer."""
    job = ("--model", "mixtral_8x7b", "--gpu", "h100", "--gpus", "32", "--seq", "4k", "--framework", "nemo")
    done = command_line.run("projector", "ask", *job, "--budget", "0", "--write", "nemo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "behind): no word there for the best" in " ".join(done.stdout.split())
    assert projected("--config", "nemo.yaml", cwd=tmp_path)


def test_a_script_is_expected_to_do_what_its_model_does(tmp_path) -> None:
    """Sizes in a script and the name that has them are one model, to what is learnt from measured runs too."""
    wanted, *read = (
        command_line.run("projector", "performance", *words, "--json", cwd=tmp_path).stdout
        for words in ((*DENSE, "--write", "run.sh"), ("--config", "run.sh", *LLAMA[2:6]))
    )
    figures = [json.loads(each)["projections"]["simulate"]["expected"] for each in (wanted, *read)]
    assert figures[0]["high"] == pytest.approx(figures[1]["high"], rel=1e-9)
    assert "--hidden-dropout 0.0" in (tmp_path / "run.sh").read_text()


# One job, one answer: flags, a YAML case, a Hugging Face ``config.json`` and a launch script say the same.


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
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_job_in_every_form(tmp_path, job: dict[str, Any]) -> None:
    recipe = dict(job)
    experts = recipe.pop("experts")
    hf = put(tmp_path / "config.json", json.dumps(_huggingface(experts)))
    where = ["--gpu", "h100", "--gpus", "32"]
    flags = _answer(["--model", str(hf), *where, *_flags(recipe)])
    case = {"model": "config.json", "gpu": "h100", "gpus": 32, "framework": "megatron-lm", "recipe": recipe}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    (tmp_path / "train.sh").write_text(_script(experts, recipe))
    assert isinstance(flags, tuple), flags
    for form in (["--config", str(tmp_path / "case.yaml")], ["--config", str(tmp_path / "train.sh"), "--gpu", "h100"]):
        assert _answer(form) == pytest.approx(flags, rel=1e-12), form


def test_experts_follow_tensor_parallelism_where_nobody_says() -> None:
    """Megatron-LM's default; a refusal says what would fit."""
    base = [
        "--model", "mixtral_8x7b", "--gpu", "h100", "--tp", "2", "--mbs", "1", "--gbs", "64", "--seq-length", "2048",
    ]  # fmt: skip
    split = read_case(parse(_parser(), ["performance", *base, "--ep", "8", "--gpus", "16"]))
    assert split.workload.recipe.etp == 2
    assert any(text.startswith("etp=2") for text in split.assumed)
    whole = read_case(parse(_parser(), ["performance", *base, "--ep", "8", "--gpus", "16", "--etp", "1"]))
    assert whole.workload.recipe.etp == 1
    refusal(read_case, parse(_parser(), ["performance", *base, "--ep", "8", "--gpus", "8"]), match="etp=1")
    other = read_case(
        parse(_parser(), ["performance", *base, "--ep", "8", "--gpus", "16", "--framework", "torchtitan"])
    )
    assert other.workload.recipe.etp == 1
