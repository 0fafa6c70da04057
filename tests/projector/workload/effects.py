"""What a recipe field changes, found by changing it: layers, schedule, the rest of the step, memory."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from projector import project
from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.layers import lower
from projector.pipeline import choose
from projector.workload import zoo
from projector.workload.fields import Field
from projector.workload.layout import chunks
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

__all__ = ["JOBS", "effects", "values"]

SIZES = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096}
_NUMBERS = {int: (0, 1, 2, 4), float: (0.25, 0.5, 1.0, 1.25), bool: (False, True), str: ()}
_WORDS = {
    "pipeline_model_parallel_layout": ("Et*20|t*10|t|tL", "Et*8|t*8|t*8|t*8L", "Ett|t|t|tmL"),
    "fast_domain": ("tp2.dp2", "dp4", "dp8"),
    "document_lengths": (1024, 512),
    "summa_panels": (8, 16),
    "lora.targets": ("linear_qkv", "linear_fc1"),
}


def _job(model: str, gpus: int, framework: str = "megatron-lm", **recipe: object) -> Workload:
    return Workload(model=zoo.load(model), recipe=Recipe(**{**SIZES, **recipe}), gpus=gpus, framework=framework)  # type: ignore[arg-type]


_MOE = {"pp": 4, "ep": 8, "moe_token_dispatcher_type": "alltoall"}
#: Runs that between them have every mechanism, each with the cluster it runs on.
JOBS: tuple[tuple[Workload, str], ...] = (
    (_job("llama3_8b", 16, tp=2, pp=4, sequence_parallel=True, data_parallel_sharding="optim"), "h100_sxm"),
    (_job("llama3_8b", 32, pp=4, vpp=2, precision="fp8", recompute_granularity="full", recompute_method="block",
          recompute_num_layers=1), "mi355x"),
    (_job("llama3_8b", 32, cp=4, pp=2, recompute_granularity="selective", recompute_modules=("core_attn", "mlp")), "b200"),
    (_job("mixtral_8x7b", 64, **_MOE, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1),
     "h100_sxm"),
    (_job("mixtral_8x7b", 64, **{**_MOE, "moe_token_dispatcher_type": "flex"}, tp=2, use_turbo_attention=True), "mi300x"),
    (_job("qwen3_30b_a3b", 32, **{**_MOE, "vpp": 2}, cp=2, moe_flex_dispatcher_backend="deepep"), "mi355x"),
    (_job("deepseek_v3", 256, **{**_MOE, "pp": 8, "global_batch_size": 512}, pipeline_schedule="dualpipe-v", vpp=2,
          allow_uneven_pipeline_split=True), "h100_sxm"),
    (_job("llama3_8b", 32, "torchtitan", pp=4, tp=2, data_parallel_sharding="optim_grads_params"), "h100_sxm"),
    (_job("mixtral_8x7b", 32, "torchtitan", ep=8, torch_compile=True, precision="fp8"), "mi355x"),
    (_job("mixtral_8x7b", 32, "maxtext", ep=8, data_parallel_sharding="optim_grads_params",
          moe_expert_capacity_factor=1.25, moe_pad_expert_input_to_capacity=True), "h100_sxm"),
    (_job("llama3_8b", 16, pp=2, optimizer="muon", tp=2, use_precision_aware_optimizer=True), "h100_sxm"),
    (_job("llama3_8b", 16, pp=2, tp=2, lora=LoRA(dim=8)), "h100_sxm"),
    (_job("llama3_8b", 32, pp=4, vpp=2, optimizer_cpu_offload=True, pipeline_schedule="zbv"), "gb200"),
    (_job("gpt3_175b", 64, tp=8, pp=4, cuda_graph_scope=("full",)), "h100_sxm"),
    (_job("gpt3_175b", 64, "analytic", tp=4, tp2=2, pp=4, tensor_parallel_algorithm="summa"), "h100_sxm"),
)  # fmt: skip


def values(field: Field) -> Iterator[object]:
    """What the field may hold, some of it: nothing stated, its words, numbers around the usual ones."""
    if field.path[0] in ("lora",):
        yield from ((4, 16) if field.key == "lora.dim" else (("linear_qkv",), ("linear_qkv", "linear_fc1")))
        return
    words = field.choices or _WORDS.get(field.key, _NUMBERS[field.kind])
    large = {"seq_length": (2048, 8192), "global_batch_size": (128, 256), "make_vocab_size_divisible_by": (64, 1024),
             "moe_deepep_num_sms": (8, 24, 48), "ddp_bucket_size": (10**7, 4 * 10**8),
             "num_layers": (1,)}  # fmt: skip
    for word in (*words, *large.get(field.key, ())):
        yield (word,) if field.many else word
    if field.many:
        yield tuple(words)
        yield ()
    if field.key not in SIZES:
        yield Recipe.__dataclass_fields__[field.path[0]].default


def changed(job: Workload, field: Field, value: object) -> Workload | None:
    if len(field.path) == 1:
        return replace(job, recipe=replace(job.recipe, **{field.key: value}))  # type: ignore[arg-type]
    if job.recipe.lora is None:
        return None
    return replace(job, recipe=replace(job.recipe, lora=replace(job.recipe.lora, **{field.path[1]: value})))  # type: ignore[arg-type]


@cache
def _seen(job: Workload, cluster_name: str) -> dict[str, object]:
    """A run as four values; equal where nothing changed."""
    whole = project(job, catalogue.cluster(cluster_name))
    resolved = whole.resolved
    recipe, model = resolved.workload.recipe, resolved.workload.model
    layers = [
        lower.layer(kind, resolved, quantised)
        for kind in dict.fromkeys(model.layer_kinds)
        for quantised in (True, False)
    ]
    ends = [lower.embedding(resolved), lower.head(resolved), *([lower.mtp(resolved)] if model.mtp_num_layers else [])]
    name = choose(recipe.pipeline_schedule or "1f1b", recipe.pp, recipe.vpp)
    return {
        "layer": tuple((block, block.saves, block.kept, block.dropped, block.offloadable) for block in (*layers, *ends)),
        "schedule": (name, chunks(model, recipe), recipe.pp, recipe.vpp, whole.timeline.compiled.schedule),
        "step": (whole.step_seconds, dict(whole.breakdown)), "memory": whole.memory,
    }  # fmt: skip


@cache
def effects(job: Workload, cluster_name: str, field: Field) -> tuple[tuple[object, frozenset[str]], ...]:
    """(value, what it changes of ``job``) for every value with which the job still runs. ``step`` is told apart only where
    layers and schedule stay."""
    before = _seen(job, cluster_name)
    made = []
    for value in values(field):
        other = changed(job, field, value)
        if other is None or other == job:
            continue
        try:
            after = _seen(other, cluster_name)
        except (InputError, Unsupported):
            continue
        found = {name for name in before if before[name] != after[name]}
        if found & {"layer", "schedule"}:
            found.discard("step")
        made.append((value, frozenset(found)))
    return tuple(made)
