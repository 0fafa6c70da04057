"""What recompute makes of a layer shares everything with the layer but what recompute is about."""

from __future__ import annotations

from projector.frameworks import resolve
from projector.layers.lower import layer
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


def test_layers_under_recompute_share_operators_and_weights() -> None:
    model, made = zoo.load("deepseek_v3"), {}
    for granularity in ("none", "selective", "full"):
        recipe = Recipe(
            micro_batch_size=1, global_batch_size=64, seq_length=4096, tp=2, ep=8, recompute_granularity=granularity
        )
        made[granularity] = layer(model.layer_kinds[-1], resolve(Workload(model=model, recipe=recipe, gpus=64)))
    none, selective, full = made.values()
    for other in (selective, full):
        assert other.forward is none.forward
        assert other.backward_weight is none.backward_weight
        assert other.owned is none.owned
        assert other.saves is none.saves
        assert {each.tensor for each in other.dropped} <= {each.tensor for each in none.kept}
    assert not none.recompute
    assert not none.dropped
    assert 0 < len(selective.recompute) < len(full.recompute)
    assert full.kept_bytes < selective.kept_bytes < none.kept_bytes == none.saved_bytes
