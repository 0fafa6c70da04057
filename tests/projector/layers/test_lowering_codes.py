"""What single code bases run otherwise: sharded tensors, copies, atomics, synchronisation, fused adapters, clamps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowering_cases import (
    DEEPSEEK_V3,
    DENSE,
    EXPERTS,
    LLAMA_70B,
    collectives,
    named,
    names,
    phases,
    resolved,
    stream_bytes,
    with_execution,
)
from tabled import tabled

from projector import project
from projector.errors import InputError
from projector.frameworks.resolve import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.layers.lower import layer
from projector.mechanisms import Execution
from projector.operators.module import Block
from projector.operators.types import GroupedGemm, Stream
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.model import decoder
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


def test_sharded_units_of_fsdp2_copy_weights_and_gradients():
    case = resolved(LLAMA_70B, data_parallel_sharding="optim_grads_params", data_parallel_shard_size=8)
    fsdp2 = with_execution(case, data_parallel={"strategy": "fsdp2", "gather_bytes": 2.0, "reduce_bytes": 4.0})
    one_buffer = layer(DENSE, with_execution(case, data_parallel={"strategy": "fsdp1"}))
    block = layer(DENSE, fsdp2)
    weights = block.owned.dense
    assert block.forward[0].name.endswith("copy_out")
    assert stream_bytes(block.forward) - stream_bytes(one_buffer.forward) == pytest.approx(4 * weights)
    extra = stream_bytes(block.backward_input) - stream_bytes(one_buffer.backward_input)
    assert extra == pytest.approx((4 + 6) * weights)


@pytest.mark.parametrize(("pp", "sharing", "copies"), tabled("workloads", "copies_of_fsdp2"))
def test_units_of_fsdp2_copy_with_every_gather_and_every_reduction(pp, sharing, copies):
    """Of a micro-batch: before its forward, before its backward, after it."""
    case = resolved(LLAMA_70B, pp=pp, data_parallel_sharding="optim_grads_params", data_parallel_shard_size=8)
    made = with_execution(case, data_parallel={"strategy": "fsdp2", **sharing})
    run = made.execution.configured_by(made.workload.recipe)
    block = layer(DENSE, replace(made, execution=run))
    found = [op.name for op in (*block.forward, *block.backward_input)]
    words = ("copy_out", "copy_out.bwd", "chunk_cat")
    assert tuple(sum(name.endswith(f".{word}") for name in found) for word in words) == copies


@pytest.mark.parametrize(("shards", "passes"), [(1, 0), (8, 3)])
def test_gradients_of_zero3_are_read_and_written_three_times_before_they_are_reduced(shards, passes):
    """Into their bucket, rank by rank, divided: 2 bytes each way and pass."""
    case = resolved(LLAMA_70B, data_parallel_sharding="optim_grads_params", data_parallel_shard_size=shards)
    block = layer(DENSE, with_execution(case, data_parallel={"strategy": "zero3"}))
    moved = [(op.read, op.write) for op in block.backward_input if op.name.endswith(".bucket")]
    assert moved == [(2.0 * passes * block.owned.total,) * 2] * bool(passes)


def test_sync_free_stages_move_and_then_remove_the_wait():
    def order(stage: int) -> list[str]:
        case = resolved(DEEPSEEK_V3, ep=8, moe_token_dispatcher_type="flex", sync_free_stage=stage)
        return [op.name for op in layer(EXPERTS, case).forward]

    assert order(1).index("moe.counts") < order(1).index("moe.dispatch")
    assert order(2).index("moe.counts") > order(2).index("moe.dispatch")
    assert "moe.counts" not in order(3)
    for stage, backend in ((1, "multi_stream"), (2, "fused")):
        case = resolved(DEEPSEEK_V3, ep=8, moe_token_dispatcher_type="flex", sync_free_stage=stage)
        assert {op.backend for op in layer(EXPERTS, case).forward if isinstance(op, GroupedGemm)} == {backend}


def test_a_fused_adapter_scales_and_adds_inside_products():
    """TransformerEngine's operation fuser, NVIDIA/NeMo PR 14411: the same products, no pass of their own beside them."""
    case = resolved(LLAMA_70B, lora=LoRA(dim=16))
    apart, fused = (layer(DENSE, with_execution(case, adapters={"fused": is_})) for is_ in (False, True))
    for way in ("forward", "backward_input", "backward_weight"):
        one, other = ([op for op in getattr(block, way) if "lora" in op.name] for block in (apart, fused))
        assert sum(op.flops for op in one) == sum(op.flops for op in other)
        assert sum(op.launches for op in one) >= sum(op.launches for op in other)
    assert named(fused.forward, "qkv.lora_b").accumulate
    assert not {"qkv.lora_scale", "qkv.lora_add"} & names(fused.forward)
    assert named(fused.backward_input, "qkv.lora_grad_add").launches == 0
    split = resolved(LLAMA_70B, lora=LoRA(dim=16), tp=4)
    assert "qkv.lora_add" in names(layer(DENSE, with_execution(split, adapters={"fused": True})).forward)


