"""Ten jobs that users have, each as what they would type (at most three commands), and what must come of it.

The scripts beside this file are run as they stand, in this process, from the project's folder.
"""

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from asked import says

from projector.cli import run

HERE = Path(__file__).parent
SCRIPTS = sorted(path for path in HERE.glob("*.sh") if path.name != "train.sh")
_NUMBER = r"([\d,.]+)"


def commands(name: str) -> list[list[str]]:
    lines = (HERE / f"{name}.sh").read_text().splitlines()
    return [shlex.split(line.removeprefix("python -m projector ")) for line in lines if line.startswith("python")]


@pytest.fixture
def outputs(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What each command of a script shows, on a terminal of 80 columns; none of them may fail."""

    def made(name: str) -> list[str]:
        for link in ("examples", "measured", "tests"):
            (tmp_path / link).symlink_to(HERE.parents[1] / link)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "80")
        found = []
        for words in commands(name):
            code = run(words)
            taken = capsys.readouterr()
            assert (code, taken.err) == (0, ""), shlex.join(words)
            found.append(taken.out)
        return found

    return made


def figure(text: str, pattern: str) -> float:
    match = re.search(pattern.replace("#", _NUMBER), text, re.DOTALL)
    assert match, f"{pattern} in {text}"
    return float(match[1].replace(",", ""))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_job_takes_three_commands_at_most(script: Path) -> None:
    assert 1 <= len(commands(script.stem)) <= 3
    assert script.read_text().startswith("# ")  # the question


def test_does_it_fit(outputs: Any) -> None:
    no, yes = outputs("does_it_fit")
    assert no.startswith("Does not fit: llama3.1_8b on 1 ")
    assert "GiB too much" in no
    assert figure(yes, r"llama3.1_8b on # ×") > 1
    assert yes.splitlines()[1].startswith("Fits: ")
    assert len(yes.splitlines()) <= 25


def test_best_layout(outputs: Any) -> None:
    searched, again = outputs("best_layout")
    assert figure(searched, r"Expected: # s a step") == figure(again, r"Expected: # s a step")
    assert "times as fast" in " ".join(searched.split())  # how far from the best it may be
    assert Path("megatron.yaml").is_file()


def test_from_my_run(outputs: Any) -> None:
    (told,) = outputs("from_my_run")
    assert told.count("Expected: ") == 1
    assert "1 run of your own" in " ".join(told.split())
    projected, own = figure(told, r"simulate +#"), figure(told, r"25.400 s measured,\s# s\sprojected")
    assert figure(told, r"Expected: # s a step") == pytest.approx(25.4 * projected / own, rel=0.05)


def test_two_gpus(outputs: Any) -> None:
    (told,) = outputs("two_gpus")
    lines = {
        line[:12].strip(): line[12:].split() for line in told.splitlines() if line[:1].isalnum() or line[:1] == "9"
    }
    assert lines["GPUs"] == ["8", "8"]
    speeds = [float(word.replace(",", "")) for word in lines["tokens/s/GPU"]]
    assert all(speed > 1000 for speed in speeds)
    assert told.count("projector performance") == 2
    assert "cost" in lines


def test_notebook() -> None:
    made = runpy.run_path(str(HERE / "notebook.py"))
    assert len((HERE / "notebook.py").read_text().splitlines()) <= 8
    assert len(made["table"]) == 6
    assert made["card"].memory.verdict in made["card"]._repr_html_()
    row = made["table"].query("tp == 2 and pp == 1").iloc[0]
    assert row.step_seconds == pytest.approx(made["card"].step_seconds)


def test_days_and_cost(outputs: Any) -> None:
    (told,) = outputs("days_and_cost")
    hours = figure(told, r"GPU-hours +#")
    assert figure(told, r"\ndays +#") * 24 * 256 == pytest.approx(hours, rel=0.01)
    assert figure(told, r"\ncost +#") == pytest.approx(2.5 * hours, rel=0.01)


def test_out_of_memory(outputs: Any) -> None:
    (told,) = outputs("out_of_memory")
    assert told.index("Does not fit") < told.index("Changes that make it fit") < told.index("Expected: ")
    assert "tokens/s" not in told[: told.index("Changes that make it fit")]


def test_launch_script(outputs: Any) -> None:
    (told,) = outputs("launch_script")
    says(told, "tp 2 · pp 1", "\nFits: ", "global batch 256")


def test_which_switch(outputs: Any) -> None:
    (told,) = outputs("which_switch")
    gains = [float(gain) for gain in re.findall(r"([+-]\d+\.\d) %", told[told.index("Exploration") :])]
    assert max(gains) > 1
    assert figure(told, r"expected # times the\s+baseline") > 1


def test_is_it_normal(outputs: Any) -> None:
    (told,) = outputs("is_it_normal")
    words = " ".join(told.split())
    low, high = (figure(words, rf"others let expect {pair}") for pair in ("# to", r"[\d.]+ to #"))
    measured = figure(words, r"Own run \S+: # s measured")
    assert ("as fast as others" in words) == (low <= measured <= high)
