"""A workload in one line, as most tests of projections need one."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from asked import put

from projector.operators.weights import Weight, WeightSet, weight_set
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


def workload(
    model: Model | str = "llama3_8b", gpus: int = 8, framework: str = "megatron-lm", **recipe: Any
) -> Workload:
    """``model``: or its name in the zoo; ``recipe`` over micro-batches of a sample of 4,096 tokens, 64 samples a step."""
    whole = zoo.load(model) if isinstance(model, str) else model
    said = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096} | recipe
    return Workload(model=whole, recipe=Recipe(**said), gpus=gpus, framework=framework)


def sharded(
    model: Model | str = "llama3_8b", gpus: int = 64, framework: str = "megatron-lm", **recipe: Any
) -> Workload:
    """The same without recomputation, its optimizer sharded, 128 samples a step."""
    stated = {"global_batch_size": 128, "recompute_granularity": "none", "data_parallel_sharding": "optim"} | recipe
    return workload(model, gpus, framework, **stated)


def weights(dense: int, expert: int) -> WeightSet:
    """So many elements outside and of routed experts."""
    return weight_set([([Weight(name="dense", rows=dense), Weight(name="experts", rows=expert, expert=True)], 1)])


def written(file: Path, content: Mapping[str, Any], changes: Mapping[str, object]) -> Path:
    """``content`` as a YAML file, with other values at the dotted paths of ``changes``."""
    made = copy.deepcopy(dict(content))
    for path, value in changes.items():
        inside: Any = made
        *steps, last = path.split(".")
        for step in steps:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return put(file, yaml.safe_dump(made))
