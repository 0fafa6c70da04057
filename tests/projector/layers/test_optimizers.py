"""Update rules: bytes kept and bytes moved, laws over kinds, closed forms and published figures."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.intake.megatron_cli import todays_words
from projector.layers import lower
from projector.layers.optimizers import RULES, by_rule, moments, scratch
from projector.layers.step import optimizer
from projector.memory.plan import MemoryPlan, plan
from projector.operators.types import Stream
from projector.operators.weights import Weight, WeightSet, weight_set
from projector.projection import project
from projector.step.muon import products
from projector.step.muon import seconds as muon_seconds
from projector.workload import zoo
from projector.workload.optimizers import OPTIMIZERS, named
from projector.workload.recipe import Recipe
from projector.workload.value_checks import CHOICES
from projector.workload.workload import Workload

H100 = catalogue.default_cluster("h100_sxm")
GIB = 2.0**30


def recipe(**how: Any) -> Recipe:
    usual = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096, "recompute_granularity": "full"}
    return Recipe(**(usual | {"recompute_method": "uniform", "recompute_num_layers": 1} | how))


def workload(framework: str = "megatron-lm", **how: Any) -> Workload:
    return Workload(model=zoo.load("llama3_8b"), recipe=recipe(**how), gpus=8, framework=framework)


def resolved(framework: str = "megatron-lm", **how: Any) -> Resolved:
    return resolve(workload(framework, **how), "nvidia", "hopper")


def planned(**how: Any) -> MemoryPlan:
    return plan(resolved(**how), H100.gpu)


def passes(case: Resolved, part: WeightSet) -> dict[str, Stream]:
    ops = optimizer(case, part)
    assert len({op.name for op in ops}) == len(ops)
    return {op.name: op for op in ops if isinstance(op, Stream)}


MATRIX = weight_set([([Weight(name="fc1", rows=8192, columns=4096, role="linear")], 3)])
MIXED = weight_set(
    [
        ([Weight(name="fc1", rows=8192, columns=4096, role="linear")], 3),
        ([Weight(name="norm", rows=4096)], 6),
        ([Weight(name="embedding", rows=32000, columns=4096, role="embedding")], 1),
    ]
)


def kept(name: str, weights: WeightSet = MATRIX, dense: int = 1, **how: Any) -> float:
    how = recipe(optimizer=name, **how)
    return sum(moments(how, rule, part, dense, 1) for rule, part in by_rule(how, weights))


def test_every_optimizer_of_a_recipe_has_a_rule() -> None:
    assert set(RULES) == set(OPTIMIZERS) == set(CHOICES["optimizer"])


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("adam", 8.0),
        ("adamw", 8.0),
        ("lamb", 8.0),
        ("schedule_free_adamw", 8.0),
        ("lion", 4.0),
        ("sgd", 4.0),
        ("muon", 4.0),
        ("sgd_no_momentum", 0.0),
        ("adam_8bit", 2 * (1 + 4 / 256)),  # a byte and a share of the scale of its block
        ("adam_fp8", 2 * (1 + 4 / 256)),
        ("adam_4bit", 2 * (0.5 + 4 / 128)),
        ("lion_8bit", 1 + 4 / 256),
        ("adafactor", 4.0 / 8192 + 4.0 / 4096),  # a row and a column
    ],
)
def test_bytes_of_an_element_of_a_matrix(name: str, each: float) -> None:
    assert kept(name) / MATRIX.total == pytest.approx(each)


def test_adafactor_grows_with_the_side_not_with_the_area() -> None:
    def of(side: int) -> float:
        return kept("adafactor", weight_set([([Weight(name="w", rows=side, columns=side, role="linear")], 1)]))

    assert of(8192) == pytest.approx(2 * of(4096))
    assert (
        kept("adafactor", weight_set([([Weight(name="norm", rows=4096)], 1)])) == 4.0 * 4096
    )  # a vector is kept whole


def test_columns_of_a_factored_state_are_on_every_rank() -> None:
    assert kept("adafactor", dense=8) == pytest.approx(3 * 4.0 * (8192 / 8 + 4096))


def test_small_tensors_keep_wide_states() -> None:
    norm = weight_set([([Weight(name="norm", rows=4095)], 1)])
    assert kept("adam_8bit", norm) == kept("adam", norm)
    assert kept("adam_8bit", weight_set([([Weight(name="norm", rows=4096)], 1)])) == pytest.approx(
        2 * 4096 * (1 + 4 / 256)
    )


def test_muon_leaves_embeddings_and_vectors_to_adam() -> None:
    rest = 6 * 4096 + 32000 * 4096
    assert kept("muon", MIXED) == pytest.approx(4.0 * MATRIX.total + 8.0 * rest)
    router = weight_set([([Weight(name="router", rows=256, columns=4096, role="router")], 1)])
    assert kept("muon", router) == 4.0 * router.total
    assert products(resolved(optimizer="muon", data_parallel_sharding="no_shard"), router)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_are_divided_among_the_ranks(name: str) -> None:
    one, eight = kept(name, MIXED), kept(name, MIXED, dense=8)
    assert one / 8 <= eight * (1 + 1e-9)
    assert eight <= one


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_plan_holds_what_the_table_says(name: str) -> None:
    case = resolved(optimizer=name, data_parallel_sharding="no_shard")
    rank = plan(case, H100.gpu).ranks[0]
    layers = [(lower.layer(layer, case).weights, 1) for layer in case.workload.model.layer_kinds]
    whole = weight_set([(lower.embedding(case).weights, 1), *layers, (lower.head(case).weights, 1)])
    assert rank.components["moments"] == pytest.approx(kept(name, whole))


def test_eighteen_bytes_a_parameter_and_sixteen_with_bf16_gradients() -> None:
    """Megatron-LM docs: 18 bytes without, 6 + 12/d with the distributed optimizer (16-bit weights, fp32 gradients)."""
    parts = ("weights", "gradients", "master_weights", "moments")

    def each(**how: Any) -> float:
        rank = planned(**how).ranks[0]
        return sum(rank.components[part] for part in parts) / rank.parameters

    assert each(data_parallel_sharding="no_shard") == pytest.approx(18.0)
    assert each(data_parallel_sharding="optim") == pytest.approx(6 + 12 / 8)
    assert each(data_parallel_sharding="no_shard", grad_reduce_in_bf16=True) == pytest.approx(16.0)
    assert each(data_parallel_sharding="no_shard", optimizer="sgd") == pytest.approx(14.0)


def test_llama2_7b_in_bf16_as_torchao_measured_it() -> None:
    """pytorch/ao@36027d82d torchao/optim/README.md: peak of a full bf16 fine-tuning of Llama-2-7B, 51.6 GB with fused
    AdamW, 39.3 with 8-bit (bitsandbytes), 33.2 with 4-bit states; what differs is the states."""
    weights = weight_set([([Weight(name="w", rows=6_738_000_000 // 4096, columns=4096, role="linear")], 1)])
    narrow = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    bf16 = kept("adamw", weights, **narrow)
    assert (bf16 - kept("adam_8bit", weights)) / GIB == pytest.approx(51.6 - 39.3, rel=0.02)
    assert (bf16 - kept("adam_4bit", weights)) / GIB == pytest.approx(51.6 - 33.2, rel=0.02)


def traffic(case: Resolved, part: WeightSet = MIXED) -> float:
    return sum(op.read + op.write for op in passes(case, part).values())


def test_fused_adam_reads_and_writes_each_state_once() -> None:
    ops = passes(resolved(data_parallel_sharding="no_shard"), MIXED)
    assert ops["adam"].read == pytest.approx(16 * MIXED.total)  # gradient, master, two moments
    assert ops["adam"].write == pytest.approx(12 * MIXED.total)
    assert ops["copy_to_model"].write == pytest.approx(2 * MIXED.total)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_of_the_step(name: str) -> None:
    """Every rule reads gradient, weight and states, and writes weight and states, at least once."""
    case = resolved(optimizer=name, data_parallel_sharding="no_shard")
    ops = optimizer(case, MIXED)
    own = [op for op in ops if op.name not in ("grad_norm", "clip", "copy_to_model", "zero_grad", "scale_grad")]
    states = kept(name, MIXED)
    assert sum(op.read for op in own) >= 8 * MIXED.total + states * (1 - 1e-9)
    assert sum(op.write for op in own) >= 4 * MIXED.total + states * (1 - 1e-9)


@pytest.mark.parametrize(
    ("first", "second", "copies", "before"),
    [("fp32", "fp32", 0, 0), ("bf16", "bf16", 0, 2), ("bf16", "fp32", 1, 1), ("fp16", "fp16", 2, 2), ("fp8", "fp8", 2, 2)],
)  # fmt: skip
def test_states_that_the_kernel_cannot_read_are_widened(first: str, second: str, copies: int, before: int) -> None:
    """Kernels that take bf16 came with TransformerEngine 2.14; what is widened the update reads and writes in fp32."""
    for date, widened in (("2026-04", copies), ("2026-03", before)):
        case, plain = (aware(date, *words) for words in ((first, second), ("fp32", "fp32")))
        narrow = case.execution.fusion.bf16_moments
        ops = [op for op in optimizer(case, MATRIX) if isinstance(op, Stream)]
        assert len([op for op in ops if op.name == "widen"]) == widened
        assert scratch(case.workload.recipe, MATRIX, 1, 1, narrow) == 4.0 * widened * MATRIX.total
        read = next(op.read for op in ops if op.name == "adam")
        spared = passes(plain, MATRIX)["adam"].read - read
        assert spared == (4.0 * MATRIX.total if first == second == "bf16" and narrow else 0.0)


def aware(date: str, first: str, second: str) -> Resolved:
    how = {"use_precision_aware_optimizer": True, "exp_avg_dtype": first, "exp_avg_sq_dtype": second}
    own = workload(data_parallel_sharding="no_shard", **how)
    return resolve(dataclasses.replace(own, framework_date=date), "nvidia", "hopper")


def test_moments_in_bf16_as_measured() -> None:
    """8 layers of DeepSeek-V4-Flash, 32 experts a rank, TransformerEngine 2.8: 72,778 MB allocated, 121,962 at most
    (AMD-AGI/Primus@26bd1cc7 deepseek-v4/develop/progress/p36/runs/triton_on.smoke_tail.txt)."""
    experts = weight_set([([Weight(name="fc", rows=3 * 2048, columns=4096, role="linear", expert=True)], 8 * 32)])
    case = aware("2026-02", "bf16", "bf16")
    found = scratch(case.workload.recipe, experts, 8, 1, case.execution.fusion.bf16_moments)
    assert found == pytest.approx((121962.15 - 72778.15) * 2**20, rel=0.002)


def test_types_of_states_count_under_the_precision_aware_optimizer_alone() -> None:
    """In time and memory alike."""
    stated = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", "data_parallel_sharding": "no_shard"}
    assert planned(**stated).ranks[0].components["moments"] == planned().ranks[0].components["moments"]
    assert traffic(resolved(**stated)) == traffic(resolved(data_parallel_sharding="no_shard"))


def test_working_tensors_of_a_step() -> None:
    largest = 32000 * 4096
    assert scratch(recipe(optimizer="adafactor"), MIXED, 1, 1) == 4.0 * largest
    assert scratch(recipe(optimizer="schedule_free_adamw"), MIXED, 4, 1) == pytest.approx(4.0 * MIXED.total / 4)
    assert scratch(recipe(optimizer="adam"), MIXED, 1, 1) == 0.0
    assert scratch(recipe(optimizer="muon"), MIXED, 8, 1) == 8.0 * 8192 * 4096  # matrices are updated whole


@given(
    name=st.sampled_from(OPTIMIZERS), rows=st.integers(1, 9000), columns=st.integers(1, 9000), number=st.integers(1, 64),
    ranks=st.integers(1, 64),
)  # fmt: skip
def test_more_weights_keep_and_move_more(name: str, rows: int, columns: int, number: int, ranks: int) -> None:
    def of(count: int) -> WeightSet:
        return weight_set([([Weight(name="w", rows=rows, columns=columns, role="linear")], count)])

    few, many = of(number), of(number + 1)
    assert kept(name, few, ranks) <= kept(name, many, ranks)
    case = resolved(optimizer=name, data_parallel_sharding="optim")
    assert traffic(case, few) < traffic(case, many)


def test_step_time_follows_the_bytes() -> None:
    def seconds(name: str) -> float:
        return project(workload(optimizer=name, data_parallel_sharding="optim"), H100).breakdown["optimizer_s"]

    assert seconds("sgd_no_momentum") < seconds("sgd") < seconds("adam") < seconds("adafactor") < seconds("muon")


def test_orthogonal_updates_take_at_least_all_products_of_the_costliest_matrix() -> None:
    """A matrix is one rank's, however many ranks there are: five iterations of X·Xᵀ, A·A and A·X. The device here takes
    a second for each row of a product."""
    many = dataclasses.replace(workload(optimizer="dist_muon", data_parallel_sharding="optim"), gpus=4096)
    case = resolve(many, "nvidia", "hopper")
    small, large = (Weight(name=f"fc{i}", rows=64 * i, columns=32 * i, role="linear") for i in (1, 2))
    kernels = type("Kernels", (), {"__getitem__": lambda self, op: float(op.m)})()
    clock: Any = SimpleNamespace(kernels=kernels)
    assert muon_seconds(case, weight_set([([small, large], 1)]), clock) == pytest.approx(5 * 3 * 64)
    assert muon_seconds(case, weight_set([([large], 1)]), clock) == pytest.approx(5 * 3 * 64)


@pytest.mark.parametrize(("word", "name"), tabled("names", "optimizers_by_words"))
def test_words_of_trainers(word: str, name: str) -> None:
    assert named(word) == name
    assert todays_words({"optimizer": word})["optimizer"] == ("adam" if name == "adamw" else name)


def test_an_unknown_optimizer_is_refused_with_the_known_ones() -> None:
    caught = refusal(project, workload(optimizer="soap"), H100)
    (problem,) = caught.problems
    assert problem.key == "recipe.optimizer"
    assert all(name in problem.expected for name in OPTIMIZERS)


def test_autograd_adds_the_gradients_of_later_micro_batches() -> None:
    """Two reads and a write of each later micro-batch, of a rank's shards where each is reduced; Megatron's kernels add
    into a buffer."""

    def added(framework: str, batch: int, **how: Any) -> float:
        found = passes(resolved(framework, global_batch_size=batch, **how), MATRIX).get("accumulate")
        return found.read + found.write if found else 0.0

    one = 3 * 2.0 * MATRIX.total  # bf16
    for number in (1, 2, 5):
        assert added("internevo", 8 * number) == one * (number - 1)
        assert added("pytorch", 8 * number) == 2 * one * (number - 1)  # fp32 weights under autocast
        for framework in ("torchtitan", "llm-foundry"):  # fp32 shards of 8 ranks
            assert added(framework, 8 * number) == 2 * one * (number - 1) / 8
    for framework in ("megatron-lm", "maxtext"):
        assert added(framework, 64) == 0.0
    full = {"data_parallel_sharding": "optim_grads_params"}
    assert added("pytorch", 16, **full) == 2 * one  # whole, for the reduction of the step
    assert added("pytorch", 16, defer_fsdp_grad_sync=False, **full) == 2 * one / 8
    one_step, two_steps = (
        project(workload("internevo", global_batch_size=batch), H100).breakdown["optimizer_s"] for batch in (8, 16)
    )
    assert two_steps - one_step > 0.7 * 3 * 2.0 * 8e9 / H100.gpu.memory_bandwidth
