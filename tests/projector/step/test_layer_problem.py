"""A projection does not depend on those before it: what runs share is only what both would have found alone."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.memo import forget
from projector.projection import Projection, project
from projector.step import priced
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

H100 = catalogue.default_cluster("h100_sxm")
SWITCHES = {
    "pipeline_schedule": (None, "zb_1p", "zbv", "v_min", "interleaved"),
    "overlap_grad_reduce": (None, False, True),
    "overlap_param_gather": (None, False, True),
    "data_parallel_sharding": ("no_shard", "optim", "optim_grads_params"),
    "recompute_granularity": ("none", "selective", "full"),
    "recompute_method": (None, "uniform", "block"),
    "recompute_num_layers": (None, 1, 2),
    "defer_embedding_wgrad_compute": (None, True),
    "num_distributed_optimizer_instances": (None, 2),
    "overlap_moe_expert_parallel_comm": (None, True),
    "delay_wgrad_compute": (None, True),
    "fsdp_reshard_after_forward": (None, False),
    "defer_fsdp_grad_sync": (None, True),
    "xla_gpu_all_gather_combine_threshold_bytes": (None, 2**33),
    "xla_gpu_enable_pipelined_all_gather": (None, True),
    "xla_gpu_enable_while_loop_double_buffering": (None, True),
    "optimizer": (None, "muon"),
    "first_last_layers_bf16": (None, True),
    "num_layers_at_end_in_bf16": (None, 3),
    "precision": ("bf16", "fp8"),
    "account_for_loss_in_pipeline_split": (False, True),
}


def layouts(number: int, seed: int) -> list[Workload]:
    draw = random.Random(seed)
    models = {name: zoo.load(name) for name in ("llama3_8b", "qwen3_30b_a3b", "deepseek_v2_lite")}
    found = []
    while len(found) < number:
        name = draw.choice(list(models))
        sizes = {"tp": draw.choice((1, 2, 4)), "pp": draw.choice((1, 2, 4)), "vpp": draw.choice((1, 2))}
        switches = {key: draw.choice(values) for key, values in SWITCHES.items() if draw.random() < 0.4}
        recipe = Recipe(
            micro_batch_size=draw.choice((1, 2)),
            global_batch_size=draw.choice((256, 512)),
            seq_length=4096,
            ep=1 if name == "llama3_8b" else draw.choice((1, 8)),
            sequence_parallel=sizes["tp"] > 1,
            allow_uneven_pipeline_split=True,
            **sizes,
            **switches,  # type: ignore[arg-type]
        )
        framework = draw.choice(("megatron-lm", "megatron-lm", "torchtitan", "maxtext"))
        found.append(Workload(model=models[name], recipe=recipe, gpus=64, framework=framework))
    return found


def tried(load: Workload) -> Projection | None:
    try:
        return project(load, H100)
    except (InputError, Unsupported):
        return None


def test_a_projection_is_the_same_with_and_without_those_before_it(every: int) -> None:
    loads = layouts(250 // every + 25, 7)
    together = [tried(load) for load in loads]
    assert sum(made is not None for made in together) > 40 // every + 5
    for load, one in zip(loads, together, strict=True):
        forget()
        alone = tried(load)
        assert (one is None) == (alone is None)
        if one is not None and alone is not None:
            assert one.step_seconds == pytest.approx(alone.step_seconds, rel=1e-12), load.recipe
            assert one.memory.allocated == alone.memory.allocated
            assert one.breakdown == pytest.approx(alone.breakdown, rel=1e-9, abs=1e-12)


def test_layouts_of_one_problem_share_their_layers() -> None:
    load = Workload(
        model=zoo.load("llama3_8b"),
        recipe=Recipe(micro_batch_size=1, global_batch_size=128, seq_length=4096, tp=2, sequence_parallel=True),
        gpus=64,
    )
    forget()
    for pp, batch in itertools.product((2, 4, 8), (128, 256)):
        project(replace(load, recipe=replace(load.recipe, pp=pp, global_batch_size=batch)), H100)
    assert len(priced._LAYERS) == 1
