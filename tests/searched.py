"""Spaces of a few layouts, and each of their layouts one by one: what a search is held against."""

import random
from functools import cache
from typing import Any

import pytest

from projector import project_many
from projector.hardware import catalogue
from projector.many import Many
from projector.search.space import Space, space, with_fields
from projector.search.tree import Tree
from projector.workload.workload import Workload
from tests.workloads import workload

__all__ = ["H100", "SEEDS", "base", "brute", "every_layout", "small"]

H100 = catalogue.default_cluster("h100_sxm")
#: In every run: each framework, each cluster, dense and experts, of few layouts each; the others at night.
SOON = (7, 19, 22)
SEEDS = [pytest.param(i, marks=() if i in SOON else pytest.mark.night) for i in (*range(20), 22)]


def base(model: str, gpus: int, framework: str = "megatron-lm", batch: int = 64, **stated: Any) -> Workload:
    return workload(model, gpus, framework, global_batch_size=batch, **stated)


@cache
def small(seed: int) -> tuple[Space, Any]:
    """A space of some hundred configurations on a cluster, by its seed."""
    draw = random.Random(seed)
    cluster = catalogue.default_cluster(draw.choice(("h100_sxm", "mi300x", "gb200")))
    model = draw.choice(("llama3_8b", "qwen3_30b_a3b", "deepseek_v2_lite", "llama3_70b"))
    load = base(model, 128 if model == "llama3_70b" else 32, draw.choice(("megatron-lm", "primus", "torchtitan")), 128)
    only: dict[str, Any] = {
        "tp": draw.sample((1, 2, 4, 8), 2),
        "pp": draw.sample((1, 2, 4), 2),
        "vpp": (1, 2),
        "cp": draw.choice(((1,), (2,))),
        "micro_batch_size": draw.sample((1, 2, 4), 2),
        "recompute_num_layers": (None, draw.choice((1, 2, 4))),
        "sequence_parallel": (True, False),
    }
    if load.framework != "torchtitan":
        only["tp_comm_overlap"] = (draw.choice((True, False)),)
        only["data_parallel_sharding"] = ("optim",)
    if load.model.moe is not None:
        only |= {"ep": (draw.choice((4, 8)),), "etp": (1,)}
    return space(load, cluster, only=only), cluster


@cache
def brute(seed: int) -> tuple[list[dict[str, Any]], Many]:
    made, cluster = small(seed)
    every = every_layout(Tree(made))
    return every, project_many([with_fields(made.base, each) for each in every], cluster, best=None)


def every_layout(tree: Tree) -> list[dict[str, Any]]:
    """The recipe fields of each layout of ``tree``, none left out."""
    return [
        tree.fields(branch.shape, branch.pipe, layer, one)
        for branch in tree.branches()
        for layer, once in zip(branch.layers, branch.step_options, strict=True)
        for one in once
    ]
