"""One book of activations: what modules save is what memory holds, what recompute drops is what it replays."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from harness.evidence import dataset
from projector.errors import Unsupported
from projector.frameworks import Resolved, resolve
from projector.layers import lower
from projector.layers.local import local
from projector.layers.lower import embedding, head, layer, mtp
from projector.memory.parameters import contents, stage, weights_of
from projector.operators.module import Module, forward_of
from projector.operators.saved import Saved, once, saved_bytes
from projector.operators.types import Gemm, GroupedGemm
from projector.operators.weights import Weight, WeightSet, weight_set
from projector.step.stages import owned, parts
from projector.workload import zoo
from projector.workload.composition import compositions
from projector.workload.layer_kinds import Attention, SharedBlock
from projector.workload.lora import LoRA
from projector.workload.model import LayerKind, decoder
from projector.workload.parameters import count
from projector.workload.recipe import Recipe
from projector.workload.towers import Vision
from projector.workload.workload import Workload
from tests.workloads import workload

MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
KINDS = ("llama3_8b", "qwen3_30b_a3b", "deepseek_v3", "deepseek_v2_lite", "gpt_oss_120b", "gemma3_27b")


def case(name: str, execution: dict[str, object] | None = None, **fields: object) -> Resolved:
    made = resolve(workload(name, 64, **{"bias_activation_fusion": True} | fields), "nvidia", "hopper")
    return replace(made, execution=replace(made.execution, **(execution or {})))


def layers(name: str, **fields: object) -> Iterator[tuple[LayerKind, Resolved, tuple[Module, ...]]]:
    made = case(name, **fields)
    model = made.workload.model
    for kind in dict.fromkeys((*model.tower_kinds, *model.layer_kinds)):
        yield kind, made, lower._layer_parts(kind, local(lower._within_kind(kind, made)))


def names(saves: tuple[Saved, ...]) -> set[str]:
    return {each.tensor for each in saves}


def products(part: Module) -> bool:
    return any(isinstance(op, Gemm | GroupedGemm) for op in part.backward_weight)


def test_a_storage_counts_once_as_wide_and_long_as_anybody_needs_it() -> None:
    narrow = Saved(name="fc1.in", storage="x", bytes=1.0, until="weight_gradient", input=True)
    wide = Saved(name="router.in", storage="x", bytes=2.0, input=True)
    for order in ((narrow, wide), (wide, narrow)):
        (one,) = once(order)
        assert (one.bytes, one.until) == (2.0, "weight_gradient")
    assert saved_bytes([narrow, wide, Saved(name="y", bytes=3.0)]) == 5.0


def every_layer() -> Iterator[tuple[LayerKind, Resolved]]:
    """Yields each kind of layer of each model under full recompute."""
    for name in zoo.names():
        with suppress(Unsupported):
            for kind, made, _ in layers(name, recompute_granularity="full"):
                yield kind, made


def test_every_input_that_is_saved_was_made_in_the_layer_or_enters_it() -> None:
    """So full recompute keeps the layer's input alone, and brings back everything else."""
    every = list(every_layer())
    assert len(every) > 400
    for kind, made in every:
        block = lower.layer(kind, made)
        assert len(block.saves) == len(names(block.saves))
        streams = made.workload.model.hyper_connections
        entered = "input_norm.streams" if streams else "input_norm.in" if kind.mixer else "pre_mlp_norm.in"
        entered = "altup.streams" if made.workload.model.altup_num_inputs else entered
        entered = "shared_input.in" if isinstance(kind.mixer, SharedBlock) else entered
        bank = {"residual_bank"} if made.workload.model.attn_res_block_size else set()
        reuses = isinstance(kind.mixer, Attention) and kind.mixer.reuses_kv
        others = {"shared_kv.k", "shared_kv.v"} if reuses else set()
        if isinstance(kind.tower, Vision):  # not replayed unless it is asked for
            assert not block.recompute
            continue
        others |= {"per_layer_input"} if made.workload.model.hidden_size_per_layer_input else set()
        others |= {"relative.out"} if kind.first else set()  # what stands around the layers of a stack is not replayed
        others |= (
            {"encoder.out", "encoder_norm.in", "encoder_norm.statistics"} & names(block.saves) if kind.last else set()
        )
        assert names(block.kept) - others == (
            {"input_norm.mix.sum", *bank} if bank else {entered} if kind.mixer or kind.mlp else set()
        )
        assert others <= names(block.kept)
        # the input of a shared block is kept for the replay alone: what it saves is a copy beside the embedding
        more = sum(each.bytes for each in block.kept if each.tensor not in names(block.saves))
        assert block.kept_bytes + block.dropped_bytes == pytest.approx(block.saved_bytes + more)


