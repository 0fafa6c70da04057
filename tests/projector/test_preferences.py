"""Direct preference optimisation: pairs of sequences, and a forward of the frozen model beside that of the trained one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.layers import lower
from projector.operators.types import Gemm, GroupedGemm
from projector.projection import Projection, project
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.parameters import count
from projector.workload.schema import parse_recipe
from projector.workload.workload import Workload
from tests.workloads import workload

CLUSTER = catalogue.cluster("h100")


def case(name: str = "llama3.1_8b", **fields: object) -> Workload:
    return workload(name, **{"global_batch_size": 32, "tp": 2, "sequence_parallel": True} | fields)


def products(job: Workload, kind: int = -1) -> tuple[float, float]:
    """FLOP of the products of a layer, forward and backward."""
    block = lower.layer(job.model.layer_kinds[kind], resolve(job, "nvidia", "hopper"))
    ways = (block.forward, (*block.backward_input, *block.backward_weight))
    return tuple(sum(op.flops for op in way if isinstance(op, Gemm | GroupedGemm)) for way in ways)  # type: ignore[return-value]


def run(**fields: object) -> Projection:
    return project(case(**fields), CLUSTER)  # type: ignore[arg-type]


def test_a_pair_is_two_sequences_and_the_reference_one_forward_more() -> None:
    for name in ("llama3.1_8b", "deepseek_v2_lite"):
        twice = products(case(name, micro_batch_size=2))
        pairs, alone = products(case(name, rlhf_type="dpo")), products(case(name, rlhf_type="dpo", reference_free=True))
        assert alone == pytest.approx(twice)
        assert pairs == pytest.approx((2 * twice[0], twice[1]))
    assert case(rlhf_type="dpo").tokens_per_step == 2 * case().tokens_per_step
    assert case(rlhf_type="dpo").num_microbatches == case().num_microbatches


def test_a_step_lasts_a_third_longer_and_its_memory_grows_by_frozen_weights() -> None:
    twice, alone = run(micro_batch_size=2, global_batch_size=64), run(rlhf_type="dpo", reference_free=True)
    assert alone.step_seconds == pytest.approx(twice.step_seconds)
    assert alone.tgs == pytest.approx(twice.tgs)
    pairs = run(rlhf_type="dpo")
    assert 1.25 < pairs.step_seconds / alone.step_seconds < 1.4
    assert pairs.mfu / alone.mfu == pytest.approx(4 / 3 * alone.step_seconds / pairs.step_seconds)
    more, none = (weights(one) - weights(other) for one, other in ((pairs, alone), (alone, twice)))
    assert none == 0
    assert more == pytest.approx(2 * count(zoo.load("llama3.1_8b")).total / 2, rel=0.01)  # 16 bits, over tp
    thin = {"lora": LoRA(dim=16)}
    with_, without = run(rlhf_type="dpo", **thin), run(rlhf_type="dpo", reference_free=True, **thin)
    assert weights(with_) == weights(without)  # adapters that are switched off: no second copy
    assert 1.3 < with_.step_seconds / without.step_seconds < 1.6  # a forward beside one and a data gradient


def weights(made: Projection) -> float:
    return made.memory.components["weights"]


def test_adapters_are_off_in_the_reference() -> None:
    job = case(rlhf_type="dpo", lora=LoRA(dim=16, targets=("linear_qkv",)))
    block = lower.layer(job.model.layer_kinds[0], resolve(job, "nvidia", "hopper"))
    names = [op.name for op in block.forward]
    assert names.count("qkv") == 2
    assert names.count("qkv.lora_a") == 1


def test_longer_messages_and_gathers() -> None:
    for more in ({"pp": 2, "tp": 1, "sequence_parallel": False}, {"data_parallel_sharding": "optim_grads_params"}):
        free, pairs = (run(rlhf_type="dpo", reference_free=each, **more) for each in (True, False))
        assert pairs.step_seconds > free.step_seconds


def test_another_kind_of_training_is_named() -> None:
    given = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 64, "rlhf_type": "ppo"}
    _, problems = parse_recipe(given, "f")
    assert [each.key for each in problems] == ["recipe.rlhf_type"]
    assert replace(case().recipe, rlhf_type="dpo").reference
