"""Weights in 4 and 8 bits below adapters: QLoRA's own arithmetic, laws, and memory that others measured."""

from dataclasses import replace
from typing import Any

import pytest
from asked import refusal
from lowering_cases import DENSE, EXPERTS, LLAMA_70B, flops, resolved, stream_bytes, with_execution

from projector import project
from projector.layers import few_bits
from projector.layers.lower import layer
from projector.operators.types import Gemm, GroupedGemm, Stream
from projector.operators.weights import Weight, WeightSet
from projector.workload import zoo
from projector.workload.lora import LoRA

GIB = 2.0**30
ATTENTION = ("linear_qkv", "linear_proj")
EVERY = (*ATTENTION, "linear_fc1", "linear_fc2")


def lora(**change: Any) -> LoRA:
    return LoRA(**({"dim": 16, "targets": ATTENTION} | change))


NF4, NESTED = lora(quant_type="nf4"), lora(quant_type="nf4", double_quant=True)


def run(model: str, gpus: int, batch: int, **change: Any) -> Any:
    """A step on A100s as Hugging Face's Trainer runs it, every layer recomputed."""
    stated = {
        "gpu": "a100_sxm_80gb", "framework": "pytorch", "micro_batch_size": batch, "global_batch_size": batch * gpus,
        "seq_length": 4096, "lora_rank": 16, "lora_targets": ",".join(ATTENTION), "attention_backend": "fa2",
        "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
        "data_parallel_sharding": "optim_grads_params" if gpus > 1 else "no_shard",
    }  # fmt: skip
    return project(model=model, gpus=gpus, **(stated | change))


def test_bits_of_a_weight() -> None:
    """QLoRA, section 3: constants of 32/64 = 0.5 bits a weight, 8/64 + 32/(64 · 256) = 0.127 with double quantisation."""
    codes = 8 * NF4.code_bytes
    assert 8 * few_bits.scale_bytes(NF4, 4096) == pytest.approx(0.5)
    assert 8 * few_bits.scale_bytes(NESTED, 4096) == pytest.approx(0.127, abs=5e-4)
    assert codes == 4
    assert lora(quant_type="int8").code_bytes == 1
    assert few_bits.scale_bytes(lora(quant_type="int8"), 4096) == 4 / 4096


