"""Losses that a trainer computes from the logits for its log."""

from __future__ import annotations

from typing import Any

import pytest
from lowering_cases import LLAMA_70B, resolved, with_execution

from projector.layers.lower import head
from projector.operators.types import Stream


def loss(metrics: int, **recipe: Any) -> tuple[float, Any]:
    case = with_execution(resolved(LLAMA_70B, **recipe), fusion={"loss_metrics": metrics})
    part = head(case)
    return sum(op.bytes for op in part.forward if isinstance(op, Stream) and op.name.startswith("loss")), part


@pytest.mark.parametrize("recipe", [{}, {"tp": 4}, {"seq_length": 2048, "micro_batch_size": 2}])
def test_each_metric_passes_over_the_logits_without_a_gradient(recipe: dict[str, Any]) -> None:
    (none, plain), (one, _), (two, part) = (loss(count, **recipe) for count in (0, 1, 2))
    tokens = recipe.get("seq_length", 4096) * recipe.get("micro_batch_size", 1)
    assert (
        two - one == one - none == pytest.approx(10.0 * tokens * LLAMA_70B.vocab_size / recipe.get("tp", 1), rel=0.01)
    )
    assert part.backward_input == plain.backward_input
    assert part.backward_weight == plain.backward_weight
