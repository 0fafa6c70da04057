"""``projector search`` on the command line: what it shows, what it keeps, and what it refuses."""

import re
import shlex
from pathlib import Path
from typing import Any

import command_line
import pytest
from asked import says
from cli_command import DEEPSEEK, MIXTRAL, document, told
from tabled import tabled

from projector.__main__ import main
from projector.cli.parser import wrapped

SMALL = ("--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "8", "--gbs", "16", "--seq-length", "4096")
FIXED = tuple(
    f"--fix={each}"
    for each in ("tp=1,2", "cp=1", "pp=1", "micro_batch_size=1,2", "recompute_granularity=none,full")
    + ("recompute_num_layers=8", "data_parallel_sharding=optim")
)


def searched(*more: str, fixed: tuple[str, ...] = FIXED) -> dict[str, Any]:
    made: dict[str, Any] = document("search", *SMALL, *fixed, *more)
    return made


def test_the_document_adds_up() -> None:
    made = searched()
    counts = made["counts"]
    parts = ("out_of_memory", "unsupported", "bounded_away", "projected")
    assert counts["valid"] == sum(counts[name] for name in parts)
    assert counts["combinations"] == counts["valid"] + sum(each["combinations"] for each in made["refused"])
    speeds = [each["tgs"] for each in made["best"]]
    assert speeds == sorted(speeds, reverse=True)
    assert made["gap"] == 0
    assert sum(made["best"][0]["breakdown"].values()) == pytest.approx(made["best"][0]["step_seconds"])


@pytest.mark.parametrize("command", ["search", "ask"])
def test_what_takes_long_says_how_far_it_is_in_a_pipe_too(command: str, monkeypatch, capsys) -> None:
    quick = (command, *SMALL, "--budget", "0.2s", "--json")
    assert main([*quick]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("projector.io.progress._FIRST", 0.0)
    assert main([*quick]) == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("0 s: ")
    assert "combinations" in line


def test_the_best_is_written(tmp_path) -> None:
    files = [str(tmp_path / name) for name in ("case.yaml", "megatron.yaml")]
    made = searched("--write", files[0], "--write", files[1])
    again = document("performance", "--config", files[0])
    assert again["projections"]["simulate"]["tgs"] == pytest.approx(made["best"][0]["tgs"])
    text = (tmp_path / "megatron.yaml").read_text()
    assert f"tensor_model_parallel_size: {made['best'][0]['fields']['tp']}" in text


def test_the_fewest_gpus_are_those_on_half_of_which_nothing_fits() -> None:
    words = ("--model", "llama3.1_8b", "--gpu", "h100", "--gbs", "16", "--seq-length", "4096", *FIXED)
    gpus = document("search", *words, "--fewest-gpus")["best"][0]["gpus"]
    assert main(["search", *words, "--gpus", str(gpus), "--json"]) == 0
    assert main(["search", *words, "--gpus", str(gpus // 2), "--json"]) == 2


def test_no_search_is_worse_than_what_is_stated() -> None:
    """However short it is, and whatever the layout of its pipeline."""
    own = document("performance", "--config", DEEPSEEK)
    best = document("search", "--config", DEEPSEEK, "--budget", "0.001s")["best"][0]
    assert own["memory"]["status"] == "fits"
    assert best["step_seconds"] <= own["projections"]["simulate"]["step_seconds"]


WRONG = tabled("refusals", "search")
VARIED = ("seq_length=", "seq_length", "lora_rank=8", "lora.dim=8", "tp=,", "=", "nobody=1")


@pytest.mark.parametrize(("words", "said"), [*WRONG, *((("--vary", each), "expected") for each in VARIED)])
def test_bad_input_is_one_clear_error(words: tuple[str, ...], said: str) -> None:
    error = command_line.refused("projector", "search", *SMALL, *words)
    assert said in error
    assert "--vary" not in words or error.count("\n") == 1


def test_what_is_told_apart_is_what_the_interval_of_its_ratio_says() -> None:
    best = searched("--top", "40", fixed=tuple(x.replace("layers=8", "layers=8,16,24") for x in FIXED))["best"]
    assert best[0]["gain"] == {"middle": 0, "low": 0, "high": 0}
    for each in best[1:]:
        gain = each["gain"]
        assert gain["low"] < gain["middle"] < gain["high"]
        assert each["told_apart"] == (gain["high"] < 0 or gain["low"] > 0)
        wide = best[0]["expected"]["high"] / best[0]["expected"]["middle"]
        assert (1 + gain["high"]) / (1 + gain["middle"]) < wide  # what both share cancels
    assert {each["told_apart"] for each in best} == {False, True}


def test_time_is_enough_for_something_that_fits_and_says_what_is_left() -> None:
    whole = ("--model", "llama3_70b", "--gpu", "h100", "--gpus", "64", "--budget", "0.001s")
    made = document("search", *whole)
    assert made["gap"] is None
    assert 0 < made["gap_to_peak"] < 1
    first = made["best"][0]
    assert (first["memory"]["status"], first["told_apart"]) == ("fits", False)
    again = document(*made["start"][1:])
    assert again["projections"]["simulate"]["step_seconds"] == first["step_seconds"]


# ``projector ask``: one question, one answer, and a command that projects the same.


LLAMA = ("--model", "llama3.1_8b", "--gpu", "h100", "--budget", "0")
ASKED = (*LLAMA, "--gpus", "8")
#: What leaves few layouts for each number of GPUs.
PINNED = (*LLAMA, "--pp", "1", "--cp", "1", "--mbs", "1", *("--recompute-granularity", "full"))


def answered(*words: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = document("ask", *words)["answers"]
    return answers


def test_an_answer_is_25_lines_with_the_verdict_first(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = ("--model", "deepseek_v3", "--gpu", "h100", "--gpus", "1024", "--seq", "8k", "--price", "2")
    lines = told("ask", *asked, "--budget", "0").splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    heads = ("deepseek_v3 on 1024", "Fits: ", "Layout: ", "Expected: ", "90 % between", "Uncertain by", "Whole run: ")
    at = [next(i for i, line in enumerate(lines) if line.startswith(head)) for head in (*heads, "Start")]
    assert at == sorted(at)
    assert at[1] == 1


FILE = ("--config", MIXTRAL, "--gpu", "mi355x", "--gpus", "64")
ADAPTED = tuple(shlex.split("--model llama3_8b --gpu rtx_4090 --gpus 1 --seq 2k --lora-quant-type nf4 --lora-r 16"))


@pytest.mark.parametrize(
    "prices", ["2", "price_by_gpu: {h100_sxm: 0.1, mi300x: 9, b200: 9}\ncurrency: USD\nsource: an offer\n"]
)
def test_gpus_that_no_other_beats_in_everything_are_named(prices: str, tmp_path: Path) -> None:
    (tmp_path / "price.yaml").write_text(prices)
    price = prices if prices == "2" else str(tmp_path / "price.yaml")
    job = ["ask", "--model", "llama3.1_8b", "--gpu", "h100,mi300x,b200", "--gpus", "16", "--budget", "0", "--price"]
    asked = (*job, price)
    runs = {each["cluster"]: each["run"]["middle"] for each in document(*asked)["answers"]}
    keys = ("days", "mwh", "cost")
    beaten = {a for a, own in runs.items() for other in runs.values() if all(other[key] < own[key] for key in keys)}
    front = ", ".join(name for name in runs if name not in beaten)
    assert f"none beats {front} in days, MWh and cost." in " ".join(told(*asked).split())
    assert ("h100_sxm" in front) == (prices != "2")


@pytest.mark.parametrize("words", [*tabled("workloads", "questions"), FILE, ADAPTED])
def test_the_command_projects_the_same(words: tuple[str, ...]) -> None:
    (answer,) = answered(*words, "--budget", "0")
    program, *command = answer["start"]
    assert program == "projector"
    assert {word for word in command if word.startswith("--lora")} == {word for word in words if "--lora" in word}
    made = document(*command)
    assert made["projections"]["simulate"]["step_seconds"] == answer["step_seconds"]
    assert made["projections"]["simulate"]["expected"]["middle"] == pytest.approx(answer["expected"]["middle"])
    assert made["memory"]["margin"] == answer["margin"]
    assert answer["fits"]


def test_the_shell_reads_the_lines_as_that_command() -> None:
    (answer,) = answered(*ASKED)
    shown = told("ask", *ASKED).partition("Start from:\n")[2]
    assert shlex.split(shown.replace("\\\n", "")) == answer["start"]


@pytest.mark.parametrize("columns", [30, 50, 200])
def test_a_command_is_wrapped_between_its_words(columns: int, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ["projector", "ask", "--model", "my model", "--gpus", "8", "--gpu", "h100,b200", "--note", "it's", "--json"]
    lines = wrapped(words)
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == words
    assert max(map(len, lines)) <= min(columns, 80)
    assert not any(line.endswith(("--model \\", "--gpus \\")) for line in lines)


def test_half_of_the_fewest_gpus_do_not_do() -> None:
    (fewest,) = answered(*PINNED, "--fewest-gpus")  # as --gpus min
    assert (fewest["memory"]["status"], fewest["gpus"]) == ("fits", answered(*PINNED)[0]["gpus"])
    (half,) = answered(*PINNED, "--gpus", str(fewest["gpus"] // 2))
    assert not half["fits"] or half["memory"]["status"] == "too-close"


def test_the_whole_run_is_that_of_plan() -> None:
    (answer,) = answered(*ASKED, "--price", "2", "--tokens", "1T")
    figures = document("plan", *answer["start"][2:], "--price", "2", "--tokens", "1T")["figures"]
    assert answer["run"]["middle"] == pytest.approx(figures["middle"])
    assert answer["run"]["tokens"] == 1e12


def test_the_fewest_that_are_done_in_time() -> None:
    """Half as many take longer than the run may, and what is answered does not."""
    job = (*PINNED, "--tokens", "1T")
    (found,) = answered(*job, "--within", "30")
    assert found["run"]["middle"]["days"] <= 30
    (half,) = answered(*job, "--gpus", str(found["gpus"] // 2))
    assert half["run"]["middle"]["days"] > 30
    (faster,) = answered(*job, "--within", "2s")
    step = faster["expected"]["middle"]
    rate = faster["recipe"]["global_batch_size"] * faster["recipe"]["seq_length"] / step
    assert step <= 2
    assert answered(*job, "--within", f"{0.999 * rate}/s")[0]["gpus"] == faster["gpus"]
    assert answered(*job, "--within", "2999-01-01")[0]["gpus"] < found["gpus"]
    assert "--within: found '0.1 days', expected" in command_line.refused("projector", "ask", *job, "--within", "0.1")
    said = command_line.refused("projector", "ask", *job, "--within", "30", "--gpus", "8")
    assert "the fewest are looked for" in said


def test_no_more_gpus_are_asked_for_than_a_longer_look_needs() -> None:
    job = (*LLAMA, "--pp", "2", "--cp", "1", "--tokens", "1T", "--budget")
    first, longer = (answered(*job, budget, "--gpus", "8")[0] for budget in ("0", "30p"))
    ends = [each["run"]["middle"]["days"] for each in (longer, first)]
    assert ends[0] < ends[1]
    assert answered(*job, "30p", "--within", str(sum(ends) / 2))[0]["gpus"] == 8


@pytest.mark.parametrize("gpus", ["b200", "b200,h100", "b200,mi355x,gb300,h100"])
def test_an_answer_is_a_screen(gpus: str, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = told("ask", "--model", "qwen3_235b_a22b", "--gpu", gpus, "--gpus", "256", "--budget", "0").splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    several = gpus.split(",")
    for each in several if len(several) > 1 else ():
        assert each in lines[2]
        command = any(f"--gpu {each}" in line for line in lines)
        assert command or each in lines[-1].partition("starts it on")[2]


def test_a_table_keeps_interval_and_verdict_on_a_narrow_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = told("search", *SMALL, *FIXED)
    says(made, " 90 %  spare\n", " interval    GiB  memory\n", "  fits\n")
    assert re.search(r" \d\.\d+–\d\.\d+ ", made)


def test_gpus_that_were_chosen_are_said() -> None:
    words = ("--model", "llama3.1_8b", "--gpu", "h100", "--budget", "0")
    assert "chosen gpus=4 (the fewest that hold it)" in document("ask", *words)["answers"][0]["assumed"]
    assert "gpus=" not in " ".join(document("ask", *words, "--gpus", "8")["answers"][0]["assumed"])


def test_nothing_is_sharded_among_one_rank() -> None:
    """Megatron-LM's FSDP on one GPU gains 0.003 % and asks for more memory."""
    words = (
        "--model",
        "flan_t5_large",
        "--gpu",
        "mi325x",
        "--gpus",
        "1",
        "--seq",
        "32k",
        "--mbs",
        "8",
        "--budget",
        "1",
    )
    (answer,) = document("ask", *words)["answers"]
    assert "FSDP" not in answer["words"]
    assert not [word for word in answer["start"] if word.startswith("optim_")]
    (held,) = document("ask", *words, "--data-parallel-sharding", "optim_grads_params")["answers"]
    assert "FSDP" in held["words"]
