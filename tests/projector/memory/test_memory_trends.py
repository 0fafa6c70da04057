"""Which way memory moves when one size or switch changes."""

import contextlib
import dataclasses
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from memory_cases import changed, deepseek_v3, gpu, llama, recipe, resolved, tensors

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.layers.lower import layer
from projector.mechanisms.data_parallel import Gathered
from projector.memory.chunks import block_memory, chunk_memory
from projector.memory.plan import MemoryPlan, plan
from projector.workload import zoo
from projector.workload.composition import compositions
from projector.workload.lora import LoRA
from projector.workload.model import decoder
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

GPU = gpu()
dense_recipes = st.builds(
    recipe, tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]), micro_batch_size=st.sampled_from([1, 2]),
    seq_length=st.sampled_from([2048, 4096]),
    data_parallel_sharding=st.sampled_from(["optim", "optim_grads", "optim_grads_params"]),
    recompute_granularity=st.sampled_from(["none", "full"]), recompute_num_layers=st.just(1),
    precision=st.sampled_from(["bf16", "fp8", "mxfp8"]), cross_entropy_fusion=st.sampled_from(["te", "native", "none"]),
)  # fmt: skip
cases = st.builds(
    lambda how, moe: resolved(deepseek_v3(8, 1) if moe else llama(), how, 64), dense_recipes, st.booleans()
)


def _every_rank_grows(small: Resolved, large: Resolved) -> None:
    for a, b in zip(plan(small, GPU).ranks, plan(large, GPU).ranks, strict=True):
        assert b.allocated >= a.allocated * (1 - 1e-12)


@given(cases)
def test_more_tokens_need_more(case: Resolved) -> None:
    how = case.workload.recipe
    larger = 2 * how.micro_batch_size
    _every_rank_grows(case, changed(case, micro_batch_size=larger, global_batch_size=2 * how.global_batch_size))
    _every_rank_grows(case, changed(case, seq_length=2 * how.seq_length))


@given(dense_recipes, st.sampled_from([4, 8, 12]))
def test_more_layers_need_more(how: object, layers: int) -> None:
    _every_rank_grows(resolved(llama(layers), how, 64), resolved(llama(2 * layers), how, 64))


@given(cases)
def test_more_ranks_of_data_parallelism_never_need_more(case: Resolved) -> None:
    how = case.workload.recipe
    twice = dataclasses.replace(case.workload, gpus=128, recipe=dataclasses.replace(how, global_batch_size=128))
    for few, many in zip(
        plan(case, GPU).ranks, plan(dataclasses.replace(case, workload=twice), GPU).ranks, strict=True
    ):
        assert many.allocated <= few.allocated * (1 + 1e-12)


@given(cases)
def test_sharding_more_never_needs_more_state(case: Resolved) -> None:
    levels = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
    names = ("weights", "gradients", "master_weights", "moments")
    state = [
        [
            sum(rank.components[n] for n in names)
            for rank in plan(changed(case, data_parallel_sharding=level), GPU).ranks
        ]
        for level in levels
    ]
    for less, more in pairwise(state):
        assert all(b <= a * (1 + 1e-12) for a, b in zip(less, more, strict=True))


# The same of real profiles: what each makes of its defaults.

_FRAMEWORKS = [
    "megatron-lm",
    "primus",
    "nemo",
    "torchtitan",
    "pytorch",
    "deepspeed",
    "automodel",
    "torchtune",
    "maxtext",
]
_SIXTEEN = {"gpus": 16, "global_batch_size": 16, "micro_batch_size": 1, "seq_length": 2048}
_profiled = st.fixed_dictionaries(
    {
        "framework": st.sampled_from(_FRAMEWORKS), "num_layers": st.sampled_from([4, 8]),
        "name": st.sampled_from(["llama3_8b", "qwen3_30b_a3b", "deepseek_v2_lite", "gemma3_12b", "nemotron_h_8b"]),
        "tp": st.sampled_from([1, 2]), "cp": st.sampled_from([1, 2]), "pp": st.sampled_from([1, 2]),
        "sequence_parallel": st.just(True), "torch_compile": st.sampled_from([None, False, True]),
        "recompute_granularity": st.sampled_from(["none", "full"]), "recompute_method": st.just("uniform"),
        "data_parallel_sharding": st.sampled_from(["no_shard", "optim", "optim_grads", "optim_grads_params"]),
        "recompute_num_layers": st.just(1), "optimizer_cpu_offload": st.sampled_from([None, True]),
    }
)  # fmt: skip