def test_expert_biases_and_clamps_are_counted_as_they_run():
    oss = zoo.load("gpt_oss_120b")
    block = layer(decoder(True, 128), with_execution(resolved(oss, ep=8), fusion={"expert_bias": False}))
    rows = named(block.forward, "experts.fc2").rows
    bias = named(block.forward, "experts.fc2.bias"), named(block.forward, "experts.fc2.bias.add")
    assert [op.bytes for op in bias] == [18 * rows * oss.hidden_size, 10 * rows * oss.hidden_size]
    assert [op.kind for op in bias] == ["elementwise", "strided"]
    assert "experts.fc1.bias" not in names(block.forward)  # in the epilogue of the product
    half = rows * oss.moe.moe_ffn_hidden_size  # each clamp reads and writes 2 bytes an element of its half, cat both
    assert [named(block.forward, f"experts.clamp{of}").bytes for of in ("", ".cat")] == [8 * half, 8 * half]
    # backward: (2+1) + (1+2+2) of the first half, twice (2+1) + (1+2+2) of the second; (1+1+1), and both gradients
    assert named(block.backward_input, "experts.clamp.bwd").bytes == (3 + 5 + 3 + 3 + 5) * half
    assert named(block.backward_input, "experts.clamp.cat.bwd").bytes == (3 + 8) * half
    assert named(block.forward, "rope").launches > 2  # no fused kernel scales by the magnitude of YaRN


TORCH = {"tensor_parallel": {"strategy": "dtensor"}, "fusion": {"strategy": "torch_eager"}}


@pytest.mark.parametrize(("batch", "gathers"), [(1, 0), (2, 6)])
def test_sharded_tensors_copy_what_they_exchange_along_the_sequence(batch, gathers):
    """torch's collectives join the first dimension: every scatter copies its input, a gather its output beyond batch one."""
    case = resolved(LLAMA_70B, execution=Execution.of(**TORCH), tp=8, micro_batch_size=batch)
    ops = [op for ops in phases(layer(DENSE, case)) for op in ops]
    exchanged = {op.name: op for op in collectives(ops, group="tp")}
    copied = [op for op in ops if op.name.endswith(".copy")]
    kinds = [exchanged[op.name.removesuffix(".copy")].kind for op in copied]
    assert (kinds.count("reduce_scatter"), kinds.count("all_gather")) == (4, gathers)
    assert all(op.read == op.write == exchanged[op.name.removesuffix(".copy")].bytes for op in copied)


def test_only_a_compiler_joins_the_functions_of_a_cast():
    def bytes_of(compiled: bool, how: Execution) -> float:
        recipe = {"precision": "fp8", "fp8_recipe": "tensorwise", "torch_compile": compiled}
        ops = layer(DENSE, resolved(LLAMA_70B, execution=how, **recipe)).forward
        return stream_bytes(op for op in ops if op.name.endswith("cast"))

    torch, fused = Execution.of(**TORCH), Execution()
    assert bytes_of(True, torch) == bytes_of(True, fused) == bytes_of(False, fused)
    assert bytes_of(False, torch) == pytest.approx(35 / 6 * bytes_of(True, torch))


# Megatron-LM's own modules (``--transformer-impl local``) against Transformer Engine's, and functions scripted for
# a compiler that is not there.

FLASH = {"transformer_impl": "local", "attention_backend": "flash"}


def made(model: str = "llama3_8b", framework: str = "megatron-lm", date: str = "2023-10", **recipe: object) -> Resolved:
    stated = {"micro_batch_size": 2, "global_batch_size": 64, "seq_length": 2048, "tp": 2} | recipe
    work = Workload(model=zoo.load(model), recipe=Recipe(**stated), gpus=8, framework=framework, framework_date=date)  # type: ignore[arg-type]
    return resolve(work, "nvidia", "hopper")


def block(found: Resolved) -> Block:
    return layer(found.workload.model.layer_kinds[-1], found)


def streams(found: Resolved, *names: str) -> dict[str, Stream]:
    made = block(found)
    every = (*made.forward, *made.backward_input)
    return {op.name: op for op in every if isinstance(op, Stream) and op.name.removesuffix(".bwd") in names}