@pytest.mark.parametrize("name", KINDS)
def test_a_named_output_is_kept_and_what_makes_it_is_not_replayed(name: str) -> None:
    for kind, made, modules in layers(name, recompute_granularity="full", recompute_saved=("context", "out_proj")):
        block = lower.layer(kind, made)
        assert {"input_norm.in", "core_attn.out", "core_attn.lse", "proj.out"} == names(block.kept)
        replayed = {op.name for op in block.recompute}
        named = [part for part in modules if part.name in ("core_attn", "proj")]
        assert not replayed & {op.name for op in forward_of(named) if isinstance(op, Gemm)}
        assert {"qkv", "q_proj", "q_up"} & replayed


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("module", MODULES)
def test_what_is_replayed_is_what_is_dropped(name: str, module: str) -> None:
    for kind, made, modules in layers(name, recompute_granularity="selective", recompute_modules=(module,)):
        block, again = lower.layer(kind, made), [part for part in modules if module in part.tags]
        remade = {each.tensor for part in again for each in (*part.makes, *part.saves) if not each.input}
        assert block.recompute == forward_of(again)
        assert names(block.dropped) <= remade
        own = {each.tensor for part in again for each in part.saves if not each.input and each.since == "forward"}
        still_read = {each.tensor for part in modules if part not in again for each in part.saves}
        assert own - still_read <= names(block.dropped)
        if module not in ("layernorm", "mla_up_proj", "moe_act"):  # whose checkpoints refill their output
            assert not names(block.dropped) & still_read
        checkpoint = [each for part in again for each in part.reads if each.tensor not in remade]
        assert block.kept_bytes + block.dropped_bytes == pytest.approx(block.saved_bytes + saved_bytes(checkpoint))


@pytest.mark.parametrize("name", KINDS)
def test_a_weight_gradient_that_waits_keeps_what_it_reads(name: str) -> None:
    for kind, made, modules in layers(name):
        for part in modules:
            waiting = [each for each in part.saves if each.until == "weight_gradient"]
            assert bool(waiting) == products(part), part.name
        block = lower.layer(kind, made)
        assert 0 < block.pending_bytes < 2 * block.saved_bytes


@pytest.mark.parametrize("name", KINDS)
def test_frozen_weights_keep_nothing_for_their_gradients(name: str) -> None:
    from projector.workload.lora import LoRA

    for kind, made, modules in layers(name, lora=LoRA(dim=8, targets=("linear_proj",))):
        assert [part.name for part in modules if any(s.until == "weight_gradient" for s in part.saves)] == ["proj"]
        assert lower.layer(kind, made).saved_bytes < lower.layer(kind, case(name)).saved_bytes


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_the_closed_form_of_a_layer_whose_scores_are_written(tp: int, sequence_parallel: bool) -> None:
    """Korthikanti et al. (arXiv:2205.05198), equations 2 and 4: sbh(34 + 5as/h) bytes over t with sequence parallelism,
    sbh(10 + 24/t + 5as/(ht)) without; less the two masks of dropout between the linears (one byte an element each), more
    mean and deviation of two norms."""
    model = replace(
        zoo.load("llama3_8b"), num_query_groups=32, ffn_hidden_size=4 * 4096, gated_linear_unit=False,
        normalization="LayerNorm",
    )  # fmt: skip
    sizes = {"micro_batch_size": 2, "global_batch_size": 64, "seq_length": 1024, "tp": tp}
    how = Recipe(**sizes, sequence_parallel=sequence_parallel, attention_dropout=0.1)
    made = resolve(Workload(model=model, recipe=how, gpus=64), "nvidia", "hopper")
    made = replace(made, execution=made.execution.evolve(fusion={"attention_materialised": True}))
    s, b, h, a = 1024, 2, 4096, 32
    split = tp if sequence_parallel else 1
    expected = s * b * h * (8 / split + 24 / tp + 5 * a * s / (h * tp)) + 16 * s * b / split
    assert lower.layer(decoder(False), made).saved_bytes == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["llama3_8b", "qwen3_30b_a3b", "deepseek_v3"])
