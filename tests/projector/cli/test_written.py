"""``--write``: each kind of file, read back as a user reads any file of its kind, is the same projection."""

import json
import shutil
import subprocess
from pathlib import Path

import command_line
import pytest

from projector.cli.written import NAMES, kind_of

LLAMA = ("--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "16", "--gbs", "64", "--tp", "2")
DENSE = (*LLAMA, "--pp", "2", "--use-distributed-optimizer", "--sequence-parallel", "--overlap-grad-reduce")
AGAIN = (*LLAMA, "--use-distributed-optimizer", "--recompute-granularity", "full")
EXPERTS = ("--model", "qwen3_30b_a3b", *LLAMA[2:8], "--ep", "8", "--use-distributed-optimizer")
LATENT = ("--model", "deepseek_v3", "--gpu", "h100", "--gpus", "256", "--gbs", "512", "--ep", "64", "--tp", "4")
SHARDED = (*LLAMA, "--framework", "torchtitan", "--data-parallel-sharding", "optim_grads_params")
MEGATRON = ("run.sh", "sbatch", "pytorchjob", "megatron", "primus")
CASES = [
    (kind, words) for words in (DENSE, AGAIN, EXPERTS, (*LATENT, "--use-distributed-optimizer")) for kind in MEGATRON
]
CASES += [("case", DENSE), ("case", (*EXPERTS, "--tp", "2"))]
CASES += [("nemo", (*DENSE, "--framework", "nemo")), ("nemo", AGAIN), ("torchtitan", SHARDED)]


def projected(*words: str, cwd: Path) -> tuple[float, float]:
    done = command_line.run("projector", "performance", *words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    return document["projections"]["simulate"]["step_seconds"], document["memory"]["allocated"]


def value(words: tuple[str, ...], flag: str, other: str = "") -> str:
    return words[words.index(flag) + 1] if flag in words else other


@pytest.mark.parametrize(("kind", "words"), CASES)
def test_what_is_written_is_read_back_to_the_same_projection(kind: str, words: tuple[str, ...], tmp_path) -> None:
    wanted = projected(*words, "--write", kind, cwd=tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name == NAMES[kind]
    said = (
        "--gpu",
        "h100",
        "--gpus",
        value(words, "--gpus"),
        "--framework",
        value(words, "--framework", "megatron-lm"),
    )
    model = ("--model", value(words, "--model")) if kind in ("primus", "torchtitan") else ()
    assert projected("--config", file.name, *said, *model, cwd=tmp_path) == pytest.approx(wanted, rel=1e-9)
    if kind in ("run.sh", "sbatch"):
        assert subprocess.run(["bash", "-n", file], check=False).returncode == 0


def test_scripts_say_what_they_need_to_run(tmp_path) -> None:
    projected(*DENSE, "--write", "jobs/train.sh", "--write", "sbatch", "--write", "pytorchjob", cwd=tmp_path)
    script = tmp_path / "jobs" / "train.sh"
    assert shutil.which(str(script)), "it can be executed"
    for text in (script.read_text(), (tmp_path / "run.sbatch").read_text(), (tmp_path / "pytorchjob.yaml").read_text()):
        for word in ("--mock-data", "--tokenizer-type NullTokenizer", "--nnodes 2", "--num-layers 32", "--lr"):
            assert word in text
    assert "#SBATCH --nodes=2" in (tmp_path / "run.sbatch").read_text()
    alone = tmp_path / "one"
    alone.mkdir()
    projected(*LLAMA[:5], "8", *LLAMA[6:], "--write", "run.sh", cwd=alone)
    assert "--nnodes" not in (alone / "run.sh").read_text()


@pytest.mark.parametrize(
    ("words", "kinds", "expected"),
    [
        (DENSE, ("kubernetes",), "--write: found 'kubernetes'"),
        (EXPERTS, ("run.sh", "nemo"), "qk_layernorm: another value when it is read back"),
        (SHARDED, ("nemo",), "a file that starts a run of torchtitan"),
        (EXPERTS, ("torchtitan",), "a file that starts a run of megatron-lm"),
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
        said = ("--config", f"{command}.sh", "--gpu", "h100", "--gpus", "8")
        assert projected(*said, cwd=tmp_path)[0] == pytest.approx(best["step_seconds"], rel=1e-9)


def test_kinds_by_their_words_and_names() -> None:
    assert {word: kind_of(word) for word in ("run.sh", "a/b.sh", "x.sbatch", "out/primus.yaml", "best", "x.yaml")} == {
        "run.sh": "run.sh",
        "a/b.sh": "run.sh",
        "x.sbatch": "sbatch",
        "out/primus.yaml": "primus",
        "best": None,
        "x.yaml": None,
    }


def test_a_script_is_expected_to_do_what_its_model_does(tmp_path) -> None:
    """Sizes in a script and the name that has them are one model, to what is learnt from measured runs too."""
    wanted, *read = (
        command_line.run("projector", "performance", *words, "--json", cwd=tmp_path).stdout
        for words in ((*DENSE, "--write", "run.sh"), ("--config", "run.sh", *LLAMA[2:6]))
    )
    figures = [json.loads(each)["projections"]["simulate"]["expected"] for each in (wanted, *read)]
    assert figures[0]["high"] == pytest.approx(figures[1]["high"], rel=1e-9)
    assert "--hidden-dropout 0.0" in (tmp_path / "run.sh").read_text()