def test_the_default_changed_in_april_2024() -> None:
    """NVIDIA/Megatron-LM e7b74a4b7e (2024-04-03)."""
    for date, expected in (("2023-10", "local"), ("2024-03", "local"), ("2024-04", "transformer_engine"), ("", "")):
        found = made(date=date)
        assert found.workload.recipe.transformer_impl == (expected or "transformer_engine")
        assert found.execution.fusion.attention_materialised is (expected == "local")
        assert found.execution.fusion.norm is (expected != "local")
        assert found.execution.kernels.attention == ("fa2" if expected == "local" else "cudnn")


def test_what_is_stated_wins_and_8_bits_need_transformer_engine() -> None:
    assert not made(transformer_impl="transformer_engine").execution.fusion.attention_materialised
    assert made(transformer_impl="local", date="2026-01").execution.fusion.attention_materialised
    assert made(precision="fp8").workload.recipe.transformer_impl == "transformer_engine"
    with pytest.raises(InputError, match=r"recipe\.transformer_impl: found 'local', expected transformer_engine"):
        project(made(precision="fp8", transformer_impl="local").workload, catalogue.cluster("h100_sxm"))


@pytest.mark.parametrize("framework", ["megatron-bridge", "nemo", "mlperf"])
def test_recipes_that_name_transformer_engine_have_it_at_any_date(framework: str) -> None:
    """NeMo's configurations set ``transformer_engine``; a rule of the parent changes no default of a child."""
    assert made(framework=framework).workload.recipe.transformer_impl == "transformer_engine"


def test_a_checkpoint_of_core_attention_is_for_scores_in_memory() -> None:
    kept = {
        impl: made(transformer_impl=impl, recompute_granularity="selective") for impl in ("local", "transformer_engine")
    }
    assert {each.workload.recipe.recompute_modules for each in kept.values()} == {("core_attn",)}
    assert made(**FLASH, recompute_granularity="selective").workload.recipe.recompute_modules == ()
    assert made(
        **FLASH, recompute_granularity="selective", recompute_modules=("mlp",)
    ).workload.recipe.recompute_modules == ("mlp",)


class Counted:
    """A tensor that counts what elementary kernels read and write of tensors of its size."""

    def __init__(self, traffic: list[int]) -> None:
        self.traffic = traffic

    def _with(self, *others: object) -> Counted:
        self.traffic[0] += len({id(each) for each in (self, *others) if isinstance(each, Counted)})
        self.traffic[1] += 1
        return Counted(self.traffic)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _with
    tanh = _with


def _bias_gelu(x: Counted) -> Counted:
    return x * 0.5 * (1.0 + (0.79788456 * x * (1 + 0.044715 * x * x)).tanh())


def _its_gradient(g: Counted, x: Counted) -> Counted:
    t = (0.79788456 * x * (1 + 0.044715 * x * x)).tanh()
    return (0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t)) * g


def test_a_scripted_function_that_nothing_joins_runs_operator_by_operator() -> None:
    """The formulas of GELU by tanh and of its gradient, each operator with a round trip through memory; the bias first."""
    found = streams(made("gpt3_175b", **FLASH, jit_fusion=False), "act", "attn_residual")
    tensor = 2.0 * 2 * 2048 * 4 * 12288 / 2
    for name, formula in (("act", _bias_gelu), ("act.bwd", lambda x: _its_gradient(Counted(x.traffic), x))):
        traffic = [0, 0]
        formula(Counted(traffic)._with())  # type: ignore[operator]
        op = found[name]
        assert (op.read / tensor, op.write / tensor, op.launches) == (traffic[0], traffic[1], traffic[1]), name
    joined = streams(made("gpt3_175b", **FLASH), "act", "attn_residual")
    assert joined["act"].launches == joined["attn_residual"].launches == 1
    assert found["attn_residual"].launches == 2
    assert found["attn_residual"].read == pytest.approx(1.5 * joined["attn_residual"].read)


def test_megatron_deepspeed_keeps_its_own_modules() -> None:
    """Scores in memory unless flash is named, Apex's RMSNorm, and no compiler for scripted functions since PyTorch 2.2."""
    for date, joined in (("2022-02", True), ("2024-01", True), ("2024-04", False)):
        found = made(framework="megatron-deepspeed", date=date)
        assert found.workload.recipe.transformer_impl == "local"
        assert found.workload.recipe.jit_fusion is joined
        assert found.execution.fusion.norm
        assert found.execution.fusion.attention_materialised
    assert made(framework="flagscale").execution.fusion.norm
