"""Laws of every strategy of data parallelism: what is kept, what travels, and how the two trade."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.frameworks.resolve import resolve
from projector.hardware import catalogue
from projector.mechanisms.data_parallel import DataParallel, of_degree
from projector.mechanisms.strategy import strategies_in
from projector.memory.plan import plan
from projector.operators.weights import Weight, WeightSet, weight_set
from projector.projection import project
from projector.settle.workload import settle_checked
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.workloads import weights, workload

KINDS: dict[str, type[DataParallel]] = dict(strategies_in("projector.mechanisms.data_parallel"))  # type: ignore[arg-type]
DEGREES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
EVERYTHING = frozenset({"weights", "gradients", "states"})


def job(gpus: int = 64, ep: int = 1, model: str = "qwen3_30b_a3b", **recipe: object) -> Workload:
    fields = {"global_batch_size": 2 * gpus, "ep": ep, "recompute_granularity": "none"}
    return workload(model, gpus, **fields | recipe)


@pytest.mark.parametrize("name", KINDS)
def test_a_strategy_has_a_degree_and_divides_what_is_known(name: str) -> None:
    assert KINDS[name].degree in DEGREES
    assert KINDS[name].divided <= EVERYTHING


@pytest.mark.parametrize("name", KINDS)
def test_what_travels_is_as_wide_as_what_is_trained(name: str) -> None:
    narrow, wide = (KINDS[name]().configured_by(job(precision=precision).recipe) for precision in ("bf16", "fp32"))
    assert (narrow.gather_bytes, wide.gather_bytes) == (2.0, 4.0)


@pytest.mark.parametrize("name", KINDS)
@given(instances=st.sampled_from([1, 2, 4]), ep=st.sampled_from([1, 8, 64]), dense=st.integers(0, 10**9))
def test_what_all_ranks_keep_is_the_model_times_its_copies(name: str, instances: int, ep: int, dense: int) -> None:
    sharing, work = KINDS[name](), job(ep=ep, num_distributed_optimizer_instances=instances)
    copies, of_experts = sharing.copies(work)
    for what in EVERYTHING:
        apart = what in sharing.divided
        kept = sharing.resident(what, work, float(dense), 0.0) * work.dp
        assert kept == pytest.approx(dense * (copies if apart else work.dp))
        kept = sharing.resident(what, work, 0.0, 1e6) * work.edp
        assert kept == pytest.approx(1e6 * (of_experts if apart else work.edp))


@pytest.mark.parametrize("name", KINDS)
def test_a_group_of_one_sends_nothing(name: str) -> None:
    alone = job(gpus=1)
    assert KINDS[name]().reduction(alone, weights(10, 0)) == ()
    assert KINDS[name]().gather(alone, weights(10, 0)) == ()


LAYERS = (("embedding", 60, "embedding"), ("output", 60, "output"), ("norm", 4, "vector"), ("fc1", 800, "linear"))


def model_of(experts: int = 0) -> WeightSet:
    ends = [Weight(name=name, rows=rows, role=role) for name, rows, role in LAYERS]
    return weight_set([([*ends, Weight(name="experts", rows=experts, role="linear", expert=True)], 1)])


@pytest.mark.parametrize("name", ["ddp", "distributed_optimizer"])
def test_the_embedding_is_in_the_last_bucket_and_with_fp8_weights_all_that_is_not_fp8(name: str) -> None:
    sharing = KINDS[name](bucket_elements=40.0)  # type: ignore[call-arg]
    for precision, late, wide in (("bf16", 60, 2.0), ("fp8", 124, 1.0), ("mxfp8", 124, 2.0)):
        work = job(precision=precision, fp8_param_gather=True)
        last, first = sharing.configured_by(work.recipe).buckets(work, model_of(), 0)
        assert last == pytest.approx((late + 20) / 924)  # half a bucket is left on average
        assert first == pytest.approx((2.0 * late + 20 * wide) / (2.0 * 124 + 800 * wide))
        assert sharing.configured_by(work.recipe).buckets(work, model_of(), 1) == (
            1.0,
            1.0,
        )  # stages but the first: one bucket
        experts = sharing.configured_by(work.recipe).buckets(work, model_of(experts=10**6), 0)[0]
        assert experts < last  # a buffer of their own, with buckets of its own


def test_a_model_below_one_bucket_is_one_bucket_and_buckets_grow_with_ranks() -> None:
    work = job()
    assert KINDS["ddp"](bucket_elements=1e9).buckets(work, model_of(), 0) == (1.0, 1.0)  # type: ignore[call-arg]
    shares = [KINDS["ddp"](bucket_elements=1.0, bucket_elements_a_rank=each) for each in (0.0, 1.0, 2.0)]  # type: ignore[call-arg]
    found = [sharing.buckets(work, model_of(), 0)[0] for sharing in shares]
    assert found == pytest.approx([(60 + rest) / 924 for rest in (0.5, work.dp / 2, work.dp)])


@pytest.mark.parametrize("name", ["ddp", "distributed_optimizer"])
def test_every_bucket_is_a_call(name: str) -> None:
    """Tensors of 800 of 924 elements: a bucket of 40 is closed by 350 more on average (Megatron-LM partition_buckets)."""
    sharing, work = KINDS[name](bucket_elements=40.0), job(overlap_grad_reduce=True)  # type: ignore[call-arg]
    stands_over = (2 * 60 * 60 + 4 * 4 + 800 * 800) / 924 / 2
    layers = weight_set([([Weight(name=name, rows=rows, role=role) for name, rows, role in LAYERS], 100)])
    for op in (*sharing.reduction(work, layers), *sharing.gather(work, layers)):
        assert op.calls == round(92400 / (40 + stands_over))
    experts = WeightSet({Weight(name="experts", rows=10, count=64, expert=True): 10})
    assert [op.calls for op in sharing.reduction(work, experts)] == [round(6400 / (40 + 5))]


def test_one_call_without_overlap_behind_a_pipeline_and_in_one_bucket() -> None:
    small, large = (KINDS["ddp"](bucket_elements=size) for size in (4.0, 1e9))  # type: ignore[call-arg]
    cases = (
        (small, job(overlap_grad_reduce=False)),
        (small, job(overlap_grad_reduce=True, pp=2)),
        (large, job(overlap_grad_reduce=True)),
        (KINDS["ddp"](), job(overlap_grad_reduce=True)),
    )
    for sharing, work in cases:
        assert [op.calls for op in sharing.reduction(work, model_of())] == [1]


def test_buckets_grow_with_the_ranks_that_reduce_them() -> None:
    """Of data and context parallelism together (training.py, ``resolve_ddp_bucket_size``)."""
    sharing = KINDS["ddp"](bucket_elements_a_rank=1.0)  # type: ignore[call-arg]
    layers = weight_set([([Weight(name="norm", rows=4)], 10**6)])
    calls = [
        op.calls
        for cp in (1, 2)
        for op in sharing.reduction(job(overlap_grad_reduce=True, cp=cp, gpus=128, global_batch_size=256), layers)
    ]
    assert calls[0] == calls[1] == round(4e6 / (128 + 2))


def test_a_recipe_names_its_buckets() -> None:
    """``--ddp-bucket-size`` in place of max(40000000, 1000000 · dp) parameters, whatever the ranks."""
    sharing = KINDS["ddp"](bucket_elements=40.0, bucket_elements_a_rank=2.0)  # type: ignore[call-arg]
    layers, calls = weight_set([([Weight(name="norm", rows=4)], 10**4)]), []
    for size in (10, 100):
        work = job(ddp_bucket_size=size, overlap_grad_reduce=True)
        named = sharing.configured_by(work.recipe)
        assert named.buckets(work, model_of(), 0)[0] == pytest.approx((60 + size / 2) / 924)
        calls += [op.calls for op in named.reduction(work, layers)]
    assert calls == [round(4e4 / (10 + 2)), round(4e4 / (100 + 2))]
    assert sharing.configured_by(job().recipe) == sharing


@pytest.mark.parametrize(("framework", "grow"), [("megatron-lm", True), ("megatron-bridge", False), ("nemo", False)])
def test_buckets_of_bridge_and_nemo_are_as_large_on_any_number_of_ranks(framework: str, grow: bool) -> None:
    """Their recipes state 128 Mi elements (Megatron-Bridge comm_overlap.py), where Megatron-LM's default grows."""
    calls = []
    for gpus in (64, 4096):
        run = workload("llama3_8b", gpus, framework, global_batch_size=gpus, overlap_grad_reduce=True)
        resolved = settle_checked(run, catalogue.cluster("h100_sxm"), published=False)
        layers = weight_set([([Weight(name="norm", rows=10**6)], 10**4)])
        calls += [op.calls for op in resolved.execution.data_parallel.reduction(resolved.workload, layers)]
    assert (calls[0] > calls[1]) == grow


