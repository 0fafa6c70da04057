"""A compiler that sees replay and backward together leaves out what only the layer's output needs."""

from dataclasses import replace

import pytest
from tabled import tabled

from projector.frameworks import resolve
from projector.layers.lower import layer
from projector.operators.types import Attention, Gemm, GroupedGemm
from tests.workloads import workload


def replayed(framework: str, model: str, date: str = "", **fields: object):  # type: ignore[no-untyped-def]
    work = workload(model, framework=framework, recompute_granularity="full", **fields)
    made = resolve(replace(work, framework_date=date), "amd", "gfx950")
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


@pytest.mark.parametrize(
    ("framework", "date", "compiled", "product", "residual"), tabled("workloads", "checkpoints_of_torch")
)
def test_what_a_checkpoint_of_torch_repeats(
    framework: str, date: str, compiled: bool, product: bool, residual: bool
) -> None:
    block = replayed(framework, "llama3_70b", date, recompute_modules=(), torch_compile=compiled)
    forward, again = ({op.name for op in ops} for ops in (block.forward, block.recompute))
    assert {"fc2", "mlp_residual"} <= forward
    assert ("fc2" in again, "mlp_residual" in again) == (product, residual)
    assert {op.name for op in block.forward if isinstance(op, Gemm)} - {"fc2"} <= again


def test_a_replay_reaches_the_sum_of_the_experts_rows() -> None:
    fields = {"ep": 8, "torch_compile": False, "recompute_modules": ()}
    for framework, date, before, after in (
        ("torchtitan", "2025-03", "moe.combine", "mlp_residual"),
        ("automodel", "2026-03", "experts.fc2", "moe.combine"),
    ):
        block = replayed(framework, "qwen3_30b_a3b", date, **fields)
        again = [op.name for op in block.recompute]
        assert again[-1] == "moe.unpermute"
        assert before in again
        assert after in {op.name for op in block.forward} - set(again)


def test_torch_repeats_a_last_product_only_where_it_may_not_stop() -> None:
    torch = pytest.importorskip("torch")
    wrapper = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")

    class Products(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        number = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.number += "mm" in str(function)
            return function(*args, **(kwargs or {}))

    def products(early_stop: bool) -> int:
        layer = torch.nn.Sequential(
            torch.nn.Linear(8, 32, bias=False), torch.nn.SiLU(), torch.nn.Linear(32, 8, bias=False)
        )
        out = wrapper.checkpoint_wrapper(layer, early_stop=early_stop)(torch.randn(4, 8, requires_grad=True))
        with Products() as seen:
            out.sum().backward()
        return seen.number

    assert (products(True), products(False)) == (5, 6), "four of the gradients, and one or both again"


@pytest.mark.parametrize("framework", ["maxtext", "megatron-lm"])
def test_each_kept_output_spares_work(framework: str) -> None:
    def flops(*saved: str) -> float:
        block = replayed(framework, "deepseek_v3", ep=8, recompute_saved=saved or None)
        return sum(op.flops for op in block.recompute if isinstance(op, Gemm | GroupedGemm | Attention))

    whole = flops()
    for name in ("qkv_proj", "out_proj", "mlpwi", "context"):
        assert flops(name) < whole
    assert flops("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context") < 0.2 * whole
