"""Adapters of routed experts: against real modules, and the laws of sharing them and of cutting them over ranks."""

from dataclasses import replace
from typing import Any

import pytest
from lowering_cases import DEEPSEEK_V3, EXPERTS, flops, names, resolved

from projector.layers.lower import layer
from projector.operators.types import Collective, Gemm, GroupedGemm
from projector.workload.lora import LoRA
from projector.workload.schema import parse_recipe

MLP = ("linear_fc1", "linear_fc2")
LATENT = ("linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")


def adapters(block: Any) -> Any:
    return block.held.only("adapter")


def case(**change: Any) -> Any:
    lora = LoRA(**({"dim": 32, "targets": MLP} | change.pop("lora", {})))
    return layer(EXPERTS, resolved(DEEPSEEK_V3, lora=lora, **change))


def test_one_adapter_of_a_rank_or_one_of_each_expert() -> None:
    """The same products on the same rows; as many weights as local experts; shared experts keep their own."""
    shared, own = case(ep=8), case(ep=8, lora={"share_expert_adapters": False})
    dense = 32 * (7168 + 2 * 2048) + 32 * (2048 + 7168)
    assert adapters(shared).dense == adapters(own).dense == dense
    assert (adapters(shared).expert, adapters(own).expert) == (dense, 32 * dense)
    for way in ("forward", "backward_input", "backward_weight"):
        assert flops(getattr(shared, way)) == pytest.approx(flops(getattr(own, way)))
    kinds = {op.name: type(op) for op in (*shared.forward, *own.backward_weight)}
    assert kinds["experts.fc1.lora_a"] is Gemm
    assert kinds["experts.fc1.lora_a.wgrad"] is GroupedGemm
    assert case(ep=16, lora={"share_expert_adapters": False}).held.only("adapter").expert == 16 * dense
    assert shared.saved_bytes == own.saved_bytes
    whole = layer(EXPERTS, resolved(DEEPSEEK_V3, ep=8))
    assert adapters(whole).total == 0
    assert shared.held.total - adapters(shared).total == whole.held.total
    assert flops(shared.backward_weight) < 0.05 * flops(whole.backward_weight)


def test_the_rank_is_divided_and_legacy_experts_have_none() -> None:
    normal, thin = case(ep=8), case(ep=8, lora={"normalize_moe_lora": True})
    assert adapters(thin).expert * 8 == adapters(normal).expert
    legacy = case(ep=8, moe_grouped_gemm="legacy")
    assert adapters(legacy).expert == 0
    assert adapters(legacy).dense == adapters(normal).dense


def test_frozen_experts_of_one_function_keep_their_inputs() -> None:
    """tgale96/grouped_gemm grouped_gemm/ops.py saves both operands, whatever is trained; linears save what they need, and
    kernels of Primus-Turbo from the second stage on are others."""
    lora = {"lora": {"targets": ("linear_proj",)}}
    rows = 8 * 4096
    kept, plain, turbo = (
        {each.tensor: each for each in case(ep=8, seq_length=4096, **lora, **how).saves if each.since == "forward"}
        for how in ({"moe_grouped_gemm": "legacy"}, {}, {"moe_grouped_gemm": "legacy", "sync_free_stage": 2})
    )
    assert kept["experts.in"].bytes == 2 * rows * 7168
    assert kept["experts.act.out"].bytes == 2 * rows * 2048
    assert kept["experts.in"].until == "backward"
    assert kept.keys() - plain.keys() == {"experts.in", "experts.act.out"}
    assert turbo.keys() == plain.keys()


def test_expert_tensor_parallelism_cuts_adapters() -> None:
    one, four = case(ep=8, tp=4, etp=1), case(ep=8, tp=4, etp=4)
    assert adapters(four).expert * 4 == adapters(one).expert
    sent = [op for op in four.forward if isinstance(op, Collective) and ".lora" in op.name and op.group == "etp"]
    assert [op.name for op in sent] == ["experts.fc1.lora_ag", "experts.fc2.lora_ag"]
    assert "experts.fc1.lora_ag" not in names(one.forward)


def test_latent_attention_is_adapted_where_it_is_named() -> None:
    block = case(lora={"targets": LATENT})
    expected = 32 * sum((7168 + 1536, 1536 + 128 * 192, 7168 + 576, 512 + 128 * 256, 128 * 128 + 7168))
    assert adapters(block).total == expected
    assert adapters(case(lora={"targets": ("linear_qkv",)})).total == 0  # Megatron-LM has no linear of that name there


def test_a_misspelt_target_is_named() -> None:
    given = {
        "micro_batch_size": 1, "global_batch_size": 8, "seq_length": 64, "lora": {"dim": 8, "targets": ["linear_fc"]},
    }  # fmt: skip
    _, problems = parse_recipe(given, "f")
    assert [(each.key, each.found) for each in problems] == [("recipe.lora.targets", "linear_fc")]
    assert "linear_fc1" in problems[0].expected


def test_adapted_experts_are_what_real_ones_are() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: real modules are not there to compare with")
    from test_real_modules import GQA, ROUTED, eager, same  # type: ignore[import-not-found]

    from tests.projector.layers import torch_layers as real

    class Adapted(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, inputs: int, width: int, rank: int = 8) -> None:
            super().__init__()
            self.base = torch.nn.Linear(inputs, width, False).requires_grad_(False)
            self.a, self.b = torch.nn.Linear(inputs, rank, False), torch.nn.Linear(rank, width, False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.b(self.a(x)) * 2.0

    class FeedForward(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, hidden: int, width: int) -> None:
            super().__init__()
            self.fc1, self.fc2 = Adapted(hidden, 2 * width), Adapted(width, hidden)

        def forward(self, x: Any, weight: Any = None) -> Any:
            gate, up = self.fc1(x).chunk(2, -1)
            act = torch.nn.functional.silu(gate) * up
            return self.fc2(act if weight is None else act * weight)

    model = replace(GQA, moe=ROUTED)
    (kind,) = model.layer_kinds
    module = real.Layer(model, kind).requires_grad_(False)
    width, h = ROUTED.moe_ffn_hidden_size, model.hidden_size
    module.mlp.experts = torch.nn.ModuleList(FeedForward(h, width) for _ in range(ROUTED.num_experts))
    module.mlp.shared = FeedForward(h, width)
    work = eager(model)
    recipe = replace(work.workload.recipe, lora=LoRA(dim=8, targets=MLP))
    block = layer(kind, replace(work, workload=replace(work.workload, recipe=recipe)))
    same(block, module, model)
