"""A compiler that sees replay and backward together leaves out what only the layer's output needs."""

from __future__ import annotations

import pytest

from projector.frameworks import resolve
from projector.layers.lower import layer, mtp
from projector.operators.types import Attention, Gemm, GroupedGemm
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


def replayed(framework: str, model: str, **fields: object):  # type: ignore[no-untyped-def]
    recipe = Recipe(
        micro_batch_size=1,
        global_batch_size=64,
        seq_length=4096,
        recompute_granularity="full",
        **fields,  # type: ignore[arg-type]
    )
    made = resolve(Workload(model=zoo.load(model), recipe=recipe, gpus=8, framework=framework), "amd", "gfx950")
    return layer(made.workload.model.layer_kinds[-1], made)


def test_a_dense_layer_does_not_repeat_its_last_product() -> None:
    block = replayed("maxtext", "llama3_70b")
    forward, again = ({op.name for op in ops if isinstance(op, Gemm)} for ops in (block.forward, block.recompute))
    assert "fc2" in forward
    assert again == forward - {"fc2"}


def test_the_mask_product_of_a_capacity_layer_goes_and_the_experts_stay() -> None:
    block = replayed(
        "maxtext", "deepseek_v3", ep=8, moe_expert_capacity_factor=1.25, moe_pad_expert_input_to_capacity=True
    )
    names = {op.name for op in block.recompute}
    assert "moe.mask_out" in {op.name for op in block.forward}
    assert "moe.mask_in" in names
    assert "moe.mask_out" not in names
    assert any(name.startswith("experts.fc2") for name in names)


@pytest.mark.parametrize("framework", ["megatron-lm", "torchtitan"])
def test_checkpoints_of_torch_repeat_everything(framework: str) -> None:
    block = replayed(framework, "llama3_70b", recompute_modules=())
    assert {op.name for op in block.forward if isinstance(op, Gemm)} <= {op.name for op in block.recompute}
    assert "mlp_residual" in {op.name for op in block.recompute}


def test_kept_outputs_are_not_computed_again() -> None:
    """Queries, keys and values kept: their products and rotation go; what the products are fed with stays."""
    kept = replayed("maxtext", "deepseek_v3", ep=8, recompute_saved=("qkv_proj", "context"))
    names = {op.name for op in kept.recompute}
    assert not names & {"q_up", "kv_up", "rope", "core_attn"}
    assert {"q_down", "q_norm", "kv_down", "proj", "experts.fc1.0", "moe.dispatch"} <= names


@pytest.mark.parametrize("framework", ["maxtext", "megatron-lm"])
def test_each_kept_output_spares_work(framework: str) -> None:
    def flops(*saved: str) -> float:
        block = replayed(framework, "deepseek_v3", ep=8, recompute_saved=saved or None)
        return sum(op.flops for op in block.recompute if isinstance(op, Gemm | GroupedGemm | Attention))

    whole = flops()
    for name in ("qkv_proj", "out_proj", "mlpwi", "context"):
        assert flops(name) < whole
    assert flops("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context") < 0.2 * whole


@pytest.mark.parametrize(("method", "again"), [("uniform", True), ("block", False)])
def test_full_recompute_takes_prediction_modules_along_layer_by_layer_only(method: str, again: bool) -> None:
    """NVIDIA/Megatron-LM@d98e8a64dd core/transformer/multi_token_prediction.py: ``block`` is not supported, and skipped."""
    recipe = Recipe(
        micro_batch_size=1, global_batch_size=8, seq_length=4096,
        recompute_granularity="full", recompute_method=method, recompute_num_layers=1,
    )  # fmt: skip
    block = mtp(resolve(Workload(model=zoo.load("deepseek_v3"), recipe=recipe, gpus=8), "nvidia", "hopper"))
    assert bool(block.recompute) is again