def _planned(how: dict[str, Any], **change: Any) -> MemoryPlan:
    """The plan on 16 GPUs, each rank with as many micro-batches whatever the layout."""
    said = {**_SIXTEEN, **how, **change}
    layout = said["tp"] * said["cp"] * said["pp"]
    said["global_batch_size"] *= said["micro_batch_size"] / layout
    fields = {name: said.pop(name) for name in ("framework", "gpus")}
    model = zoo.load(said.pop("name"), num_layers=said.pop("num_layers"))
    how_ = Recipe(**said | {"global_batch_size": int(said["global_batch_size"])})
    return plan(resolve(Workload(model=model, recipe=how_, **fields), "nvidia", "hopper"), GPU)


@given(_profiled)
def test_what_every_profile_makes_of_a_change(how: dict[str, Any]) -> None:
    try:
        one = _planned(how)
    except (InputError, Unsupported):
        reject()
    assert all(min(*rank.components.values(), rank.cached) >= 0.0 for rank in one.ranks)
    larger = [{"micro_batch_size": 2}, {"seq_length": 4096}, {"num_layers": 2 * how["num_layers"]}]
    for change in (*larger, {"global_batch_size": 32}):
        for small, large in zip(one.ranks, _planned(how, **change).ranks, strict=True):
            assert large.allocated >= small.allocated * (1 - 1e-12), change
            assert large.held >= small.held * (1 - 1e-12), change
    smaller: list[dict[str, Any]] = [{"tp": 2}, {"cp": 2}, {"recompute_granularity": "full"}]
    for change in (*smaller, {"optimizer_cpu_offload": True}):
        with contextlib.suppress(InputError, Unsupported):
            assert _planned(how, **change).allocated <= one.allocated * (1 + 1e-3), change


@given(cases, st.integers(3, 8))
def test_offloading_activations_reduces_them(case: Resolved, layers: int) -> None:
    stays = plan(changed(case, recompute_granularity="none"), GPU)
    leaves = plan(changed(case, recompute_granularity="none", cpu_offloading_num_layers=layers), GPU)
    for a, b in zip(stays.ranks, leaves.ranks, strict=True):
        assert b.allocated <= a.allocated * (1 + 1e-12)


def test_weights_that_the_optimizer_steps_itself_are_of_the_type_that_is_stated() -> None:
    narrow = {"use_precision_aware_optimizer": True, "main_params_dtype": "bf16"}
    for copy_bytes, share in ((4.0, 1.0), (0.0, 0.5)):
        kept = {"parameter_bytes": 4.0, "master_bytes": copy_bytes}
        wide, thin = (
            plan(resolved(llama(), recipe(**stated), 8, data_parallel=kept), GPU).ranks[0].components["weights"]
            for stated in ({}, narrow)
        )
        assert thin == share * wide


@pytest.mark.parametrize("stored", [False, True])
def test_the_activation_input_in_eight_bits_is_half(stored: bool) -> None:
    case = resolved(llama(), recipe(activation_func_fp8_input_store=stored), 8)
    saved = tensors(case, decoder(False))
    assert saved["fc1.out"] == (2 if stored else 4) * 4096 * 14336
    assert saved["act.out"] == 2 * 4096 * 14336