# NousResearch/Llama-2-70b-hf and others on A100 80 GB: foundation-model-stack/fms-acceleration@876e2ed6
# scripts/benchmarks/refs/a100_80gb.csv, mem_torch_mem_alloc_in_bytes: what stays after a training by Hugging Face's Trainer
# (nf4, double quantisation: plugins/accelerated-peft framework_plugin_bnb.py; adapters of rank 16 on the attention)
@pytest.mark.parametrize(
    ("model", "gpus", "stays"),
    [
        ("mistral_7b", 1, 4_306_496_512),
        ("mistral_7b", 2, 2_244_525_568),
        ("mixtral_8x7b", 1, 24_664_501_248),
        ("mixtral_8x7b", 2, 12_736_740_864),
        ("llama2_70b", 1, 37_179_001_856),
        ("llama2_70b", 2, 19_266_743_808),
    ],
)
def test_what_stays_is_what_was_measured(model: str, gpus: int, stays: int) -> None:
    """Also where two ranks share the codes and each holds all scales."""
    of = {"moe_grouped_gemm": "loop"} if model == "mixtral_8x7b" else {}
    memory = run(model, gpus, 4 // gpus, lora_quant_type="nf4", lora_double_quant=True, **of).memory.components
    assert memory["weights"] + memory["moments"] == pytest.approx(stays, rel=0.025)


@pytest.mark.parametrize(
    ("model", "batch", "peak", "speed"),
    [("mistral_7b", 4, 16_373_838_336, 3595.7), ("mistral_7b", 8, 28_412_178_944, 3662.6),
     ("mixtral_8x7b", 4, 36_731_843_072, 1965.1), ("llama2_70b", 4, 68_126_381_056, 464.4)],
)  # fmt: skip
def test_peaks_and_speeds_of_the_same_table(model: str, batch: int, peak: int, speed: float) -> None:
    """mem_peak_torch_mem_alloc_in_bytes and train_tokens_per_second of accelerated-peft-bnb on one GPU."""
    of = {"moe_grouped_gemm": "loop"} if model == "mixtral_8x7b" else {}
    found = run(model, 1, batch, lora_quant_type="nf4", lora_double_quant=True, **of)
    assert found.memory.allocated == pytest.approx(peak, rel=0.10)
    assert found.tgs == pytest.approx(speed, rel=0.20)


def test_where_the_paper_trains() -> None:
    """QLoRA, abstract and figure 6: 33B on 24 GB, where moments are paged out, and 65B on 48 GB; adapters on all linear
    layers, batches of one and 512 tokens. In 16 bits the weights alone are above 65 GB and 130 GB."""
    how = {"seq_length": 512, "lora_rank": 64, "lora_targets": ",".join(EVERY)}
    smaller = {"num_layers": 60, "hidden_size": 6656, "ffn_hidden_size": 17920}
    smaller |= dict.fromkeys(("num_attention_heads", "num_query_groups"), 52)
    for sizes, most in ((smaller, 24.0), ({}, 48.0)):
        few, wide = (
            _of_sizes(run("llama_65b", 1, 1, **how, **bits), sizes)
            for bits in ({"lora_quant_type": "nf4", "lora_double_quant": True}, {})
        )
        assert few.memory.device - few.memory.components["moments"] < most * GIB
        assert wide.memory.allocated > 2.7 * most * GIB


def _of_sizes(found: Any, sizes: dict[str, Any]) -> Any:
    work = found.resolved.workload
    return project(replace(work, model=replace(work.model, **sizes)), found.cluster)


def test_torchtune_weighs_what_its_readme_says() -> None:
    """meta-pytorch/torchtune@bd2a0fc7 README.md: 7.4 GiB with Llama 3.1 8B, packed samples of 2048, batch 2, compiled."""
    how = {"seq_length": 2048, "framework": "torchtune", "lora_rank": 8, "torch_compile": True}
    how |= {"lora_targets": ",".join(EVERY), "use_precision_aware_optimizer": True}
    how |= dict.fromkeys(("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), "bf16")
    memory = run("llama3.1_8b", 1, 2, lora_quant_type="nf4", lora_double_quant=True, **how).memory
    assert memory.allocated / GIB == pytest.approx(7.4, rel=0.15)


def test_weights_are_made_again_before_every_product() -> None:
    """Codes and scales are read, 16 bits written: once forward, once for the input's gradient, none for the adapters'."""
    plain, few = (layer(DENSE, resolved(LLAMA_70B, lora=each, gpus=1)) for each in (lora(), NF4))
    weights = sum(w.elements for w in few.weights if w.role == "linear")
    for way in ("forward", "backward_input"):
        more = stream_bytes(getattr(few, way)) - stream_bytes(getattr(plain, way))
        assert more == pytest.approx(weights * (0.5 + 4 / 64 + 2))
        assert flops(getattr(few, way)) == flops(getattr(plain, way))
    assert stream_bytes(few.backward_weight) == stream_bytes(plain.backward_weight)
    nested = layer(DENSE, resolved(LLAMA_70B, lora=NESTED, gpus=1))
    kernels = [[op.launches for op in each.forward if op.name.endswith(".dequantise")] for each in (few, nested)]
    assert len(kernels[0]) == len([op for op in plain.forward if isinstance(op, Gemm) and "lora" not in op.name])
    assert kernels[1] == [3 * each for each in kernels[0]]
    assert few.saved_bytes == plain.saved_bytes


def test_eager_codes_are_many_passes() -> None:
    """torchao's kernels one by one; a compiler joins them to what one kernel reads and writes."""
    base = resolved(LLAMA_70B, lora=NESTED, gpus=1)
    eager = layer(DENSE, with_execution(base, adapters={"elementary_codes": True}))
    compiled = layer(DENSE, with_execution(base, adapters={"elementary_codes": True}, fusion={"elementwise": True}))
    moved = [sum(op.bytes for op in each.forward if op.name.endswith("dequantise")) for each in (eager, compiled)]
    assert moved[0] > 10 * moved[1]


def test_integers_multiply_and_gradients_do_not() -> None:
    eight = layer(DENSE, resolved(LLAMA_70B, lora=lora(quant_type="int8"), gpus=1))
    forward = [op for op in eight.forward if isinstance(op, Gemm) and ".lora" not in op.name]
    backward = [op for op in eight.backward_input if isinstance(op, Gemm) and ".lora" not in op.name]
    assert {op.dtype for op in forward} == {"int8"}
    assert {op.out_bytes for op in forward} == {4.0}
    assert {op.dtype for op in backward} == {"bf16"}
    assert eight.saved_bytes > layer(DENSE, resolved(LLAMA_70B, lora=lora(), gpus=1)).saved_bytes  # its inputs stay


def test_experts_in_a_loop_are_linear_layers_and_others_are_not() -> None:
    model = zoo.load("mixtral_8x7b")
    looped, fused = (
        layer(EXPERTS, resolved(model, lora=NF4, gpus=1, moe_grouped_gemm=each)) for each in ("loop", "fused")
    )
    made = [op for op in looped.forward if isinstance(op, Stream) and "experts" in op.name and "dequantise" in op.name]
    assert made
    assert all(op.launches == 8 for op in made)
    assert not [op for op in fused.forward if "experts" in op.name and "dequantise" in op.name]
    assert [op.dtype for op in fused.forward if isinstance(op, GroupedGemm)] == ["bf16"] * 2
    weights = WeightSet(dict.fromkeys(fused.weights, 1))
    case = resolved(model, lora=NF4, gpus=1, moe_grouped_gemm="fused")
    assert not few_bits.quantised(case, weights).expert
    assert few_bits.quantised(case, weights).dense


def test_fewer_bits_never_weigh_more_and_never_run_faster() -> None:
    found = [run("llama3.1_8b", 1, 1), *(run("llama3.1_8b", 1, 1, lora_quant_type=bits) for bits in ("int8", "nf4"))]
    found.append(run("llama3.1_8b", 1, 1, lora_quant_type="nf4", lora_double_quant=True))
    assert [each.memory.allocated for each in found] == sorted((each.memory.allocated for each in found), reverse=True)
    assert found[0].step_seconds < min(each.step_seconds for each in found[1:])
    assert found[2].step_seconds < found[3].step_seconds


def test_what_dequantising_costs_a_step() -> None:
    """meta-pytorch/torchtune@bd2a0fc7 README, Llama 3.2 3B on one A100: 8,210 tokens/s with LoRA, 8,035 with QLoRA."""
    own = {"framework": "torchtune", "lora_rank": 64, "lora_targets": ",".join(EVERY), "torch_compile": True}
    wide, few = (
        run("llama3.2_3b", 1, 2, **own, **bits) for bits in ({}, {"lora_quant_type": "nf4", "lora_double_quant": True})
    )
    assert wide.step_seconds / few.step_seconds == pytest.approx(8035 / 8210, abs=0.01)


def test_ranks_that_share_codes_send_codes() -> None:
    """The more ranks share them, the more of what each holds are scales: 1.07 GB of 70B under double quantisation."""
    bits = {"lora_quant_type": "nf4", "lora_double_quant": True}
    wide, few = (run("llama2_70b", 8, 1, **each) for each in ({}, bits))
    saved = wide.memory.components["weights"] - few.memory.components["weights"]
    assert saved == pytest.approx(68.45e9 * (1.5 / 8 - 8 * few_bits.scale_bytes(NESTED, 8192) / 8), rel=1e-3)
    sharing = few.resolved.execution.data_parallel
    linear = WeightSet({Weight("w", 4096, 4096, role="linear"): 1})
    assert sharing.gathered_bytes(linear, expert=False) == 0.5 * 4096**2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tp": 2, "gpus": 2, "data_parallel_sharding": "no_shard"}, "cut by no tensor parallelism"),
        ({"lora_quant_type": "int8", "gpus": 2}, "integers are not sharded"),
        ({"lora_quant_type": "int8", "lora_double_quant": True}, "blocks of 4-bit weights"),
        ({"precision": "fp8", "gpu": "h100_sxm"}, "products run in fp8"),
        ({"model": "mixtral_8x7b", "gpus": 2, "moe_grouped_gemm": "fused"}, "experts of 16 bits"),
    ],
)
def test_what_is_refused(change: dict[str, Any], why: str) -> None:
    stated = {"model": "llama3.1_8b", "gpus": 1, "lora_quant_type": "nf4"} | change
    refusal(run, stated.pop("model"), stated.pop("gpus"), 1, **stated, match=why)


def test_frozen_weights_of_fp32_are_cast_before_each_product_and_the_copy_stays() -> None:
    half, whole = (run("llama3.1_8b", 1, 1, lora_frozen_dtype=kind) for kind in ("bf16", "fp32"))
    weights = 8_030_261_248
    assert whole.memory.components["weights"] - half.memory.components["weights"] == pytest.approx(
        2.0 * weights, rel=1e-3
    )
    assert whole.step_seconds > half.step_seconds
    cast = layer(DENSE, resolved(LLAMA_70B, lora=lora(frozen_dtype="fp32"), gpus=1))
    h, ffn, kv = 8192, 28672, 1024
    linear = h * (h + 2 * kv) + h * h + 3 * h * ffn
    assert sum(op.bytes for op in cast.forward if op.name.endswith("weight_cast")) == (4 + 2) * linear
    assert not any(op.name.endswith("weight_cast") for op in cast.backward_input)
    plain = layer(DENSE, resolved(LLAMA_70B, lora=lora(), gpus=1))
    assert cast.saved_bytes - plain.saved_bytes == 2 * linear


def test_sharded_weights_of_fp32_are_cast_where_they_are_gathered() -> None:
    half, whole = (run("llama3.1_8b", 8, 1, lora_frozen_dtype=kind) for kind in ("bf16", "fp32"))
    more = whole.memory.components["weights"] - half.memory.components["weights"]
    assert more == pytest.approx(2.0 * 8_030_261_248 / 8, rel=1e-3)
    assert whole.step_seconds == half.step_seconds
