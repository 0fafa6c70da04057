"""Laws of attention residuals: more candidates later, wider messages, weights counted once."""

from __future__ import annotations

from dataclasses import replace

from projector.frameworks import resolve
from projector.layers.lower import head, layer
from projector.operators.types import Stream
from projector.pipeline.schedules import build
from projector.step.boundary import activations
from projector.workload import zoo
from projector.workload.parameters import count
from tests.workloads import workload

PLAIN = zoo.load("llama3_8b")
MIXED = replace(PLAIN, attn_res_block_size=12)


def case(model, **recipe):
    return resolve(workload(model, **{"global_batch_size": 32} | recipe), "nvidia", "hopper")


def mixing(block) -> float:
    return sum(op.bytes for op in block.forward if isinstance(op, Stream) and ".mix" in op.name)


def test_a_later_layer_mixes_more_and_the_head_most() -> None:
    made = case(MIXED)
    candidates = [kind.residual_candidates for kind in MIXED.layer_kinds]
    assert (candidates[0], candidates[1], candidates[12], candidates[13], candidates[-1]) == (1, 2, 2, 3, 4)
    assert candidates == sorted(candidates)
    cost = [mixing(layer(kind, made)) for kind in dict.fromkeys(MIXED.layer_kinds)]
    assert cost == sorted(cost)
    assert cost[0] > 0
    assert mixing(head(made)) * 2 == cost[-1]  # a layer has two mixers
    assert mixing(layer(PLAIN.layer_kinds[0], case(PLAIN))) == 0


def test_checkpoints_travel_with_the_residual() -> None:
    """Stages begin at layers 8, 16, 24 of 32: two, three, three tensors where a plain residual sends one."""
    sent = [
        [each.bytes for each in activations(case(model, pp=4), build("1f1b", 4, 1, 32)) if each]
        for model in (MIXED, PLAIN)
    ]
    assert [wide / one for wide, one in zip(*sent, strict=True)] == [2, 3, 3]


def test_mixers_are_counted_and_held() -> None:
    vectors = 2 * PLAIN.hidden_size * (2 * PLAIN.num_layers + 1)
    assert count(MIXED).main - count(PLAIN).main == vectors
    layers = sum(layer(kind, case(MIXED)).held.total for kind in MIXED.layer_kinds) + head(case(MIXED)).held.total
    plain = sum(layer(kind, case(PLAIN)).held.total for kind in PLAIN.layer_kinds) + head(case(PLAIN)).held.total
    assert layers - plain == vectors
