"""``projector ask``: one question, one answer, and a command that projects the same."""

import json
import shlex
from typing import Any

import pytest
from cli_command import DEEPSEEK

from projector.__main__ import main

SMALL = ("--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "8", "--budget", "0")


def told(capsys, *words: str) -> str:
    assert main(["ask", *words]) == 0
    taken = capsys.readouterr()
    assert taken.err == ""
    return taken.out


def document(capsys, *words: str) -> list[dict[str, Any]]:
    answers = json.loads(told(capsys, *words, "--json"))["answers"]
    assert isinstance(answers, list)
    return answers


@pytest.mark.parametrize("model", ["deepseek_v3", "llama3_70b"])
def test_an_answer_is_25_lines_with_the_verdict_first(capsys, monkeypatch, model: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = ("--gpu", "h100", "--gpus", "1024", "--seq", "8k", "--price", "2", "--budget", "0")
    lines = told(capsys, "--model", model, *asked).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    heads = (
        f"{model} on 1024",
        "Fits: ",
        "Layout: ",
        "Expected: ",
        "90 % between",
        "Uncertain by",
        "Whole run: ",
        "Start",
    )
    at = [next(i for i, line in enumerate(lines) if line.startswith(head)) for head in heads]
    assert at == sorted(at)
    assert at[1] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "llama3_70b", "--gpu", "h100", "--gpus", "48", "--seq", "8k"),
        ("--model", "mixtral_8x7b", "--gpu", "mi300x", "--gpus", "32", "--framework", "primus"),
        ("--model", "llama3.1_8b", "--gpu", "b200", "--gpus", "8", "--framework", "torchtitan", "--price", "3"),
        ("--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "8", "--tp", "2", "--set", "model.num_layers=16"),
        ("--config", DEEPSEEK, "--micro-batch-size", "2"),
    ],
)
def test_the_command_projects_the_same(capsys, words: tuple[str, ...]) -> None:
    (answer,) = document(capsys, *words, "--budget", "0")
    program, *command = answer["start"]
    assert program == "projector"
    assert main([*command, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["projections"]["simulate"]["step_seconds"] == answer["step_seconds"]
    assert made["projections"]["simulate"]["expected"]["middle"] == pytest.approx(answer["expected"]["middle"])
    assert made["memory"]["margin"] == answer["margin"]
    assert answer["fits"]


def test_the_shell_reads_the_lines_as_that_command(capsys) -> None:
    (answer,) = document(capsys, *SMALL)
    shown = told(capsys, *SMALL).partition("Start from:\n")[2]
    assert shlex.split(shown.replace("\\\n", "")) == answer["start"]


def test_half_of_the_fewest_gpus_do_not_do(capsys) -> None:
    asked = ("--model", "llama3.1_8b", "--gpu", "h100", "--budget", "0")
    (fewest,) = document(capsys, *asked, "--fewest-gpus")  # as --gpus min
    assert (fewest["memory"]["status"], fewest["gpus"]) == ("fits", document(capsys, *asked)[0]["gpus"])
    (half,) = document(capsys, *asked, "--gpus", str(fewest["gpus"] // 2))
    assert not half["fits"] or half["memory"]["status"] == "too-close"


def test_what_fits_nowhere_is_an_answer_that_says_what_would(capsys) -> None:
    out = told(capsys, "--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "1", "--budget", "0")
    assert out.startswith("Does not fit")
    assert "GiB too much" in out
    assert "--gpus min" in out
    assert "tokens/s" not in out


def test_gpus_stand_side_by_side_each_as_if_asked_alone(capsys) -> None:
    rest = ("--model", "llama3.1_8b", "--gpus", "8", "--budget", "0")
    both = document(capsys, *rest, "--gpu", "h100,mi300x")
    alone = [document(capsys, *rest, "--gpu", name)[0] for name in ("h100", "mi300x")]
    assert [each["step_seconds"] for each in both] == [each["step_seconds"] for each in alone]
    out = told(capsys, *rest, "--gpu", "h100,mi300x")
    assert out.splitlines()[2].split() == ["h100_sxm", "mi300x"]


def test_the_whole_run_is_that_of_plan(capsys) -> None:
    (answer,) = document(capsys, *SMALL, "--price", "2", "--tokens", "1T")
    words = [*answer["start"][2:], "--price", "2", "--tokens", "1T", "--json"]
    assert main(["plan", *words]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert answer["run"]["middle"] == pytest.approx(figures["middle"])
    assert answer["run"]["tokens"] == 1e12


def test_what_is_wrong_with_a_question_is_said_at_once(capsys) -> None:
    assert main(["ask", "--model", "llama3.1_8b", "--gpu", "h101,mi300z", "--gpus", "8"]) == 2
    taken = capsys.readouterr()
    assert taken.out == ""
    assert "h101" in taken.err
    assert "mi300z" in taken.err
    assert main(["ask", *SMALL, "--tp", "3"]) == 2
    assert "tp" in capsys.readouterr().err


def test_the_fewest_that_are_done_in_time(capsys) -> None:
    """Half as many take longer than the run may, and what is answered does not."""
    job = ("--model", "llama3.1_8b", "--gpu", "h100", "--tokens", "1T", "--budget", "0")
    (found,) = document(capsys, *job, "--within", "30")
    assert found["run"]["middle"]["days"] <= 30
    (half,) = document(capsys, *job, "--gpus", str(found["gpus"] // 2))
    assert half["run"]["middle"]["days"] > 30
    assert main(["ask", *job, "--within", "0.1"]) == 2
    assert "--within: found 0.1, expected" in capsys.readouterr().err
    assert main(["ask", *job, "--within", "30", "--gpus", "8"]) == 2
    assert "the fewest are looked for" in capsys.readouterr().err
