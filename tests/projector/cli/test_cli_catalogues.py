"""Lists, help and start-up."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from cli_command import ON_MI355X, ROOT, projector

from projector import frameworks
from projector.hardware import catalogue
from projector.workload import zoo

HEAVY = ("torch", "scipy", "pandas", "matplotlib", "rich")


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


def test_help_is_true():
    top = projector("--help")
    assert top.code == 0
    for command in ("performance", "memory", "models", "gpus", "frameworks"):
        assert command in top.out
        assert projector(command, "--help").code == 0
    text = projector("performance", "--help").out
    for flag in ("--config", "--configs", "--hardware-config", "--target-nodes", "--profiling-mode", "--trace"):
        assert flag in text


def test_starts_light():
    code = (
        "import sys; from projector.cli import run; run(['gpus']); "
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert made.stderr.strip() == "[]"


def test_projection_loads_nothing_heavy():
    code = (
        f"import sys; from projector.cli import run; run({['performance', *ON_MI355X]!r}); "
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


def test_version():
    from projector import __version__

    assert projector("--version").out.strip() == f"projector {__version__}"