def test_sequence_parallelism_splits_everything(name: str) -> None:
    """Experts too: each rank routes its own shard. But the probabilities a token's row map holds are whole numbers."""
    one, four = case(name), case(name, tp=4, sequence_parallel=True)
    for kind in dict.fromkeys(one.workload.model.layer_kinds):
        whole, part = lower.layer(kind, one), lower.layer(kind, four)
        assert part.saved_bytes == pytest.approx(whole.saved_bytes / 4, rel=1e-3)


def test_a_layer_norm_keeps_no_copy_in_fp32_however_the_framework_fuses() -> None:
    """torch's native_layer_norm saves its input, mean and deviation (aten native_layer_norm); an eager RMSNorm its fp32
    input as well."""
    model = zoo.load("llama3_8b")
    how = Recipe(micro_batch_size=1, global_batch_size=64, seq_length=4096)
    upcast = {}
    for kind in ("RMSNorm", "LayerNorm"):
        made = resolve(Workload(model=replace(model, normalization=kind), recipe=how, gpus=64), "nvidia", "hopper")
        made = replace(made, execution=made.execution.evolve(fusion={"norm": False}))
        upcast[kind] = saved_bytes(each for each in lower.layer(decoder(False), made).saves if "upcast" in each.tensor)
    assert upcast == {"RMSNorm": 2 * 4 * 4096 * 4096, "LayerNorm": 0}


def test_eight_bit_linears_save_what_they_multiply() -> None:
    """The inputs of fc1 and of the latent up-projections in 8 bits; what router and attention read stays in 16."""
    made = case("deepseek_v3", precision="fp8", fp8_recipe="delayed", ep=8)
    saves = {each.tensor: each.bytes for each in lower.layer(decoder(True), made).saves}
    x = 4096 * 7168
    assert saves["pre_mlp_norm.out"] == 2 * x
    assert saves["input_norm.out"] == x
    assert saves["q_norm.out"] == 4096 * 1536
    assert saves["core_attn.out"] == 2 * 4096 * 128 * 128


