"""A projection does not depend on those before it: what runs share is only what both would have found alone."""

import random
from typing import Any

import pytest

from projector.errors import InputError, Unsupported
from projector.frameworks import Resolved, resolve
from projector.hardware import catalogue
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.values import Reader
from projector.layers import lower
from projector.memo import clear_caches
from projector.operators.types import Attention, GroupedGemm, Stream
from projector.projection import Projection, project
from projector.workload import zoo
from projector.workload.model import decoder
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests import workloads

H100 = catalogue.default_cluster("h100_sxm")
SWITCHES = {
    "pipeline_schedule": (None, "zb_1p", "zbv", "v_min", "interleaved"),
    "overlap_grad_reduce": (None, False, True),
    "overlap_param_gather": (None, False, True),
    "data_parallel_sharding": ("no_shard", "optim", "optim_grads_params"),
    "recompute_granularity": ("none", "selective", "full"),
    "recompute_method": (None, "uniform", "block"),
    "recompute_num_layers": (None, 1, 2),
    "defer_embedding_wgrad_compute": (None, True),
    "num_distributed_optimizer_instances": (None, 2),
    "overlap_moe_expert_parallel_comm": (None, True),
    "delay_wgrad_compute": (None, True),
    "fsdp_reshard_after_forward": (None, False),
    "defer_fsdp_grad_sync": (None, True),
    "xla_gpu_all_gather_combine_threshold_bytes": (None, 2**33),
    "xla_gpu_enable_pipelined_all_gather": (None, True),
    "xla_gpu_enable_while_loop_double_buffering": (None, True),
    "optimizer": (None, "muon"),
    "first_last_layers_bf16": (None, True),
    "num_layers_at_end_in_bf16": (None, 3),
    "precision": ("bf16", "fp8"),
    "account_for_loss_in_pipeline_split": (False, True),
}


def layouts(number: int, seed: int) -> list[Workload]:
    draw = random.Random(seed)
    models = {name: zoo.load(name) for name in ("llama3_8b", "qwen3_30b_a3b", "deepseek_v2_lite")}
    found = []
    while len(found) < number:
        name = draw.choice(list(models))
        sizes = {"tp": draw.choice((1, 2, 4)), "pp": draw.choice((1, 2, 4)), "vpp": draw.choice((1, 2))}
        switches = {key: draw.choice(values) for key, values in SWITCHES.items() if draw.random() < 0.4}
        recipe = Recipe(
            micro_batch_size=draw.choice((1, 2)),
            global_batch_size=draw.choice((256, 512)),
            seq_length=4096,
            ep=1 if name == "llama3_8b" else draw.choice((1, 8)),
            sequence_parallel=sizes["tp"] > 1,
            allow_uneven_pipeline_split=True,
            **sizes,
            **switches,  # type: ignore[arg-type]
        )
        framework = draw.choice(("megatron-lm", "megatron-lm", "torchtitan", "maxtext"))
        found.append(Workload(model=models[name], recipe=recipe, gpus=64, framework=framework))
    return found


def tried(load: Workload) -> Projection | None:
    try:
        return project(load, H100)
    except (InputError, Unsupported):
        return None