def test_fp8_weights_travel_in_one_byte_and_all_others_in_two() -> None:
    for precision, bytes_of_products in (("fp8", 1.0), ("mxfp8", 2.0), ("bf16", 2.0)):
        work = job(precision=precision, fp8_param_gather=True)
        (op,) = KINDS["distributed_optimizer"]().configured_by(work.recipe).gather(work, model_of())
        assert op.bytes == 124 * 2.0 + 800 * bytes_of_products


def wire(ops: tuple[object, ...]) -> float:
    """Bytes over all links of a ring, in units of (n − 1)/n: an all-reduce passes its buffer twice."""
    return sum(op.bytes * (2.0 if op.kind == "all_reduce" else 1.0) for op in ops)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KINDS)
def test_scatter_and_gather_carry_what_one_all_reduce_does(name: str) -> None:
    """Rajbhandari et al. 2020, section 7.1: ZeRO-1 and 2 send as much as data parallelism, in one type."""
    work, part = job(ep=8), weights(10**9, 10**8)
    same = {"reduce_bytes": 2.0, "gather_bytes": 2.0}
    sharing, plain = KINDS[name](**same), KINDS["ddp"](**same)
    sent = wire(sharing.reduction(work, part)) + wire(sharing.gather(work, part))
    assert sent == pytest.approx(wire(plain.reduction(work, part)))