def test_adapters_save_their_inputs_and_masks() -> None:
    """Llama-2-70B of the MLPerf benchmark: 1.75 KiB a token and layer beside what the frozen layer saves."""
    model = llama(80, hidden_size=8192, ffn_hidden_size=28672, num_attention_heads=64)
    how = recipe(seq_length=8192, precision="fp8", fp8_dot_product_attention=True, lora=LoRA(dim=16))
    plain = tensors(resolved(model, how, 8), decoder(False))
    dropping = tensors(resolved(model, how, 8, adapters={"dropout": 0.1}), decoder(False))
    x = 2 * 8192 * 8192
    assert plain["qkv.lora_in"] == plain["proj.lora_in"] == x
    assert sum(dropping.values()) - sum(plain.values()) == x
    assert "fc1.lora_in" not in plain
    bf16 = tensors(resolved(model, dataclasses.replace(how, precision="bf16"), 8), decoder(False))
    assert not any(name.endswith("lora_in") for name in bf16)  # the frozen layer keeps its input anyway


def test_frozen_weights_exist_in_eight_bits_only_where_the_framework_says_so() -> None:
    how = recipe(precision="fp8", fp8_recipe="tensorwise", lora=LoRA(dim=16))
    both = plan(resolved(llama(32), how, 8), GPU).ranks[0].components
    one = plan(resolved(llama(32), how, 8, adapters={"frozen_weights_quantised": True}), GPU).ranks[0].components
    assert one["weights"] + one["fp8_weight_cache"] < 0.5 * (both["weights"] + both["fp8_weight_cache"])


@pytest.mark.parametrize(("arch", "quantised", "copies"), [("hopper", "tensorwise", 1), ("blackwell", "tensorwise", 0)])
def test_frozen_weights_without_transposes_are_one_byte_each(arch: str, quantised: str, copies: int) -> None:
    """Hopper alone needs the transposed copies that a framework may keep or make for each use."""
    how = recipe(precision="fp8", fp8_recipe=quantised, lora=LoRA(dim=16))
    frozen = {"frozen_weights_quantised": True}
    kept, made = (
        plan(resolved(llama(32), how, 8, adapters=frozen | {"transposes_kept": keeps}), gpu(arch)).ranks[0].components
        for keeps in (True, False)
    )
    assert made["fp8_weight_cache"] == 0.0
    assert made["weights"] == kept["weights"]
    linears = 32 * 218_103_808
    assert kept["fp8_weight_cache"] == pytest.approx(copies * linears, rel=1e-3)


def test_mx_copies_of_both_directions_are_data() -> None:
    how = recipe(precision="mxfp8", lora=LoRA(dim=16))
    frozen = {"frozen_weights_quantised": True, "transposes_kept": False}
    cache = plan(resolved(llama(32), how, 8, adapters=frozen), GPU).ranks[0].components["fp8_weight_cache"]
    assert cache > 32 * 218_103_808


def test_a_compiled_dispatch_counts_its_exchange() -> None:
    """Ragged all-to-all holds the receive buffer and its sorted copy; DeepEP neither, but an accumulator if it adds."""

    def buffers(**changes: object) -> float:
        case = resolved(
            deepseek_v3(8, 1), recipe(ep=8, **changes), 64, allocator={"strategy": "planned_pool"},
            fusion={"expert_gemm_split": True},
        )  # fmt: skip
        return max(moment.net for moment in layer(decoder(True), case).backward_transients)

    x = 2 * 4096 * 7168
    sent = received = 8 * x
    ragged, deepep = buffers(), buffers(moe_token_dispatcher_type="flex")
    adding = buffers(moe_token_dispatcher_type="flex", moe_dispatch_scatter_adds=2)
    assert ragged - deepep == 2 * received + 2 * sent - 2 * x
    assert adding - deepep == received


