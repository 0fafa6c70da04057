"""Every field of a recipe changes something: the time, the memory, or whether the run is possible at all."""

import dataclasses
from typing import Any

import pytest
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.projection import project
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

BASE: dict[str, Any] = {
    "micro_batch_size": 2, "global_batch_size": 256, "seq_length": 4096, "recompute_granularity": "none",
    "data_parallel_sharding": "optim",
}  # fmt: skip

CASES: dict[str, tuple[object, object, dict[str, Any]]] = {
    **tabled("workloads", "switches"),
    "lora": (None, LoRA(dim=16), {}),
}


def outcome(**stated: Any) -> object:
    model = zoo.load(stated.pop("model", "llama3_8b"))
    if "num_layers" in stated:
        model = dataclasses.replace(model, num_layers=stated.pop("num_layers"))
    framework = stated.pop("framework", "megatron-lm")
    cluster = catalogue.default_cluster(stated.pop("gpu", "h100_sxm"))
    work = Workload(model=model, recipe=Recipe(**(BASE | stated)), gpus=64, framework=framework)
    try:
        made = project(work, cluster)
    except (InputError, Unsupported) as error:
        return str(error)
    return made.step_seconds, made.memory.reserved, made.memory.usable, made.memory.required


def test_no_field_is_left_out() -> None:
    later = {"mock_data"}  # what fills the sequences is not a switch
    assert set(CASES) | later >= {f.name for f in dataclasses.fields(Recipe)}


@pytest.mark.parametrize("field", CASES)
def test_a_field_changes_something(field: str) -> None:
    one, other, rest = CASES[field]
    assert outcome(**(rest | {field: one})) != outcome(**(rest | {field: other}))