def test_a_projection_is_the_same_with_and_without_those_before_it(every: int) -> None:
    loads = layouts(250 // every + 25, 7)
    together = [tried(load) for load in loads]
    assert sum(made is not None for made in together) > 40 // every + 5
    for load, one in zip(loads, together, strict=True):
        clear_caches()
        alone = tried(load)
        assert (one is None) == (alone is None)
        if one is not None and alone is not None:
            assert one.step_seconds == pytest.approx(alone.step_seconds, rel=1e-12), load.recipe
            assert one.memory.allocated == alone.memory.allocated
            assert one.breakdown == pytest.approx(alone.breakdown, rel=1e-9, abs=1e-12)


# Primus-Turbo's switches change kernels: experts' products, attention, and what goes beside them.


MI355X = catalogue.default_cluster("mi355x")


def workload(model: str = "deepseek_v2_lite", gpus: int = 8, **stated: Any) -> Workload:
    base = {"micro_batch_size": 4, "global_batch_size": 256, "ep": 8, "numa_binding": True}
    base |= {"moe_token_dispatcher_type": "flex"} if zoo.load(model).moe else {"ep": 1}
    return workloads.workload(model, gpus, "primus", **base | stated)


def settled(**stated: Any) -> Resolved:
    return resolve(workload(**stated), "amd", stated.pop("arch", "gfx950"))


def experts(resolved: Resolved) -> list[GroupedGemm]:
    block = lower.layer(decoder(True), resolved)
    ops = (*block.forward, *block.backward_input, *block.backward_weight)
    return [op for op in ops if isinstance(op, GroupedGemm)]


def test_turbo_and_legacy_run_other_kernels() -> None:
    turbo, legacy = experts(settled(moe_grouped_gemm="fused")), experts(settled(moe_grouped_gemm="legacy"))
    assert {op.backend for op in turbo} == {"fused"}
    assert {op.backend for op in legacy} == {"multi_stream"}
    assert all(op.launches == 1 for op in turbo)
    assert all(op.launches == op.groups for op in legacy)
    times = [project(workload(moe_grouped_gemm=how), MI355X).step_seconds for how in ("fused", "legacy")]
    assert times[0] != times[1]


def test_legacy_experts_stay_in_sixteen_bits() -> None:
    """The grouped_gemm package takes bf16 alone: no 8-bit products, no casts of experts."""
    narrow = settled(moe_grouped_gemm="legacy", precision="fp8")
    assert {op.dtype for op in experts(narrow)} == {"bf16"}
    assert {op.dtype for op in experts(settled(moe_grouped_gemm="fused", precision="fp8"))} == {"fp8"}
    block = lower.layer(decoder(True), narrow)
    assert not [
        op for op in block.forward if isinstance(op, Stream) and op.name.startswith("experts") and op.kind == "cast"
    ]


@pytest.mark.parametrize("model", ["deepseek_v2_lite", "qwen3_30b_a3b", "mixtral_8x7b"])
def test_eight_bits_gain_where_experts_have_work(model: str) -> None:
    """12 to 35 % on MI355X; the experts' products alone nearly halve."""
    wide, narrow = (
        project(workload(model, precision=p, fp8_recipe=r, moe_grouped_gemm="fused"), MI355X)
        for p, r in (("bf16", None), ("fp8", "delayed"))
    )
    assert 0.5 < narrow.step_seconds / wide.step_seconds < 0.93


def test_turbo_attention_is_aiter_and_ulysses() -> None:
    def core(resolved: Resolved) -> str:
        assert any(isinstance(op, Attention) for op in lower.layer(decoder(False), resolved).forward)
        return resolved.execution.kernels.attention

    assert core(settled(model="llama3_8b", use_turbo_attention=True)) == "aiter_python"
    old = Workload(**{**vars(workload("llama3_8b")), "framework_date": "2024-06"})
    assert resolve(old, "amd", "gfx942").execution.kernels.attention == "ck"
    turbo = Workload(**{**vars(workload("llama3_8b", use_turbo_attention=True)), "framework_date": "2024-06"})
    assert resolve(turbo, "amd", "gfx942").execution.kernels.attention == "aiter"
    assert resolve(workload("llama3_8b", use_turbo_attention=True, cp=2), "amd").workload.recipe.cp_comm_type == "a2a"


def test_turbo_linears_leave_their_gradients_to_autograd() -> None:
    def adds(**stated: Any) -> int:
        resolved = settled(model="llama3_8b", gradient_accumulation_fusion=True, **stated)
        return len([op for op in lower.layer(decoder(False), resolved).backward_weight if op.name.endswith(".add")])

    assert (adds(), adds(use_turbo_gemm=True)) == (0, 4)


@pytest.mark.parametrize("on", [True, False])
def test_the_gate_holds_the_experts_kernels(on: bool) -> None:
    switches = ("use_turbo_grouped_mlp", "use_turbo_deepep")
    found = recipe_fields(Reader(dict.fromkeys(switches, True) | {"enable_primus_turbo": on}), None)
    assert (found.get("moe_grouped_gemm") == "fused") is on
    assert (found.get("moe_token_dispatcher_type") == "flex") is on
