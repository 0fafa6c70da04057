"""What an installation brings: a core of three packages, extras that say what they are for, files of a release."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import ROOT
from tabled import tabled

from tests.docs_tools import DOCS

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


@pytest.mark.parametrize(("line", "package"), tabled("refusals", "core_alone"))
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


# What counts as a line of code.


MODULE = '''"""A docstring
of two lines."""

import os
from a import (
    b,
)


# a comment
def f(x: int) -> str:  # 1
    """Another."""
    return (  # 2, 3, 4
        "text"
    )
'''


def test_blanks_comments_docstrings_and_imports_are_no_code() -> None:
    count = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "lines.py"))["code_lines"]
    assert count(MODULE) == 4
    assert count("") == 0


# The notebook of the documentation runs as it stands, and what it shows is what it was written with: after a change of.


NOTEBOOK = DOCS / "start" / "sweep.ipynb"


def cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell: Any) -> list[str]:
    """Plain texts of a cell that do not depend on versions of a library."""
    texts = ("".join(output.get("data", {}).get("text/plain", "")) for output in cell["outputs"])
    return [text for text in texts if "<" not in text]


def test_a_sweep_to_a_picture_takes_eight_lines_and_is_stored_with_it() -> None:
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    sweep, best = cells(stored)
    assert len("".join(sweep["source"]).splitlines()) <= 8
    assert any("image/png" in output["data"] for output in sweep["outputs"])
    assert any("text/html" in output["data"] for output in best["outputs"])


@pytest.mark.slow
def test_it_shows_today_what_is_stored(monkeypatch) -> None:
    client = pytest.importorskip("nbclient", reason="nbclient is not installed (extra test)")
    pytest.importorskip("ipykernel", reason="there is no kernel of Jupyter")
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    stored = nbformat.read(NOTEBOOK, as_version=4)
    made = client.NotebookClient(nbformat.read(NOTEBOOK, as_version=4), timeout=300).execute()
    assert [shown(cell) for cell in cells(made)] == [shown(cell) for cell in cells(stored)]
    assert any("image/png" in output["data"] for output in cells(made)[0]["outputs"])