def test_what_a_prediction_module_drops_is_what_it_replays() -> None:
    """``block`` passes it by (NVIDIA/Megatron-LM core/transformer/multi_token_prediction.py), ``uniform`` takes it along."""
    passed = case("deepseek_v3", recompute_granularity="full", recompute_method="block", recompute_num_layers=1)
    assert lower.mtp(passed).recompute == ()
    assert lower.mtp_layer(passed).kept_bytes == lower.mtp_layer(passed).saved_bytes
    along = case("deepseek_v3", recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    assert lower.mtp(along).recompute
    assert lower.mtp_layer(along).kept_bytes < 0.5 * lower.mtp_layer(along).saved_bytes
    assert lower.mtp(case("deepseek_v3", recompute_granularity="selective")).recompute


# One book of weights: what is trained in time is what lies in memory, and all of it is the model.


def one_rank(model, **recipe) -> WeightSet:
    stated = {"global_batch_size": 8, "make_vocab_size_divisible_by": 1} | recipe
    case = resolve(workload(model, **stated), "nvidia", "hopper")
    groups = [(layer(kind, case).weights, n) for kind, n in Counter((*model.tower_kinds, *model.layer_kinds)).items()]
    groups += [(embedding(case).weights, 1), (head(case).weights, 1)]
    return weight_set([*groups, *([(mtp(case).weights, model.mtp_num_layers)] if model.mtp_num_layers else [])])


def test_modules_hold_the_parameters_of_every_model_exactly() -> None:
    seen = 0
    for model in map(zoo.load, zoo.names()):
        with suppress(Unsupported):
            assert one_rank(model).total == count(model).total, model.name
            seen += 1
    assert seen > 250


def test_a_storage_counts_once_on_a_rank_and_once_on_each_of_two() -> None:
    table = Weight(name="table", rows=100, columns=8, storage="words")
    both = weight_set([([table], 1), ([table], 1)])
    assert both.total == 800
    assert (weight_set([([table], 1)]) + weight_set([([table], 1)])).total == 800


def test_adapters_stand_beside_every_linear_that_is_adapted() -> None:
    """dim · (in + out) of q, kv and output of latent attention, cut as their linears are (arXiv:2106.09685)."""
    model = zoo.load("deepseek_v2_lite")
    targets = ("linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")
    mla, h, n = model.mla, model.hidden_size, model.num_attention_heads
    sides = (
        (h, n * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)),
        (h, mla.kv_lora_rank + mla.qk_pos_emb_head_dim),
        (mla.kv_lora_rank, n * (mla.qk_head_dim + mla.v_head_dim)),
        (n * mla.v_head_dim, h),
    )
    adapters = one_rank(model, lora=LoRA(dim=16, targets=targets)).only("adapter").total
    assert adapters == model.num_layers * 16 * sum(a + b for a, b in sides)


def test_time_and_memory_hold_the_same_weights_in_every_measured_run(root: Path, every: int) -> None:
    seen = set()
    for run in dataset.read(root / "measured" / "runs")[::every]:
        if run.problem or run.model is None or run.recipe is None or run.workload in seen:
            continue
        seen.add(run.workload)
        try:
            case = resolve(run.workload, "nvidia")
            for chunk in compositions(run.model, case.workload.recipe)[1]:
                here = stage(case, contents((chunk,)), partial(weights_of, case))
                trained = owned(case, parts(case, chunk))
                expected = here.adapters if run.recipe.lora else here.weights.total
                assert trained.total == pytest.approx(expected, rel=1e-12), run.id
        except (Unsupported, ValueError):
            continue
    assert len(seen) > 600 // every


def test_the_weights_of_all_ranks_are_those_of_the_model(root: Path, every: int) -> None:
    """What tensor and expert parallelism cut, times the ranks that share it; what every rank repeats, once: norms, routers,
    latent down projections, copies of tied embeddings. The vocabulary is padded to what the ranks can cut."""
    seen = set()
    for run in dataset.read(root / "measured" / "runs")[::every]:
        if run.problem or run.model is None or run.recipe is None or run.workload in seen or run.recipe.lora:
            continue
        try:
            case = resolve(run.workload, "nvidia")
            stages = [owned(case, parts(case, chunk)) for chunk in compositions(run.model, case.workload.recipe)[1]]
        except (Unsupported, ValueError):
            continue
        seen.add(run.workload)
        stored = {weight.storage: weight for stage in stages for weight in stage.weights if weight.storage}
        weights = [item for stage in stages for item in stage.weights.items() if not item[0].storage]
        recipe = case.workload.recipe
        total = 0.0
        for weight, number in [*weights, *((weight, 1) for weight in stored.values())]:
            inner = recipe.etp if weight.expert else recipe.tp
            total += weight.elements * number * (inner if weight.split else 1) * (recipe.ep if weight.expert else 1)
        padding = (case.workload.padded_vocab_size - run.model.vocab_size) * run.model.hidden_size
        published = count(run.model)
        assert total == pytest.approx(
            published.total + padding * (2 if run.model.untie_embeddings_and_output_weights else 1), rel=1e-9
        ), run.id
    assert len(seen) > 600 // every
