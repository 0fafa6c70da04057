"""Sweeps of 2,000 layouts through ``project_many``, beside the same layouts one by one and beside llm-analysis."""

import itertools
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from projector import project, project_many
from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

H100 = catalogue.default_cluster("h100_sxm")
NUMBER = 2000
HERE = Path(__file__).resolve().parent
GOALS = {"dense": 10_000, "experts": 4_000}  # configurations that are priced and evaluated, a second on one core


def dense(seq_length: int = 8192) -> list[Workload]:
    """Layouts of Llama-3 70B on 512 GPUs that divide, in an order without meaning."""
    model, gpus, found = zoo.load("llama3_70b"), 512, []
    sizes = itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 5), (1, 2, 4), (1, 2, 4), ("none", "selective", "full"), (512, 1024)
    )
    for tp, pp, vpp, cp, micro, recompute, batch in sizes:
        each = micro * gpus // (tp * pp * cp)
        if 80 % (pp * vpp) or (vpp > 1 and pp == 1) or batch % each or (vpp > 1 and batch // each % pp):
            continue
        recipe = Recipe(
            micro_batch_size=micro, global_batch_size=batch, seq_length=seq_length, tp=tp, pp=pp, vpp=vpp, cp=cp,
            recompute_granularity=recompute, sequence_parallel=tp > 1,
        )  # fmt: skip
        found.append(Workload(model=model, recipe=recipe, gpus=gpus))
    random.Random(0).shuffle(found)
    return found[:NUMBER]


def experts(seq_length: int = 4096) -> list[Workload]:
    """Layouts of DeepSeek-V3 on 1024 GPUs, three schedules among them."""
    model, gpus, found = zoo.load("deepseek_v3"), 1024, []
    sizes = itertools.product(
        *((1, 2, 4, 8), (1, 2, 4, 8, 16), (8, 16, 32, 64), (1, 2, 4), ("none", "selective", "full"), (4096, 8192)),
        ((None, 1), (None, 2), (None, 4), ("zbv", 2), ("zb_h1", 1)),
    )
    for tp, pp, ep, micro, recompute, batch, (schedule, vpp) in sizes:
        each = micro * gpus // (tp * pp)
        if (pp == 1 and vpp > 1) or (schedule and (pp == 1 or recompute == "full")):
            continue
        if batch % each or (vpp > 1 and batch // each % pp):
            continue
        recipe = Recipe(
            micro_batch_size=micro, global_batch_size=batch, seq_length=seq_length, tp=tp, pp=pp, vpp=vpp, ep=ep,
            pipeline_schedule=schedule, recompute_granularity=recompute, sequence_parallel=tp > 1,
            allow_uneven_pipeline_split=True, moe_token_dispatcher_type="flex",
        )  # fmt: skip
        found.append(Workload(model=model, recipe=recipe, gpus=gpus))
    random.Random(0).shuffle(found)
    return found[:NUMBER]


def alone(loads: list[Workload]) -> float:
    """The same through ``project``."""
    began, priced = time.process_time(), 0
    for load in loads:
        try:
            priced += project(load, H100).memory.fits
        except (InputError, Unsupported):
            continue
    return (time.process_time() - began) / priced


def swept(loads: list[Workload]) -> float:
    """Seconds through ``project_many`` of a configuration that is priced and evaluated; what is refused costs, too."""
    began = time.process_time()
    many = project_many(loads, H100, best=None)
    return (time.process_time() - began) / many.status.count("ok")


@pytest.mark.parametrize("layouts", [dense, experts])
def test_a_sweep_costs_less_than_its_layouts_one_by_one(
    benchmark: Any, layouts: Callable[[int], list[Workload]]
) -> None:
    """``first``: with what a process makes once; ``again``: nothing new; ``other``: other layer problems on the same
    schedules; ``many``: 16 lengths together, whose refusals take their part of the time; ``fitting``: those of them
    that fit, alone. Over the goal: 1 where it is met."""
    loads, goal = layouts(4096), GOALS[layouts.__name__]
    speeds = {"first": 1 / swept(loads), "again": 1 / swept(loads), "other": 1 / swept(layouts(8192))}
    benchmark.pedantic(project_many, (loads, H100), rounds=1)
    one = alone(loads[:100])
    many = [load for length in range(1024, 17 * 1024, 1024) for load in layouts(length)]
    speeds["many"] = 1 / swept(many)
    statuses = project_many(many, H100, best=0).status
    speeds["fitting"] = 1 / swept([load for load, status in zip(many, statuses, strict=True) if status == "ok"])
    benchmark.extra_info |= {f"{name}_per_s": speed for name, speed in speeds.items()} | {"project_per_s": 1 / one}
    benchmark.extra_info |= {f"{name}_over_goal": speed / goal for name, speed in speeds.items()}
    assert speeds["again"] * one > 1 / 0.3
    assert speeds["many"] > speeds["first"]  # what is built once serves more of them
    assert speeds["fitting"] > speeds["many"]  # nothing is refused


def passes(layouts: Callable[[int], list[Workload]], number: int) -> Iterator[Workload]:
    """Every pass is another layer problem for each layout."""
    return itertools.chain.from_iterable(layouts(1024 * (k + 1)) for k in range(number))


@pytest.mark.parametrize("layouts", [dense, experts])
def test_a_long_sweep_fills_no_memory(layouts: Callable[[int], list[Workload]]) -> None:
    """Peak memory of the process, once what is remembered is as much as it ever is."""
    project_many(passes(layouts, 4), H100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    project_many(passes(layouts, 5), H100)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after < 1.25 * before


@pytest.mark.night
@pytest.mark.parametrize("layouts", ["dense", "experts"])
def test_a_hundred_thousand_configurations_need_less_than_300_megabytes(layouts: str) -> None:
    """In a process of its own, since this one holds what came before."""
    text = (
        "import resource, test_many_speed as speed\n"
        f"speed.project_many(speed.passes(speed.{layouts}, 50), speed.H100)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 300e6
