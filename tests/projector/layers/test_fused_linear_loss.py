"""Losses that never hold all logits: memory of a chunk, gradients made early, and what the published kernel saves."""

from __future__ import annotations

from typing import Any

import pytest

from projector.errors import Unsupported
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.layers.cross_entropy import cross_entropy
from projector.layers.local import Local, local
from projector.memory.plan import plan
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.workloads import workload

H100 = catalogue.default_cluster("h100_sxm")
GIB = 2.0**30


def case(loss: str, **how: Any) -> Any:
    fields = {"micro_batch_size": 4, "global_batch_size": 32, "data_parallel_sharding": "optim"}
    return resolve(workload(**{**fields, "cross_entropy_fusion": loss, **how}), "nvidia", "hopper")


def of(loss: str, **how: Any) -> tuple[Local, Any]:
    lo = local(case(loss, **how))
    return lo, cross_entropy(lo)


def test_a_chunk_of_logits_is_as_large_as_the_hidden_states() -> None:
    """16,384 tokens, 128,256 words, width 4,096: 32 times the width, so 512 tokens at a time (Liger's own rule)."""
    lo, part = of("liger")
    weight = float(lo.vocab * lo.hidden)
    assert part.saves[0].bytes == pytest.approx(2.0 * 16384 * 4096 + 2.0 * weight)
    assert part.forward_transient.bytes == pytest.approx(2.0 * 512 * lo.vocab + 6.0 * weight)
    (added,) = [op for op in part.forward if op.name == "loss.accumulate"]
    assert added.read == pytest.approx(32 * 8.0 * weight)


def test_a_frozen_weight_has_no_gradient() -> None:
    lo, part = of("liger", lora=LoRA(dim=16, targets=("linear_qkv",)))
    assert part.saves[0].bytes == pytest.approx(lo.hidden_bytes)
    assert not [op for op in part.forward if op.name == "loss.accumulate"]


def test_logits_that_are_made_again_leave_two_numbers_a_token() -> None:
    lo, part = of("linear")
    assert part.saves[0].bytes == 8.0 * lo.tokens
    assert part.backward_input[0].name == "output.again"


def test_longer_batches_gain_more() -> None:
    """The logits of an unfused loss grow with the tokens, a chunk and the weight's gradient hardly do."""

    def saved(size: int) -> float:
        peaks = [plan(case(loss, micro_batch_size=size), H100.gpu).allocated for loss in ("unfused", "liger")]
        return (peaks[0] - peaks[1]) / GIB

    assert 0 < saved(4) < saved(8)


@pytest.mark.parametrize("tokens", [4096, 8192])
def test_peak_grows_with_the_sequence(tokens: int) -> None:
    one, two = (plan(case("liger", seq_length=n), H100.gpu).allocated for n in (tokens, 2 * tokens))
    assert one < two


def test_a_split_vocabulary_is_refused() -> None:
    with pytest.raises(Unsupported, match="liger"):
        of("liger", tp=2)


def test_automodels_loss_of_experts_stays_in_bf16() -> None:
    """log-softmax of 2-byte logits (F.cross_entropy without a copy to fp32): half the bytes saved, fewer moved."""
    found = {}
    for name in ("llama3_8b", "qwen3_30b_a3b"):
        recipe = Recipe(micro_batch_size=4, global_batch_size=32, seq_length=4096)
        run = resolve(Workload(model=zoo.load(name), recipe=recipe, gpus=8, framework="automodel"), "nvidia", "hopper")
        lo = local(run)
        found[run.execution.fusion.loss] = (cross_entropy(lo), lo.tokens * lo.vocab)
    (full, many), (half, few) = found["fp32"], found["bf16"]
    assert half.saves[0].bytes / few == 2.0 == full.saves[0].bytes / many / 2
    moved = [sum(op.read + op.write for op in (part.forward[0], part.backward_input[0])) for part in (half, full)]
    assert moved[0] / few == 12.0 < moved[1] / many
    assert half.backward_transient.bytes / few == 4.0
