"""Every item of the founding documents, run as they print it (``items.yaml``), and every flag on the examples."""

import ast
import json
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import command_line
import pytest
import tprimat
import yaml
from asked import ROOT

SHIPPED = ROOT.parent / "shared" / "inputs" / "primus" / "examples" / "megatron" / "configs"
TABLES = [
    yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(Path(__file__).parent.glob("*items.yaml"))
]
ITEMS: dict[str, dict[str, Any]] = {item["id"]: item for table in TABLES for item in table["items"]}
RUNS: dict[str, str] = {name: run for table in TABLES for name, run in table["runs"].items()}
FIGURES: dict[str, str] = {name: at for table in TABLES for name, at in table.get("figures", {}).items()}
RUNNER = "bash runner/primus-cli direct --script primus/cli/main.py -- projection "
#: What the documents leave to the reader.
MODEL, NODES = "MI300X/deepseek_v2_lite-BF16-pretrain.yaml", "4"
#: Hardware files: the figures that the skill prints, a slow network, keys that act elsewhere.
FILES = {
    "mi355x.yml": {"node_bw": 896.0, "pod_bw": 48.0, "bw_eff": 0.88, "nics_per_node": 8, "a2a_peer_lat": 0.5},
    "slow.yml": {"pod_bw": 5.0},
    "idle.yml": {"node_bw": 100, "node_topology": "mesh", "switch_topology": True, "p2p_bw_eff": 0.5},
    "felt.yml": {"nic_rdma_setup_us": 260, "switch_topology": False, "pod_bw": 25, "node_topology": "mesh"},
}
EXPECTED = {"shows", "lacks", "refuses", "is", "less", "more", "same", "ratio", "within", "held", "not"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("founding")
    for name, keys in FILES.items():
        (made / name).write_text(yaml.safe_dump({"hardware_config": keys}))
    tprimat.folders(made)
    return made


def words(text: str, folder: Path) -> list[str]:
    """A command line of the table as arguments of ``projector``, or of the program that is its first word."""
    first, _, rest = text.partition(" ")
    said = shlex.split(f"{RUNS.get(first, first)} {rest}")
    return [_place(word, folder) for word in said]


def _place(word: str, folder: Path) -> str:
    """A file of the documents as it is here, or the reader's own value."""
    word = {"<model_config.yaml>": MODEL, "<N>": NODES}.get(word, word).removeprefix("examples/megatron/configs/")
    name = word.rpartition("/")[2]
    if word.startswith("MI3") and not SHIPPED.is_dir():
        pytest.skip("the experiments that Primus ships (../shared) are not on this machine")
    if name in FILES or word.startswith("output-"):
        return str(folder / (name if name in FILES else word))
    return str(SHIPPED / word) if word.startswith("MI3") else word


@cache
def run(arguments: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> command_line.Done:
    program, *rest = arguments if arguments[0] == "harness" else ("projector", *arguments)
    return command_line.run(program, *rest, env=dict(env))


def value(name: str, text: str, folder: Path, env: Mapping[str, str]) -> Any:
    """A figure of the JSON document of a run: its name in the table, or its path."""
    said = words(text, folder)
    done = run((*said, "--json"), tuple(env.items()))
    assert (done.returncode, done.stderr) == (0, ""), (shlex.join(said), done.stderr)
    found = json.loads(done.stdout)
    for key in FIGURES.get(name, name).split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


def _params() -> list[Any]:
    return [pytest.param(key, marks=[pytest.mark.night] if item.get("night") else []) for key, item in ITEMS.items()]


@pytest.mark.parametrize("key", _params())
def test_it_works_as_the_document_says(key: str, folder: Path) -> None:
    item = ITEMS[key]
    assert EXPECTED & set(item), "an item that nothing checks"
    if "held" in item:
        file, _, test = item["held"].partition("::")
        assert test in {
            node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
        }
    if "held" in item or "not" in item:
        return
    text, env = item.get("run") or item["printed"].removeprefix(RUNNER), item.get("env", {})
    if {"shows", "lacks", "refuses"} & set(item):
        done = run(tuple(words(text, folder)), tuple(env.items()))
        assert done.returncode == (2 if "refuses" in item else 0), done.stderr
        assert item.get("refuses", "") in done.stderr
        assert [words for words in item.get("shows", ()) if words not in done.stdout] == [], done.stdout
        assert [words for words in item.get("lacks", ()) if words in done.stdout] == [], done.stdout
    for name, expected in item.get("is", {}).items():
        assert value(name, text, folder, env) == expected
    for name, other in item.get("less", {}).items():
        assert value(name, text, folder, env) < value(name, other, folder, env) * (1 - 1e-9), name
    for name, other in item.get("more", {}).items():
        assert value(name, text, folder, env) > value(name, other, folder, env) * (1 + 1e-9), name
    for name, other in item.get("same", {}).items():
        assert value(name, text, folder, env) == value(name, other, folder, env), name
    for name, (other, low, high) in item.get("ratio", {}).items():
        assert low <= value(name, text, folder, env) / value(name, other, folder, env) <= high, name
    for name, (low, high) in item.get("within", {}).items():
        assert low <= value(name, text, folder, env) <= high, name