def traffic(sharing: DataParallel, work: Workload, part: WeightSet) -> float:
    """Bytes of a step's reductions and gathers: per pass and micro-batch where the strategy says so."""
    recipe, m = work.recipe, work.num_microbatches
    reduced = wire(sharing.reduction(work, part)) * (m if sharing.reduces_every_microbatch(work) else 1)
    return reduced + wire(sharing.gather(work, part)) * (2 * m if sharing.gathers_every_microbatch(recipe) else 1)


@pytest.mark.parametrize(
    ("degree", "whole", "shared"), [("optim", 4, 12), ("optim_grads", 2, 14), ("optim_grads_params", 0, 16)]
)
def test_deepspeed_keeps_the_bytes_of_a_parameter_that_its_paper_counts(degree: str, whole: int, shared: int) -> None:
    """Rajbhandari et al. 2020, figure 1: 2 for weights, 2 for gradients, 12 for Adam in mixed precision."""
    work = workload("llama3_8b", 64, "deepspeed", data_parallel_sharding=degree, recompute_granularity="full")
    (rank,) = project(work, catalogue.cluster("h100_sxm")).memory.ranks
    kept = sum(rank.components[name] for name in ("weights", "gradients", "master_weights", "moments"))
    assert kept == pytest.approx(rank.parameters * (whole + shared / 64), rel=1e-3)


