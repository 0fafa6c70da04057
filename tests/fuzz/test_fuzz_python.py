"""Values of every type in every field of what the Python API takes: an answer, or what is wrong. Nothing else."""

import dataclasses
import decimal
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from asked import refusal

from projector import project
from projector.errors import InputError, NoMeasurement, Unsupported
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.kernels.settings import Settings
from projector.memory.plan import plan
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.fuzz.mutations import MANY


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


VALUES: tuple[Any, ...] = (
    *("8", "", "bf16", "x" * 5_000, "é\ud800", "../..", "none", None, True, False, b"x"),
    *(0, -1, 1, 2, 3, 7, 8, 10**9, 2**63, 10**400, 10**5_000),
    *(1.5, -0.5, 0.0, 1e-300, 1e300, math.nan, math.inf, -math.inf, 1 + 2j, decimal.Decimal(2)),
    *(np.int64(8), np.float64(1.5), np.array([1, 2]), np.bool_(True)),
    *([], [1], {}, {"a": 1}, set(), (), (1, 2), ("a",), (None,), ([],), range(3)),
    *(Odd(), object, int, Recipe, lambda: 1),
)
WORKLOADS = (
    Workload(
        model=zoo.load("deepseek_v2"),
        recipe=Recipe(micro_batch_size=1, global_batch_size=64, seq_length=4096, ep=8, pp=4),
        gpus=32,
    ),
    Workload(
        model=zoo.load("llama3_8b"),
        recipe=Recipe(micro_batch_size=1, global_batch_size=64, seq_length=4096, tp=2, lora=LoRA(dim=8)),
        gpus=16,
    ),
)
CLUSTER = catalogue.cluster("mi355x")
ENTRIES = {
    "project": lambda workload, cluster: project(workload, cluster),
    "resolve": lambda workload, cluster: resolve(workload),
    "plan": lambda workload, cluster: plan(resolve(workload), cluster.gpu),
}


def fields(item: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in dataclasses.fields(item):
        yield (*path, field.name)
        value = getattr(item, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, (*path, field.name))


def put(item: Any, path: tuple[str, ...], value: object) -> Any:
    inner = value if len(path) == 1 else put(getattr(item, path[0]), path[1:], value)
    return dataclasses.replace(item, **{path[0]: inner})


def tries(seeds: range) -> tuple[int, int]:
    """(answers, refusals) of changed arguments. Raises what an entry raises beyond what it may."""
    answered = refused = 0
    places = [[*fields(workload)] for workload in WORKLOADS]
    for seed in seeds:
        rng = random.Random(seed)
        which = rng.randrange(len(WORKLOADS))
        workload, cluster = WORKLOADS[which], CLUSTER
        changes = [(path, rng.choice(VALUES)) for path in rng.sample(places[which], rng.choice((1, 1, 2)))]
        try:
            for path, value in changes:
                workload = put(workload, path, value)
            if rng.random() < 0.3:
                cluster = put(cluster, rng.choice([*fields(cluster)]), rng.choice(VALUES))
        except (TypeError, AttributeError):
            continue  # the second change was inside what the first one replaced
        name = rng.choice((*ENTRIES, "project"))
        try:
            ENTRIES[name](workload, cluster)
            answered += 1
        except (InputError, Unsupported, NoMeasurement) as error:
            assert len(str(error)) < 20_000  # noqa: PT017
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
    return answered, refused


def test_wrong_values_are_refused() -> None:
    answered, refused = tries(range(1_000))
    assert answered > 20
    assert refused > 400


@pytest.mark.slow
def test_very_many_wrong_values() -> None:
    tries(range(10_000, 10_000 + MANY))


@pytest.mark.parametrize("value", [8, "x", None, [], Odd()])
def test_whole_arguments(value: object) -> None:
    workload = WORKLOADS[1]
    for call in (
        lambda: project(value, CLUSTER),  # type: ignore[arg-type]
        lambda: project(workload, value),  # type: ignore[arg-type]
        lambda: project(workload, CLUSTER, value),  # type: ignore[arg-type]
        lambda: project(workload, CLUSTER, settings=value),  # type: ignore[arg-type]
        lambda: project(workload, CLUSTER, efficiency=value or 1),  # type: ignore[arg-type]
        lambda: project(workload, CLUSTER, settings=Settings(gpu_clock_mhz=[value])),  # type: ignore[arg-type]
        lambda: project(workload, CLUSTER, settings=Settings(gpu_clock_mhz=-1.0)),
        lambda: resolve(value),  # type: ignore[arg-type]
        lambda: plan(value, CLUSTER.gpu),  # type: ignore[arg-type]
        lambda: plan(resolve(workload), value),  # type: ignore[arg-type]
    ):
        refusal(call)


def test_all_mistakes_at_once_with_their_fields() -> None:
    wrong = put(put(put(WORKLOADS[0], ("recipe", "tp"), "8"), ("recipe", "seq_length"), -1), ("recipe", "pp"), 1.5)
    wrong = put(put(wrong, ("model", "moe", "num_experts"), None), ("recipe", "precision"), "fp7")
    caught = refusal(project, wrong, put(CLUSTER, ("gpu", "memory_bandwidth"), "fast"))
    keys = {problem.key for problem in caught.problems}
    assert keys == {
        *("recipe.tp", "recipe.pp", "recipe.seq_length", "recipe.precision", "model.moe.num_experts"),
        "cluster.gpu.memory_bandwidth",
    }


def test_values_that_are_sound_are_not_looked_at_again() -> None:
    """What is remembered of an object is lost when it changes: a frozen dataclass changes by becoming another."""
    workload = WORKLOADS[1]
    project(workload, CLUSTER)
    for value in ("2", 2.0, True, np.int64(2)):
        refusal(project, put(workload, ("recipe", "tp"), value), CLUSTER, match=r"recipe\.tp")
