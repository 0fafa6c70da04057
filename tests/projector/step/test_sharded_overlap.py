"""What runs beside compute by framework: DTensor's collectives wait on the spot, custom calls hide no weight gathers."""

from __future__ import annotations

import pytest

from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.hardware.efficiency import of
from projector.kernels import settings
from projector.layers.lower import layer
from projector.operators.types import Collective
from projector.step.around import around
from projector.step.priced import priced
from projector.step.stages import _shard_overlap, parts
from projector.workload.composition import compositions
from tests.workloads import workload

H100 = catalogue.default_cluster("h100_sxm")


def resolved(framework: str, model: str, **fields: object) -> Resolved:
    return resolve(workload(model, 64, framework, **fields), "nvidia", "hopper")


def backward(framework: str) -> list[Collective]:
    made = resolved(framework, "llama3_70b", tp=8, sequence_parallel=True)
    block = layer(made.workload.model.layer_kinds[0], made)
    ops = (*block.backward_input, *block.backward_weight)
    return [op for op in ops if isinstance(op, Collective) and op.group == "tp"]


def test_dtensor_redistributes_on_the_spot_and_megatron_beside_its_products() -> None:
    titan, megatron = backward("torchtitan"), backward("megatron-lm")
    assert titan
    assert not any(op.hides_behind for op in titan)
    assert any(op.hides_behind for op in megatron)


@pytest.mark.parametrize(("capacity", "hides"), [(None, False), (1.25, True)])
def test_only_products_that_the_compiler_knows_hide_gathers(capacity: float | None, hides: bool) -> None:
    made = resolved(
        "maxtext", "deepseek_v3", ep=8, moe_expert_capacity_factor=capacity,
        moe_pad_expert_input_to_capacity=capacity is not None,
    )  # fmt: skip
    _, (chunk,) = compositions(made.workload.model, made.workload.recipe)
    found = {part.block.name: _shard_overlap(made, part) for part in parts(made, chunk)}
    usual = made.execution.data_parallel.overlap
    assert found == {**found, "layer_moe": usual * hides, "layer_dense": usual}
    assert usual > 0


@pytest.mark.parametrize(
    ("framework", "sharding", "each"),
    [("torchtitan", "optim_grads_params", True), ("megatron-lm", "optim", False), ("megatron-lm", "no_shard", False)],
)
def test_what_travels_with_every_micro_batch_does_not_travel_after_the_last(
    framework: str, sharding: str, each: bool
) -> None:
    made = resolved(framework, "llama3.1_8b", data_parallel_sharding=sharding)
    step = priced(made, H100, of(H100.gpu), "simulate", settings.DEFAULT)
    once = around(made, step.clock(), step.held[0])
    assert (once.reduce == 0.0, once.gather == 0.0) == (each, each or sharding == "no_shard")
    assert once.optimizer > 0.0
