"""A vision tower before a language model against a real one, and its laws."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from asked import refusal
from lowering_cases import flops, phases, resolved

from projector.errors import Unsupported
from projector.frameworks.flops import flops_per_token, step_seconds
from projector.hardware import catalogue
from projector.layers import lower
from projector.operators.weights import weight_set
from projector.projection import project
from projector.settle.workload import settle
from projector.step.stages import owned, parts
from projector.workload import zoo
from projector.workload.composition import compositions
from projector.workload.lora import LoRA
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.towers import Vision
from projector.workload.workload import Workload

CLUSTER = catalogue.cluster("h100")
LLAVA = zoo.load("llava_1.5_7b", vocab_size=32768)  # whole multiples of 128 · tp: no padding
ALONE = replace(LLAVA, vision=None)


def run(model: Any = LLAVA, gpus: int = 16, **change: Any) -> Workload:
    given = {"micro_batch_size": 2, "global_batch_size": 64, "seq_length": 2048, "pp": 2, "tp": 4, **change}
    return Workload(model=model, recipe=Recipe(**given), gpus=gpus)


@pytest.mark.parametrize("merge", [1, 2])
def test_a_tower_and_its_projector_are_what_real_ones_are(merge: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")
    from test_real_modules import BATCH, GQA, eager, same  # type: ignore[import-not-found]

    from tests.projector.layers import torch_layers as real
    from tests.projector.layers import torch_norms

    tower = Vision(
        num_layers=2, hidden_size=128, ffn_hidden_size=512, num_attention_heads=4, projector_hidden_size=320, image_size=64,
        patch_size=8, spatial_merge_size=merge, post_norm=True, class_token=merge == 1,
    )  # fmt: skip
    model = replace(GQA, vision=tower)
    made = eager(model)
    kinds = model.tower_kinds
    seen = model.within(kinds[1])

    class Still(real.Attention):  # type: ignore[misc]
        """Without rotation or mask."""

        def forward(self, x: Any) -> Any:
            q, k, v = (one(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for one in (self.q, self.k, self.v))
            return self.o(torch_norms._Flash.apply(q, k, v).flatten(2))

    class Tower(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            h, out = tower.hidden_size, model.hidden_size
            self.patches = torch.nn.Conv2d(3, h, tower.patch_size, tower.patch_size, bias=False)
            self.first = torch.nn.Parameter(torch.zeros(1, 1, h)) if tower.class_token else None
            self.positions = torch.nn.Parameter(torch.zeros(tower.tokens, h))
            self.before, self.after = torch.nn.LayerNorm(h), torch.nn.LayerNorm(h)
            self.layers = torch.nn.ModuleList(real.Layer(seen, kinds[1]) for _ in kinds)
            for layer in self.layers:
                layer.attention = Still(seen)
            up = torch.nn.Linear(tower.merged, tower.projector_hidden_size)
            self.projector = torch.nn.Sequential(up, torch.nn.GELU(), torch.nn.Linear(tower.projector_hidden_size, out))

        def forward(self, x: Any) -> Any:
            pixels = torch.zeros(BATCH, 3, tower.image_size, tower.image_size, dtype=x.dtype)
            x = self.patches(pixels).flatten(2).transpose(1, 2)
            if self.first is not None:
                x = torch.cat((self.first.expand(BATCH, -1, -1), x), 1)
            x = self.before(x + self.positions)
            for layer in self.layers:
                x = layer(x)
            x = self.after(x)[:, tower.class_token * 1 :].contiguous()
            return self.projector(x.reshape(BATCH, tower.image_tokens, tower.merged))

    found = same([lower.layer(kind, made) for kind in kinds], Tower(), model)
    assert count(model).main - count(replace(model, vision=None)).main == found.parameters


def test_tensor_parallel_ranks_share_what_one_rank_does() -> None:
    """But for the patches, which are whole on each."""
    tower = LLAVA.vision
    assert tower is not None
    whole, shard = (
        [lower.layer(kind, resolved(LLAVA, tp=tp, sequence_parallel=tp > 1)) for kind in LLAVA.tower_kinds]
        for tp in (1, 4)
    )
    patches = 2 * 2 * tower.patches * tower.patch_elements * tower.hidden_size
    done = [sum(flops(phase) for block in blocks for phase in phases(block)) - patches for blocks in (whole, shard)]
    assert 4 * done[1] == pytest.approx(done[0])
    split = [weight for block in shard for weight in block.weights]
    once = sum(weight.elements * (4 if weight.split else 1) for weight in split)
    assert once == count(LLAVA).main - count(ALONE).main


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_the_tower_stands_on_the_first_stage_and_all_stages_are_the_model(pp: int) -> None:
    case = settle(run(pp=pp, tp=1, make_vocab_size_divisible_by=1), CLUSTER)
    stages = compositions(case.workload.model, case.workload.recipe)[1]
    towers = [sum(layer.kind.tower is not None for layer in stage.layers) for stage in stages]
    assert towers == [24] + [0] * (pp - 1)
    assert sum(owned(case, parts(case, stage)).total for stage in stages) == count(LLAVA).main


def test_no_image_is_the_language_model_and_images_add_up() -> None:
    none, alone = project(run(images_per_sample=0), CLUSTER), project(run(ALONE), CLUSTER)
    assert (none.step_seconds, none.memory.allocated) == (alone.step_seconds, alone.memory.allocated)
    assert none.mfu == alone.mfu
    made = [project(run(images_per_sample=n), CLUSTER) for n in (1, 2, 3)]
    seconds = [alone.step_seconds, *(each.step_seconds for each in made)]
    assert seconds == sorted(seconds)
    allocated = [each.memory.ranks[0].allocated for each in (alone, *made)]
    assert allocated == sorted(allocated)
    again = project(run(images_per_sample=3, recompute_granularity="full", recompute_vision=True), CLUSTER)
    kept = project(run(images_per_sample=3, recompute_granularity="full"), CLUSTER)
    assert again.memory.ranks[0].allocated < kept.memory.ranks[0].allocated
    assert again.step_seconds > kept.step_seconds
    counted = [flops_per_token(run(images_per_sample=n), "megatron-2025-04") for n in (0, 1, 2)]
    assert counted[1] - counted[0] == pytest.approx(counted[2] - counted[1])


def test_what_is_frozen_has_no_gradient_no_state_and_no_weight_gradient() -> None:
    case = settle(run(pp=1, freeze_vision_model=True), CLUSTER)
    tower, last = (lower.layer(LLAVA.tower_kinds[i], case) for i in (1, -1))
    assert (tower.backward_input, tower.backward_weight, tower.saved_bytes) == ((), (), 0.0)
    assert tower.held.trained.total == 0 < tower.held.total
    names = Counter(weight.name.split(".")[0] for weight in last.held.trained.weights)
    assert set(names) == {"projector"}
    (stage,) = compositions(case.workload.model, case.workload.recipe)[1]
    assert owned(case, parts(case, stage)).total < weight_set([(b.block.weights, 1) for b in parts(case, stage)]).total
    made = [
        project(run(pp=1, **frozen), CLUSTER)
        for frozen in (
            {},
            {"freeze_vision_model": True},
            {"freeze_language_model": True},
            {"freeze_vision_model": True, "freeze_language_model": True},
        )
    ]
    seconds, bytes_ = [[each.step_seconds for each in made], [each.memory.allocated for each in made]]
    assert seconds[0] > seconds[1] > seconds[3]
    assert seconds[0] > seconds[2] > seconds[3]
    assert bytes_[0] > bytes_[1] > bytes_[3]
    language = settle(run(pp=1, freeze_language_model=True), CLUSTER)
    block = lower.layer(LLAVA.layer_kinds[0], language)
    trained = lower.layer(LLAVA.layer_kinds[0], settle(run(pp=1), CLUSTER))
    assert flops(block.backward_input) == flops(trained.backward_input)
    assert flops(block.backward_weight) == 0 < flops(trained.backward_weight)
    assert block.held.trained.total == lower.head(language).held.trained.total == 0
    assert block.saved_bytes < trained.saved_bytes


def test_what_is_not_known_of_a_tower_is_refused() -> None:
    for reason, change in (
        ("sequence split", {"cp": 2, "tp": 2}), ("fp8", {"precision": "fp8"}), ("lora", {"lora": LoRA(dim=8)}),
        ("muon", {"optimizer": "muon", "freeze_vision_model": True}),
    ):  # fmt: skip
        refusal(settle, run(**change), CLUSTER, match=reason, kind=Unsupported)
    for reason, work in (
        ("at least 2304", run(images_per_sample=4)), ("no vision tower", run(ALONE, freeze_vision_model=True)),
        ("a divisor of 336", run(replace(LLAVA, vision=replace(LLAVA.vision, patch_size=16 + 1)))),
    ):  # fmt: skip
        refusal(project, work, CLUSTER, match=reason)
    refusal(step_seconds, run(), 100.0, match="counts FLOP", kind=Unsupported)
