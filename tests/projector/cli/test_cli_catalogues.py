"""Lists, help and start-up."""

import json
import os
import pty
import subprocess
import sys

import pytest
from cli_command import ON_MI355X, ROOT, projector

from projector import frameworks
from projector.cli import run
from projector.hardware import catalogue
from projector.parameter import FIELDS
from projector.workload import zoo

HEAVY = ("shtab", "torch", "scipy", "pandas", "matplotlib", "rich")


def first_words(text):
    return {line.split()[0] for line in text.splitlines() if line.strip()}


def test_models():
    done = projector("models")
    assert done.code == 0
    assert {name for name in zoo.names() if not zoo.is_template(name)} <= first_words(done.out)
    row = next(line for line in done.out.splitlines() if line.startswith("deepseek_v3 "))
    assert row.split()[1:4] == ["671.03", "37.55", "61"]


def test_models_of_a_pattern():
    names = first_words(projector("models", "mixtral").out)
    assert {"mixtral_8x7b", "mixtral_8x22b"} <= names
    assert "deepseek_v3" not in names
    assert "llama3.1_8b" in first_words(projector("models", "LLAMA3.1_*").out)


def test_gpus_and_frameworks():
    assert set(catalogue.gpu_names()) <= first_words(projector("gpus").out)
    out = projector("frameworks").out
    assert set(frameworks.names()) <= first_words(out)
    assert "NVIDIA/Megatron-LM@" in out


@pytest.mark.parametrize("words", [["gpus"], ["performance", *ON_MI355X]], ids=lambda words: words[0])
def test_starts_light(words):
    code = (
        f"import sys; from projector.cli import run; run({words!r}); "
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert made.stderr.strip() == "[]"


def test_terminal_gets_styled_tables():
    master, slave = pty.openpty()
    made = subprocess.Popen(
        [sys.executable, "-m", "projector", "models", "mixtral"],
        stdout=slave,
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(slave)
    text = b""
    while True:
        try:
            read = os.read(master, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not read:
            break
        text += read
    os.close(master)
    assert made.wait(30) == 0
    assert b"\x1b[" in text
    assert "mixtral_8x22b" in text.decode()


def test_terminal_without_unicode():
    done = projector("models", "mixtral", PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (0, "")


# ``projector constants``: names, filters, one document, lines that fit.


def listed(capsys, *words: str) -> list[dict[str, object]]:
    assert run(["constants", *words, "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["constants"]
    return found


def test_what_is_chosen_holds_or_matches_the_pattern(capsys) -> None:
    held = listed(capsys, "reach")
    assert [each["name"] for each in held] == ["kernels.nearest_shapes.REACH"]
    assert set(held[0]) == {"name", *FIELDS}
    wild = listed(capsys, "gpus.mi355x.peak_tflops*")
    assert {each["unit"] for each in wild} == {"TFLOP/s"}
    assert {each["kind"] for each in wild} == {"datasheet"}


def test_kinds_and_scored_ones_are_told_apart(capsys) -> None:
    fitted, scored = listed(capsys, "--kind", "fitted"), listed(capsys, "--scored")
    assert {each["kind"] for each in fitted} == {"fitted"}
    assert all(each["scored"] for each in scored)
    assert 0 < len(scored) < len(fitted)


def test_an_unknown_name_is_an_error(capsys) -> None:
    assert run(["constants", "gemm.lop"]) == 2
    assert "a known name" in capsys.readouterr().err
