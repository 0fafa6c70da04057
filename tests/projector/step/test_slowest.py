"""All chips of a step wait for the slowest: an expected maximum, of products alone."""

from __future__ import annotations

import numpy as np
import pytest

from projector.hardware.catalogue import default_cluster
from projector.hardware.efficiency import load
from projector.operators.types import Attention, Collective, Gemm, HostWork, Stream
from projector.projection import project
from projector.step.slowest import slowed, slowest
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

H100 = load("h100_sxm")


def test_one_chip_waits_for_nobody() -> None:
    assert slowest(H100, 1) == 1.0
    assert slowest(load("cpu"), 64) == 1.0  # cores of one machine


@pytest.mark.parametrize("gpus", [2, 8, 64, 512])
def test_it_is_the_maximum_of_so_many_draws(gpus: int) -> None:
    draws = np.random.default_rng(1).normal(1.0, H100["clock.spread"], (20_000, gpus))
    assert slowest(H100, gpus) - 1.0 == pytest.approx(draws.max(axis=1).mean() - 1.0, rel=0.07)


def test_more_chips_are_never_faster() -> None:
    factors = [slowest(H100, gpus) for gpus in range(1, 2000, 7)]
    assert factors == sorted(factors)
    assert 1.02 < slowest(H100, 8) < slowest(H100, 1024) < 1.06


def test_only_what_the_clock_drives_is_slowed() -> None:
    product = Gemm(name="p", m=1, n=1, k=1)
    heads = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 1, "seq_k": 1, "head_dim_qk": 1, "head_dim_v": 1}
    attention, norm = Attention(name="a", **heads), Stream(name="n", kind="norm", read=1, write=1)
    others = (norm, Collective(name="c", kind="all_reduce", group="tp", bytes=1.0), HostWork(name="h"))
    seconds = slowed(dict.fromkeys((product, attention, *others), 1.0), 1.05)
    assert [seconds[op] for op in (product, attention)] == [1.05, 1.05]
    assert all(seconds[op] == 1.0 for op in others)


def test_replicas_of_one_rank_slow_each_other() -> None:
    """Weak scaling: the same work on every rank, products longer by the ratio of the two maxima."""

    def compute(gpus: int) -> float:
        recipe = Recipe(micro_batch_size=1, global_batch_size=gpus, seq_length=4096, data_parallel_sharding="no_shard")
        load = Workload(model=zoo.load("llama3_8b"), recipe=recipe, gpus=gpus, framework="megatron-lm")
        return project(load, default_cluster("h100_sxm")).stage_seconds[0][0]

    one, eight, many = compute(1), compute(8), compute(512)
    assert one < eight < many < one * slowest(H100, 512)
