"""Tiny runs that time layers within a second, and stand-ins of libraries that are not installed."""

import sys
import types
from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import Any

import pytest

from projector.workload import zoo
from projector.workload.workload import Workload
from tests.workloads import workload

SIZES = {
    "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 16,
    "vocab_size": 512,
}  # fmt: skip
#: A file of such a run.
SMALL: dict[str, Any] = {
    "model": {"base": "llama3_8b", "num_layers": 2, **SIZES},
    "recipe": {"micro_batch_size": 1, "global_batch_size": 2, "seq_length": 64, "precision": "bf16"},
    "gpus": 1,
    "cluster": "cpu",
}
#: The same on two ranks.
TWO_RANKS = {"model.num_layers": 1, "recipe": {**SMALL["recipe"], "seq_length": 32, "precision": "fp32"}, "gpus": 2}
TWO_RANKS |= {"recipe.data_parallel_sharding": "no_shard", "framework": "pytorch"}


def tiny(
    name: str = "llama3_8b", gpus: int = 1, framework: str = "pytorch", layers: int = 2, **recipe: Any
) -> Workload:
    """Layers of ``name`` as narrow as that."""
    made = zoo.load(name, num_layers=layers, **SIZES)
    return workload(made, gpus, framework, **{"global_batch_size": 2, "seq_length": 32, "precision": "fp32"} | recipe)


def stand_in(monkeypatch: pytest.MonkeyPatch, contents: Mapping[str, Mapping[str, Any]]) -> dict[str, types.ModuleType]:
    """Modules by name, each with these names in it, and the packages around them, where ``import`` finds them."""
    made: dict[str, types.ModuleType] = {}
    for name in contents:
        for end in (*(at for at, letter in enumerate(name) if letter == "."), None):
            made.setdefault(name[:end], types.ModuleType(name[:end]))
    for name, module in made.items():
        vars(module).update(contents.get(name, {}), __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
    return made


def arguments(name: str, *bases: type, **defaults: Any) -> Any:
    """A class of a library's arguments with these ``defaults``."""
    return make_dataclass(name, [(field, Any, default) for field, default in defaults.items()], bases=bases)
