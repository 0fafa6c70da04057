"""Ranks of many runs laid out together hold what each run's ranks hold alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from projector.errors import InputError, Unsupported
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.memory.columns import Laid, laid
from projector.memory.holding import holdings, placement
from projector.memory.peaks import least
from projector.memory.verdict import need
from projector.settle.workload import settle
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

CLUSTER = catalogue.default_cluster("h100_sxm")
SWITCHES: tuple[dict[str, Any], ...] = (
    {"recompute_granularity": "selective"},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 3},
    {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
    {"cpu_offloading_num_layers": 2},
    {"data_parallel_sharding": "optim_grads_params"},
    {"optimizer": "muon"},
    {"precision": "fp8"},
    {},
)


def runs(model: str, framework: str, seed: int) -> list[Resolved]:
    """Layouts of a model that its framework would run."""
    draw, found = random.Random(seed), list[Resolved]()
    for _ in range(120):
        sizes = {name: draw.choice((1, 2, 4, 8)) for name in ("tp", "pp", "micro_batch_size")}
        sizes |= {"cp": draw.choice((1, 1, 2)), "vpp": draw.choice((1, 1, 2)), "seq_length": draw.choice((2048, 4096))}
        if zoo.load(model).moe is not None:
            sizes["ep"] = draw.choice((1, 4, 8))
        given = {
            "global_batch_size": 512,
            "allow_uneven_pipeline_split": True,
            "sequence_parallel": draw.random() < 0.5,
        }
        recipe = Recipe(**(sizes | given | draw.choice(SWITCHES)))
        try:
            found.append(settle(Workload(model=zoo.load(model), recipe=recipe, gpus=64, framework=framework), CLUSTER))
        except (InputError, Unsupported):
            continue
    return found


@pytest.mark.parametrize(
    ("model", "framework"), [("llama3_8b", "deepspeed"), ("deepseek_v3", "megatron-lm"), ("mixtral_8x7b", "torchtitan")]
)
def test_ranks_laid_out_together_hold_what_they_hold_alone(model: str, framework: str) -> None:
    every = runs(model, framework, 0)
    assert len(every) > 15
    for run, together in zip(every, laid(every, CLUSTER.gpu), strict=True):
        if not isinstance(together, Laid):
            with pytest.raises(type(together)):
                holdings(run, CLUSTER.gpu.arch, placement(run))
            continue
        alone = holdings(run, CLUSTER.gpu.arch, together.flight.placement)
        fixed = [(rank.kept.total, rank.kept.state.step, rank.kept.state.construction) for rank in alone]
        assert together.held.fixed == pytest.approx(np.array(fixed), rel=1e-13)
        sizes = [[chunk.sizes for chunk in rank.chunks] for rank in alone]
        assert together.held.chunks == pytest.approx(np.array(sizes), rel=1e-12, abs=1.0)
    for run, weighed in zip(every, laid(every, CLUSTER.gpu, tensors=False), strict=True):
        if isinstance(weighed, Laid):
            alone = holdings(run, CLUSTER.gpu.arch, weighed.flight.placement)
            least_of = max(max(rank.kept.total + rank.kept.state.step, rank.kept.state.construction) for rank in alone)
            beside = need(run, least_of, CLUSTER.gpu)
            assert least(weighed, CLUSTER.gpu) == pytest.approx(beside, rel=1e-12)


def test_a_run_that_cannot_be_laid_out_spoils_no_other() -> None:
    every = runs("llama3_8b", "megatron-lm", 1)[:4]
    model = zoo.load("deepseek_v3.2")
    packed = Recipe(micro_batch_size=1, global_batch_size=64, seq_length=2048, document_lengths=(1024, 1024))
    mixed = [*every[:2], settle(Workload(model=model, recipe=packed, gpus=64), CLUSTER), *every[2:]]
    found = laid(mixed, CLUSTER.gpu)
    assert [isinstance(each, Laid) for each in found] == [True, True, False, True, True]
    for run, each in zip(mixed, found, strict=True):
        [alone] = laid([run], CLUSTER.gpu)
        assert type(each) is type(alone)
        if isinstance(each, Laid) and isinstance(alone, Laid):
            assert np.array_equal(each.held.fixed, alone.held.fixed)
