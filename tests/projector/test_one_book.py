"""One book of weights: what is trained in time is what lies in memory, and all of it is the model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness.evidence import dataset
from projector.errors import Unsupported
from projector.frameworks import resolve
from projector.layers.lower import embedding, head, layer, mtp
from projector.memory.parameters import contents, stage
from projector.operators.weights import Held, Weight, held
from projector.step.stages import owned, parts
from projector.workload import zoo
from projector.workload.composition import compositions
from projector.workload.lora import LoRA
from projector.workload.parameters import count
from tests.workloads import workload


def one_rank(model, **recipe) -> Held:
    stated = {"global_batch_size": 8, "make_vocab_size_divisible_by": 1} | recipe
    case = resolve(workload(model, **stated), "nvidia", "hopper")
    groups = [(layer(kind, case).weights, n) for kind, n in Counter((*model.tower_kinds, *model.layer_kinds)).items()]
    groups += [(embedding(case).weights, 1), (head(case).weights, 1)]
    return held([*groups, *([(mtp(case).weights, model.mtp_num_layers)] if model.mtp_num_layers else [])])


@pytest.mark.parametrize("name", zoo.names())
def test_modules_hold_the_parameters_of_every_model_exactly(name: str) -> None:
    model = zoo.load(name)
    try:
        assert one_rank(model).total == count(model).total
    except Unsupported as reason:
        pytest.skip(str(reason))


def test_a_storage_counts_once_on_a_rank_and_once_on_each_of_two() -> None:
    table = Weight(name="table", rows=100, columns=8, storage="words")
    both = held([([table], 1), ([table], 1)])
    assert both.total == 800
    assert (held([([table], 1)]) + held([([table], 1)])).total == 800


def test_adapters_stand_beside_every_linear_that_is_adapted() -> None:
    """dim · (in + out) of q, kv and output of latent attention, cut as their linears are (arXiv:2106.09685)."""
    model = zoo.load("deepseek_v2_lite")
    targets = ("linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")
    mla, h, n = model.mla, model.hidden_size, model.num_attention_heads
    sides = (
        (h, n * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)),
        (h, mla.kv_lora_rank + mla.qk_pos_emb_head_dim),
        (mla.kv_lora_rank, n * (mla.qk_head_dim + mla.v_head_dim)),
        (n * mla.v_head_dim, h),
    )
    adapters = one_rank(model, lora=LoRA(dim=16, targets=targets)).only("adapter").total
    assert adapters == model.num_layers * 16 * sum(a + b for a, b in sides)


def test_time_and_memory_hold_the_same_weights_in_every_measured_run(root: Path, every: int) -> None:
    seen = set()
    for run in dataset.read(root / "measured" / "runs")[::every]:
        if run.problem or run.model is None or run.recipe is None or run.workload in seen:
            continue
        seen.add(run.workload)
        try:
            case = resolve(run.workload, "nvidia")
            for chunk in compositions(run.model, case.workload.recipe)[1]:
                here = stage(case, contents((chunk,)))
                trained = owned(case, parts(case, chunk))
                expected = here.adapters if run.recipe.lora else here.weights.total
                assert trained.total == pytest.approx(expected, rel=1e-12), run.id
        except (Unsupported, ValueError):
            continue
    assert len(seen) > 600 // every


def test_the_weights_of_all_ranks_are_those_of_the_model(root: Path, every: int) -> None:
    """What tensor and expert parallelism cut, times the ranks that share it; what every rank repeats, once: norms, routers,
    latent down projections, copies of tied embeddings. The vocabulary is padded to what the ranks can cut."""
    seen = set()
    for run in dataset.read(root / "measured" / "runs")[::every]:
        if run.problem or run.model is None or run.recipe is None or run.workload in seen or run.recipe.lora:
            continue
        try:
            case = resolve(run.workload, "nvidia")
            stages = [owned(case, parts(case, chunk)) for chunk in compositions(run.model, case.workload.recipe)[1]]
        except (Unsupported, ValueError):
            continue
        seen.add(run.workload)
        stored = {weight.storage: weight for stage in stages for weight in stage.weights if weight.storage}
        weights = [item for stage in stages for item in stage.weights.items() if not item[0].storage]
        recipe = case.workload.recipe
        total = 0.0
        for weight, number in [*weights, *((weight, 1) for weight in stored.values())]:
            inner = recipe.etp if weight.expert else recipe.tp
            total += weight.elements * number * (inner if weight.split else 1) * (recipe.ep if weight.expert else 1)
        padding = (case.workload.padded_vocab_size - run.model.vocab_size) * run.model.hidden_size
        published = count(run.model)
        assert total == pytest.approx(published.total + padding * (2 if published.head else 1), rel=1e-9), run.id
    assert len(seen) > 600 // every
