"""What an installation brings: a core of three packages, extras that say what they are for, files of a release."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Runs a program where the packages of an extra cannot be imported.
BARE = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from importlib import import_module
sys.exit(import_module(f"{{sys.argv[1]}}.__main__").main(sys.argv[2:]))
"""


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[; ]", each)[0] for each in requirements}


def bare(*words: str) -> subprocess.CompletedProcess[str]:
    missing = {name.replace("-", "_") for name in names(PROJECT["optional-dependencies"]["harness"])}
    code = BARE.format(names=missing)
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_core_needs_three_packages() -> None:
    assert names(PROJECT["dependencies"]) == {"numpy", "pyyaml", "rich"}
    from projector.io.guard import _EXTRA

    assert set(_EXTRA) == names(PROJECT["optional-dependencies"]["harness"])


@pytest.mark.parametrize(
    "line",
    [
        "projector ask --model llama3.1_8b --gpu h100 --gpus 8 --budget 0",
        "projector performance --config examples/deepseek_v3_h100.yaml",
        "projector memory --model qwen3_30b_a3b --gpu mi355x --gpus 16",
        "harness score measured/logs/cpu_gpt.log.gz",
    ],
)
def test_the_core_alone_answers(line: str) -> None:
    done = bare(*line.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("projector performance --config tests/jobs/train.sh --gpu h100 --gpus 8", "tree-sitter"),
        ("projector --completion bash", "shtab"),
        ("harness run strategies", "pandas"),
    ],
)
def test_what_the_core_cannot_do_says_what_it_needs(line: str, package: str) -> None:
    done = bare(*line.split())
    assert done.returncode == 2
    assert done.stderr.strip() == f"this needs the package {package}: pip install 'projector-harness[harness]'"


@pytest.mark.parametrize("file", ["run", "test"])
def test_what_run_installs_has_core_and_harness(file: str) -> None:
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / f"{file}.txt").read_text(), flags=re.MULTILINE))
    assert pinned >= names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["harness"])


def test_files_of_a_release_agree() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    tried = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    pythons = {each["python"] for each in tried["jobs"]["bounds"]["strategy"]["matrix"]["include"]}
    stated = {text.rsplit(" ", 1)[1] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    assert pythons == stated
