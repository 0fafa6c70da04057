"""Ranks of many runs laid out together hold what each run's ranks hold alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from projector.errors import InputError, Unsupported
from projector.frameworks.columns import Runs
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.memory.columns import lay_out
from projector.memory.holding import holdings, placement
from projector.memory.peaks import fullest
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
    held, _, refused = lay_out(Runs.of(every), CLUSTER.gpu)
    for row, error in refused.items():
        with pytest.raises(type(error)):
            holdings(every[row], CLUSTER.gpu.arch, placement(every[row]))
    for each in held:
        for place, row in enumerate(each.rows.tolist()):
            alone = holdings(every[row], CLUSTER.gpu.arch, placement(every[row]))
            fixed = [(rank.kept.total, rank.kept.state.step, rank.kept.state.construction) for rank in alone]
            assert each.held.fixed[place] == pytest.approx(np.array(fixed), rel=1e-13)
            sizes = [[chunk.sizes for chunk in rank.chunks] for rank in alone]
            assert each.held.chunks[place] == pytest.approx(np.array(sizes), rel=1e-12, abs=1.0)
    assert sorted([*refused, *(row for each in held for row in each.rows.tolist())]) == list(range(len(every)))
    needs, refused = fullest(Runs.of(every), CLUSTER.gpu, tensors=False)
    for row, run in enumerate(every):
        if row not in refused:
            alone = holdings(run, CLUSTER.gpu.arch, placement(run))
            least = max(max(rank.kept.total + rank.kept.state.step, rank.kept.state.construction) for rank in alone)
            beside = need(run, least, CLUSTER.gpu)
            assert (needs.required[row], needs.usable[row]) == pytest.approx(
                (beside.required, beside.usable), rel=1e-12
            )


def test_a_run_that_cannot_be_laid_out_spoils_no_other() -> None:
    every = runs("llama3_8b", "megatron-lm", 1)[:4]
    model = zoo.load("deepseek_v3.2")
    packed = Recipe(micro_batch_size=1, global_batch_size=64, seq_length=2048, document_lengths=(1024, 1024))
    mixed = [*every[:2], settle(Workload(model=model, recipe=packed, gpus=64), CLUSTER), *every[2:]]
    found, refused = fullest(Runs.of(mixed), CLUSTER.gpu)
    assert list(refused) == [2]
    assert np.isnan(found.required[2])
    for row, run in enumerate(mixed):
        alone, wrong = fullest(Runs.of([run]), CLUSTER.gpu)
        assert list(map(type, wrong.values())) == ([type(refused[2])] if row == 2 else [])
        assert np.array_equal(alone.required, found.required[row : row + 1], equal_nan=True)
