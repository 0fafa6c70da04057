"""Both command lines given what is no file of theirs: exit code 2, one or a few short lines, no traceback, no waiting."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_line
import pytest
from asked import put
from tabled import tabled, written

from tests.conftest import ROOT
from tests.harness.conftest import run_yaml
from tests.projector.io.test_documents import TOO_MUCH

MIXTRAL = str(ROOT / "examples" / "mixtral_8x22b_mi355x.yaml")
CASE = """\
model: llama3.1_8b
gpu: {gpu}
gpus: {gpus}
recipe: {{micro_batch_size: {mbs}, global_batch_size: 64, seq_length: {seq}}}
"""
SOUND = CASE.format(gpu="h100_sxm", gpus=8, mbs=1, seq=4096)

TEXTS: dict[str, str | bytes] = {
    "empty": "", "list": "[1, 2, 3]\n", "number": "3\n", "words": "lorem ipsum dolor\n",
    "latin-1": b"# Universit\xe9 \xff\xfe\n\x80\x81: \xff\n", "bytes": bytes(range(256)) * 40,
    "twice": SOUND + "gpus: 16\n",
    **{name: TOO_MUCH[name] for name in ("nested mappings", "nested lists", "alias bomb", "merge bomb", "decimal digits")},
}  # fmt: skip
KINDS = ("pipe", "device", "folder", "missing", *TEXTS)

#: Where each program takes a file; FILE stands for it.
PROJECTOR = {
    "config": ("performance", "--config", "FILE", "--cluster", "mi355x"),
    "memory": ("memory", "--config", "FILE"),
    "model": ("performance", "--config", MIXTRAL, "--cluster", "mi355x", "--model", "FILE.json"),
    "cluster": ("performance", "--config", MIXTRAL, "--cluster", "FILE"),
    "hardware": ("performance", "--config", MIXTRAL, "--cluster", "mi355x", "--hardware-config", "FILE"),
    "benchmark": ("performance", "--config", MIXTRAL, "--cluster", "mi355x", "--load-benchmark", "FILE"),
    "shapes": ("record", "--shapes", "FILE", "--dry-run"),
}
HARNESS = {
    "suite": ("run", "FILE"),
    "runs": ("run", "--runs", "FILE"),
    "results": ("report", "FILE"),
    "against": ("run", str(ROOT / "suites" / "scaling.yaml"), "--against", "FILE"),
    "map": ("ingest", str(ROOT / "measured" / "runs" / "other.yaml"), "--map", "FILE"),
    "recipe": ("ingest", str(ROOT / "tests" / "data" / "logs" / "nemo2.log"), "--recipe", "FILE"),
    "trainings": ("measure", "FILE"),
    "kernels": ("kernels", "FILE.csv", "--no-cross-validate"),
}
COMMANDS = {**{("projector", k): v for k, v in PROJECTOR.items()}, **{("harness", k): v for k, v in HARNESS.items()}}


def made(kind: str, path: Path) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind in TEXTS:
        content = TEXTS[kind]
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def program(name: str) -> Callable[[list[str]], int]:
    if name == "harness":
        from harness.cli import main

        return main
    from projector.cli import run

    return run


def pairs() -> Iterator[Any]:
    """Every command with every kind of file at night; a third of them by day, with all commands and all kinds."""
    for i, where in enumerate(COMMANDS):
        for j, kind in enumerate(KINDS):
            yield pytest.param(
                where, kind, id=f"{' '.join(where)}-{kind}", marks=pytest.mark.night if (i + j) % 3 else ()
            )


@pytest.mark.parametrize(("where", "kind"), [*pairs()])
def test_what_is_no_file_of_theirs(where: tuple[str, str], kind: str, tmp_path, capsys, monkeypatch) -> None:
    if (where[1], kind) == ("map", "latin-1"):
        pytest.skip("a mapping of odd column names is a map")
    monkeypatch.chdir(tmp_path)
    word = next(word for word in COMMANDS[where] if word.startswith("FILE"))
    path = made(kind, tmp_path / f"f{word.removeprefix('FILE') or '.yaml'}")
    try:
        code = program(where[0])([str(path) if part == word else part for part in COMMANDS[where]])
    except SystemExit as error:
        code = int(error.code or 0)
    said = capsys.readouterr()
    assert code == 2, said.out[-500:]
    assert 0 < len(said.err) < 10_000
    assert "Traceback" not in said.err
    assert said.out == ""
    assert [found.name for found in tmp_path.iterdir()] == ([path.name] if kind != "missing" else [])


@pytest.mark.parametrize(
    "mode", [pytest.param("utf-8", marks=pytest.mark.night), pytest.param("latin-1", marks=pytest.mark.night), "ascii"]
)
def test_terminals_of_other_encodings(mode: str, tmp_path) -> None:
    """Every command that prints tables or writes pages: the same exit code; files are UTF-8 whatever the terminal is."""
    (tmp_path / "case.yaml").write_text(SOUND)
    (tmp_path / "runs.yaml").write_text(run_yaml("a", "llama3_8b", 64, 5.0))
    (tmp_path / "bad.yaml").write_text(SOUND.replace("llama3.1_8b", "Modèle→8b"), encoding="utf-8")
    commands = (
        "p ['performance', '--config', 'case.yaml', '--trace', 't.json']",
        "p ['performance', '--config', 'case.yaml', '--json']", "p ['memory', '--config', 'case.yaml']",
        "p ['schedules', '--config', 'case.yaml']", "p ['models']", "p ['gpus']", "p ['frameworks']", "p ['--help']",
        "p ['performance', '--config', 'bad.yaml']", "h ['run', '--runs', 'runs.yaml', '--out', 'o', '--no-plots']",
        "h ['report', 'o', '--format', 'md', 'html']",
        f"h ['compare', '{ROOT}/tests/data/logs/megatron_a.log', '{ROOT}/tests/data/logs/megatron_b.log']",
        f"h ['ingest', '{ROOT}/tests/data/logs/megatron_a.log', '--out', 'new.yaml']", "h ['run', 'bad.yaml']",
        "h ['--help']",
    )  # fmt: skip
    script = (
        "import sys\nfrom projector.cli import run as p\nfrom harness.cli import main as h\ncodes = []\n"
        + "".join(
            f"try: codes.append({line[0]}({line[2:]}))\nexcept SystemExit as e: codes.append(e.code)\n"
            for line in commands
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", script + "sys.stderr.write(repr(codes))"],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": mode, "LANG": "C", "PYTHONUTF8": "0"},
    )
    error = done.stderr.decode(mode, "replace")
    assert error.endswith(repr([0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 2, 0])), error[-2000:]
    assert done.stdout.decode(mode)
    for path in tmp_path.rglob("*.*"):
        if path.suffix in (".md", ".html", ".yaml", ".json", ".csv"):
            path.read_bytes().decode("utf-8")
    assert not (tmp_path / "o" / "report.html").read_text(encoding="utf-8").isascii()


def test_types_and_ranges_of_a_file_together(tmp_path) -> None:

    path = put(tmp_path / "case.yaml", CASE.format(gpu="h100_sxm", gpus=8, mbs=1.5, seq=-1))
    error = command_line.refused("projector", "performance", "--config", path)
    assert "recipe.micro_batch_size: found 1.5, expected a whole number" in error
    assert "recipe.seq_length: found -1, expected a number from 1" in error


@pytest.mark.parametrize(("old", "new", "words"), tabled("refusals", "sizes"))
def test_sizes_that_nobody_builds(old: str | None, new: str, words: tuple[str, ...], tmp_path) -> None:
    path = put(tmp_path / "case.yaml", written(SOUND, old, new))
    flags = ("--config", path, "--cluster", "h100_sxm", "--gpus", "8")
    error = command_line.refused("projector", "performance", *flags)
    assert all(word in error for word in words), error
    assert len(error) < 3_000


def test_mistakes_of_a_gpu_beside_its_cluster_bear_its_name(tmp_path, capsys) -> None:
    from projector.cli import run

    hardware = ROOT / "projector" / "hardware"
    gpu = (hardware / "gpus" / "mi355x.yaml").read_text().replace("compute_units: ", "compute_units: x")
    cluster = (hardware / "clusters" / "mi355x.yaml").read_text().replace("gpu: mi355x", "gpu: own.yaml")
    (tmp_path / "own.yaml").write_text(gpu.replace("vendor:", "vendour:"))
    (tmp_path / "cluster.yaml").write_text(cluster.replace("latency_us:", "latencyus:"))
    assert run(["performance", "--config", MIXTRAL, "--cluster", str(tmp_path / "cluster.yaml")]) == 2
    lines = capsys.readouterr().err.splitlines()
    of_gpu = [line for line in lines if line.startswith(f"{tmp_path / 'own.yaml'}: ")]
    assert {line.split(": ")[1] for line in of_gpu} >= {"compute_units", "vendour", "vendor"}
    assert any(line.startswith(f"{tmp_path / 'cluster.yaml'}: i") for line in lines)