def test_a_pipeline_engine_that_keeps_boundaries_holds_two_more_tensors() -> None:
    how = recipe(pp=4, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    plain = plan(resolved(llama(8), how, 32), GPU).ranks
    keeping = plan(resolved(llama(8), how, 32, pipeline={"keeps_boundary_tensors": True}), GPU).ranks
    x = 2 * 4096 * 4096
    extra = [b.allocated - a.allocated for a, b in zip(plain, keeping, strict=True)]
    assert extra[1] == pytest.approx(3 * 2 * x)
    assert extra[0] == pytest.approx(3 * x)  # its peak is the embedding, when its own boundary tensors are gone


def test_weights_stay_gathered_under_a_pipeline() -> None:
    how = recipe(pp=2, data_parallel_sharding="optim_grads_params")
    inside = {"strategy": "fsdp2", "wraps_stages": False}
    apart = plan(resolved(llama(8), how, 16, data_parallel=inside), GPU).ranks[0]
    whole = plan(
        resolved(llama(8), how, 16, data_parallel={"strategy": "fsdp2", "unsharded_pipeline": True}), GPU
    ).ranks[0]
    assert whole.components["transient"] > 6 * whole.parameters
    assert apart.components["transient"] < whole.components["transient"]


@pytest.mark.parametrize("cp", [1, 8])
def test_an_attention_mask_is_on_the_device_of_the_first_and_the_last_stage(cp: int) -> None:
    how = recipe(pp=4, cp=cp, micro_batch_size=1, seq_length=131072)
    without, made = (
        plan(changed(resolved(llama(), how, 32), create_attention_mask_in_dataloader=on), GPU).ranks
        for on in (False, True)
    )
    mask = 131072**2  # a byte an element
    for rank in (0, 3):
        assert made[rank].allocated >= made[rank].static + mask * (1 + (cp > 1) / cp)  # beside the rows taken of it
        assert 0 < made[rank].allocated - without[rank].allocated <= mask * (1 + (cp > 1) / cp)
    assert [r.allocated for r in made[1:3]] == [r.allocated for r in without[1:3]]


_ODD = ("llama_nemotron_ultra_253b", "llama_nemotron_super_49b", "nemotron_h_8b", "gemma3n_e4b", "deepseek_v3")


@given(
    st.sampled_from(sorted({*_ODD, *list(zoo.names())[::9]} & set(zoo.names()))),
    st.integers(1, 7),
    st.sampled_from([1, 2]),
    st.sampled_from([512, 4096]),
)
def test_groups_of_unlike_layers_keep_their_first_input_and_free_it(
    name: str, number: int, micro: int, seq: int
) -> None:
    """Layers without modules among them (NAS models): nothing is negative, and a group never keeps more than its layers."""
    how = recipe(
        micro_batch_size=micro, seq_length=seq, recompute_granularity="full", recompute_method="uniform",
        recompute_num_layers=number,
    )  # fmt: skip
    try:
        case = resolved(zoo.load(name), how, 64)
        alone = resolved(zoo.load(name), dataclasses.replace(how, recompute_num_layers=1), 64)
        chunk = compositions(case.workload.model, how)[1][0]
        if any(each.kind.tower for each in chunk.layers):
            reject()  # layers of towers are in no group
        grouped, single = (
            chunk_memory(each, chunk, True, True, Gathered(), partial(block_memory, each)) for each in (case, alone)
        )
    except (InputError, Unsupported):
        reject()
    layers = [(lower.layer(each.kind, case), lower.residual_bytes(each.kind, case)) for each in chunk.layers]
    groups = [layers[i : i + number] for i in range(0, len(layers), number)]
    inputs = sum(next((width for block, width in group if block.kept_bytes), 0.0) for group in groups)
    beside = sum(block.kept_bytes - width for block, width in layers if block.kept_bytes)
    every = sum(width for block, width in layers if block.kept_bytes)
    assert single.saved - grouped.saved == pytest.approx(every - inputs, rel=1e-9, abs=1.0)
    assert 0.0 <= inputs + beside <= grouped.saved <= single.saved
    for memory in (grouped, single):
        assert min(*memory.sizes, memory.forward.saved, memory.backward.saved) >= 0.0
