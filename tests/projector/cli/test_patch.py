"""``--write patch``: the change of a file that makes it what a command shows, applied and read again."""

import subprocess
from pathlib import Path

import pytest
from cli_command import ROOT, document, refused
from tabled import sample

SCRIPT = sample("patched.sh")
JOB = sample("patched.toml")
EXPERIMENT = sample("patched.yaml")
OF_FOLDER = "MI355X/experts.yaml"
EXPERTS = (ROOT / "examples/mixtral_8x22b_mi355x.yaml").read_text(encoding="utf-8")
FILES = {"run.sh": SCRIPT, "job.toml": JOB, "experiment.yaml": EXPERIMENT, OF_FOLDER: EXPERTS}
WHERE = ["--gpu", "h100", "--gpus", "16"]


def projected(*words: str) -> tuple[float, float]:
    where = ["--gpus", "32"] if OF_FOLDER in words else WHERE
    found = document("performance", *where, *words)
    return found["projections"]["simulate"]["step_seconds"], found["memory"]["allocated"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run.sh", ("--pp", "2")),
        ("run.sh", ("--tp", "4", "--mbs", "2", "--recompute-granularity", "none")),
        ("run.sh", ("--overlap-grad-reduce", "--pp", "1", "--tp", "1", "--no-sequence-parallel")),
        ("job.toml", ("--mbs", "1", "--tp", "2")),
        ("job.toml", ("--pp", "2", "--recompute-granularity", "full")),
        ("experiment.yaml", ("--tp", "2", "--mbs", "2")),
        ("experiment.yaml", ("--pp", "2", "--cp", "2", "--recompute-granularity", "full")),
        (OF_FOLDER, ("--tp", "2", "--etp", "1", "--pp", "2", "--vpp", "4", "--recompute-granularity", "none")),
    ],
)
def test_a_patched_file_is_what_was_shown(
    name: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(FILES[name])
    wanted = projected("--config", name, *words, "--write", "my.patch")
    assert wanted != projected("--config", name)
    assert Path(name).read_text() == FILES[name]
    subprocess.run(["git", "apply", "-p0", "my.patch"], check=True)
    assert projected("--config", name) == pytest.approx(wanted, rel=1e-12)
    kept = [line for line in FILES[name].splitlines() if "  #" in line]
    assert all(line.split("  #")[1] in Path(name).read_text() for line in kept)


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        (None, ("--model", "llama3.1_8b"), "--config FILE"),
        (SCRIPT.replace("=2 --seq", "=$((1 + 1)) --seq"), ("--tp", "4"), "my.sh"),
        (EXPERIMENT.replace("pre_trainer:", "pre_trainer: &one"), ("--vpp", "2", "--pp", "3"), "pp = 3"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    text: str | None, words: tuple[str, ...], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "my.sh" if text and text.startswith("#!") else "my.yaml"
    if text:
        Path(name).write_text(text)
    said = refused("performance", *WHERE, *(("--config", name) if text else ()), *words, "--write", "patch")
    assert not list(tmp_path.glob("*.patch"))
    assert found in "\n".join(said)