@given(st.sampled_from([1, 2, 8]), st.sampled_from([1, 4, 16]))
def test_sharing_out_more_sends_no_less(pp: int, batches: int) -> None:
    work, part = job(pp=pp, global_batch_size=64 // pp * batches), weights(10**9, 10**8)
    same = {"reduce_bytes": 2.0, "gather_bytes": 2.0}
    sent = [traffic(of_degree(KINDS["ddp"](**same), degree), work, part) for degree in DEGREES]
    assert all(more >= less * (1 - 1e-12) for less, more in pairwise(sent))


def test_whose_full_sharding_runs_follows_from_the_optimizer() -> None:
    """Megatron's optimizers keep fp32 copies of their own, torch's step the weights."""
    megatron = of_degree(KINDS["ddp"](), "optim_grads_params")
    plain = of_degree(KINDS["ddp"](parameter_bytes=4.0, master_bytes=0.0), "optim_grads_params")
    assert (megatron.name, plain.name) == ("megatron_fsdp", "fsdp2")
    assert (plain.parameter_bytes, plain.master_bytes) == (4.0, 0.0)


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_weights_that_stay_for_the_backward_are_gathered_once_and_whole(name: str) -> None:
    sharded = KINDS[name]()
    kept = of_degree(sharded, "optim_grads")
    assert kept.keeps_gathered
    assert kept.divided == sharded.divided == EVERYTHING
    how = Recipe(micro_batch_size=1, global_batch_size=8, seq_length=4096)
    whole, unit = 8e9, 2.5e8
    alone, all_of_it = (each.gathered(how, whole, unit, 0.0, 0.0) for each in (sharded, kept))
    assert all_of_it.loss == kept.gather_bytes * whole
    assert alone.loss < alone.backward < all_of_it.loss


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2", "zero3"])
def test_below_adapters_weights_are_gathered_but_no_gradients_of_them(name: str) -> None:
    """Of a frozen parameter autograd makes no gradient (torch distributed/fsdp/_fully_shard/_fsdp_param_group.py)."""
    how, sizes = job().recipe, (8e9, 2.5e8, 1e8, 1e8)
    ends = KINDS[name](root_holds_ends=True)
    trained, frozen = (ends.gathered(replace(how, lora=lora), *sizes) for lora in (None, LoRA(dim=16)))
    assert (frozen.forward, frozen.loss) == (trained.forward, trained.loss)
    assert frozen.backward == frozen.forward
    assert frozen.projection == frozen.loss


def test_a_stage_that_is_no_unit_itself_synchronises_with_every_backward() -> None:
    """torch's schedules defer gathers and reductions of a wrapped stage to the step; resharding by words of the recipe
    stays as it is, and so does everything without a pipeline."""
    wrapped = KINDS["fsdp2"](unsharded_pipeline=True)
    inside = KINDS["fsdp2"](unsharded_pipeline=True, wraps_stages=False)
    for pp, reshards in ((4, None), (4, False), (4, True), (1, None)):
        work = job(pp=pp, data_parallel_sharding="optim_grads_params", fsdp_reshard_after_forward=reshards)
        recipe = work.recipe
        whole, unit = wrapped.configured_by(recipe), inside.configured_by(recipe)
        assert unit.configured_by(recipe) == unit
        stays = pp > 1 and not reshards
        assert whole.gathers_every_microbatch(recipe) is not stays
        assert unit.gathers_every_microbatch(recipe)
        assert unit.keeps_gathered is stays
        # what its forward frees, a wrapped stage gathers once more and keeps until the next forward, as much as if it stayed
        assert whole.keeps_gathered is (reshards is not None)
        kept = wrapped.gathered(recipe, 8e9, 2.5e8, 0.0, 0.0)
        assert (whole.gathered(recipe, 8e9, 2.5e8, 0.0, 0.0) == kept) is (pp > 1 or not reshards)
        assert whole.reduces_every_microbatch(work) is (pp == 1)
        assert unit.reduces_every_microbatch(work)


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
@given(st.sampled_from([1, 2, 8]))
def test_gradients_whose_sync_is_deferred_travel_once_and_stay_whole(name: str, batches: int) -> None:
    """Huggingface accelerate's GradientAccumulationPlugin: ``sync_each_batch=False`` trades memory for traffic."""
    work, part = job(global_batch_size=64 * batches, data_parallel_sharding="optim_grads_params"), weights(10**9, 10**8)
    each, once = (
        KINDS[name]().configured_by(replace(work.recipe, defer_fsdp_grad_sync=deferred)) for deferred in (False, True)
    )
    reductions = traffic(each, work, part) - traffic(once, work, part)
    assert reductions == pytest.approx((work.num_microbatches - 1) * wire(each.reduction(work, part)))
    assert once.keeps_whole_gradients(work) is (work.num_microbatches > 1)
    assert not each.keeps_whole_gradients(work)


def test_simple_fsdp_sends_the_bytes_of_fsdp2_weight_by_weight_and_copies_none_of_them_out() -> None:
    work = job(data_parallel_sharding="optim_grads_params", data_parallel_shard_size=64)
    part = weights(1000, 500) + weights(1000, 500)
    units, single = (KINDS[name]() for name in ("fsdp2", "simple_fsdp"))
    for way in ("gather", "reduction"):
        whole, apart = (getattr(each, way)(work, part) for each in (units, single))
        assert (len(whole), len(apart)) == (2, 4)  # the experts' beside the others'
        assert sum(op.bytes for op in apart) == sum(op.bytes for op in whole)
    before, again, cast = single.copied("layer", work, 1e6, 2.0)
    assert (before, again) == ((), ())
    assert cast == units.copied("layer", work, 1e6, 2.0)[2]


@pytest.mark.parametrize(
    ("model", "date", "each"),
    [("qwen3_30b_a3b", "2025-10-07", True), ("qwen3_30b_a3b", "2025-10-08", False), ("llama3_8b", "2025-10-07", False)],
)
def test_automodel_synchronised_every_micro_batch_of_a_stage_of_experts_once(model: str, date: str, each: bool) -> None:
    work = replace(workload(model, 16, "automodel", pp=2), framework_date=date)
    run = resolve(work, "nvidia", "hopper")
    assert run.execution.data_parallel.reduces_every_microbatch(run.workload) is each


def test_automodel_keeps_eight_bytes_of_a_weight_of_experts() -> None:
    """Weight, gradient and both moments in bf16: torch.optim.Adam keeps its states in the type of what it steps."""
    work = workload("qwen3_30b_a3b", 8, "automodel", ep=8, recompute_granularity="full", defer_fsdp_grad_sync=False)
    found = project(work, catalogue.cluster("h100_sxm")).memory.ranks[0].components
    weights = found["weights"]
    assert found["gradients"] == pytest.approx(weights)
    assert found["moments"] == pytest.approx(2 * weights)
    assert not found["master_weights"]


@pytest.mark.parametrize("framework", ["megatron-lm", "torchtitan", "deepspeed", "maxtext", "llm-foundry"])
def test_sharing_out_more_takes_no_more_memory(framework: str) -> None:
    cluster = catalogue.cluster("h100_sxm")
    replayed = {"recompute_granularity": "full", "recompute_method": "uniform"}
    found = [
        project(workload("llama3_8b", 64, framework, data_parallel_sharding=degree, **replayed), cluster)
        for degree in DEGREES
    ]
    held_ = [each.memory.allocated for each in found]
    assert all(more <= less for less, more in pairwise(held_))
    for each in found:
        whole = plan(each.resolved, cluster.gpu).ranks[0]
        assert whole.components["weights"] >= 0.9 * 2 * each.resolved.workload.model.num_layers
        sharing, asked = each.resolved.execution.data_parallel, each.resolved.workload.recipe.data_parallel_sharding
        # FSDP with SHARD_GRAD_OP divides weights as well and leaves them gathered until their backward
        assert sharing.degree == asked or (asked == "optim_grads" and getattr(sharing, "keeps_gathered", False))


def test_another_degree_keeps_the_parameters() -> None:
    named = KINDS["fsdp2"](reduce_bytes=3.0, overlap=0.5)
    assert of_degree(named, "optim_grads_params") is named
    lesser = of_degree(named, "optim")
    assert (lesser.name, lesser.reduce_bytes, lesser.overlap) == ("distributed_optimizer", 3.0, 0.5)  # type: ignore[attr-defined]
    assert of_degree(named, None).name == "ddp"


@pytest.mark.parametrize(("precision", "divides"), [("bf16", True), ("fp16", False)])
def test_deepspeeds_bf16_optimizer_shares_its_states_out_at_stage_0_too(precision: str, divides: bool) -> None:
    """Its fp16 optimizer without ZeRO has all of them on every rank."""
    cluster = catalogue.default_cluster("a100_sxm_80gb")

    def moments(sharding: str, gpus: int) -> float:
        asked = job(gpus, model="llama2_7b", data_parallel_sharding=sharding, precision=precision)
        run = settle_checked(replace(asked, framework="megatron-deepspeed"), cluster, published=True)
        return plan(run, cluster.gpu).ranks[0].components["moments"]

    assert moments("optim", 64) == pytest.approx(moments("optim", 8) / 8)
    assert moments("no_shard", 64) == (moments("optim", 64) if divides else moments("no_shard", 8))
