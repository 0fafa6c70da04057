"""Settles a workload: as a cluster would run it, nothing left open, every assumption named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from projector.collectives.placement import ranks_per_node
from projector.errors import InputError, Unsupported
from projector.frameworks import Resolved, resolve
from projector.hardware import efficiency, host_link
from projector.hardware.types import Cluster, Gpu
from projector.layers.mask import mask_bytes, plausible
from projector.layers.optimizers import MUON
from projector.memo import cached_on, evolve
from projector.memory.plan import plan
from projector.settle import arguments, capable, scheduling
from projector.workload.layer_kinds import Recurrent
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.rule import Rule
from projector.workload.rule import problems as broken
from projector.workload.sparse import BlockAttention
from projector.workload.workload import Workload

_WORTH_A_WORD = 2.0**30  # bytes of a mask: 32,768 tokens squared


def settle(workload: Workload, cluster: Cluster, *, published: bool = False) -> Resolved:
    """Returns ``workload`` as ``cluster`` would run it, nothing open. Raises as :func:`project`, but for kernels."""
    arguments.check(workload, cluster)
    return settle_checked(workload, cluster, published=published)


def settle_checked(workload: Workload, cluster: Cluster, *, published: bool) -> Resolved:
    """Returns the same as :func:`settle`, for arguments that were checked."""
    if workload.model.unsupported:
        raise Unsupported(", ".join(workload.model.unsupported))
    workload = _without_images(workload)
    gpu = cluster.gpu
    resolved = resolve(workload, gpu.vendor, gpu.arch, cluster.host, published, checked=True)
    resolved = _on_cluster(_with_recompute_assumed(resolved, gpu, cluster.host, published), cluster)
    if workload.recipe.create_attention_mask_in_dataloader is None and mask_bytes(resolved) >= _WORTH_A_WORD:
        resolved = _with_mask_decided(resolved)
    beyond = [*capable.problems(workload.recipe, gpu), *capable.host_problems(resolved, cluster)]
    if beyond and not published:
        raise InputError(beyond)
    if beyond:
        resolved = evolve(resolved, assumed=(*resolved.assumed, *map(capable.doubt, beyond)))
    refusals = (problem.expected for problem in broken(_TWO_STACKS, resolved.workload))
    conflict = scheduling.conflict(resolved.workload.recipe) or next(refusals, "")
    if conflict:
        raise Unsupported(conflict)
    return resolved


def _with_mask_decided(resolved: Resolved) -> Resolved:
    """Drops an attention mask so large that nobody can have meant it; names the mask or its absence as assumed."""
    name, size = "create_attention_mask_in_dataloader", float(mask_bytes(resolved)) / 2.0**30
    if plausible(resolved):
        words = f"{name}=True ({size:.3g} GiB a micro-batch, the default of this framework)"
        return evolve(resolved, assumed=(*resolved.assumed, words))
    words = (
        f"{name}=False (the default of this framework is a mask of {size:,.0f} GiB, more than the inputs of all layers)"
    )
    workload = evolve(resolved.workload, recipe=evolve(resolved.workload.recipe, **{name: False}))
    return evolve(resolved, workload=workload, assumed=(*resolved.assumed, words))


@cached_on(0)
def _unmeasured_mixers(model: Model) -> tuple[str, ...]:
    """Returns an assumption for each kind of layer whose kernels no table here holds."""
    mixers = dict.fromkeys(
        kind.mixer.name for kind in model.layer_kinds if isinstance(kind.mixer, Recurrent | BlockAttention)
    )
    return tuple(f"kernels of {name} layers (priced by bytes, FLOP and serial steps: one measured)" for name in mixers)


def _stand_in_kernels(gpu: Gpu) -> tuple[str, ...]:
    """Returns the assumption that another architecture's kernels stand for those of one that no file describes."""
    near = efficiency.stands_in(gpu)
    return (f"kernels of {near} (nothing is known of {gpu.arch})",) if near else ()


def _on_cluster(resolved: Resolved, cluster: Cluster) -> Resolved:
    """Adds what the lowering asks of the cluster (nodes, pods, the link to host memory) and names the kernels that
    stand for unmeasured ones."""
    recipe = resolved.workload.recipe
    if recipe.optimizer_cpu_offload or recipe.offload_optimizer_states or recipe.cpu_offloading_num_layers:
        host_link.separate(cluster)
    assumed = (*resolved.assumed, *_unmeasured_mixers(resolved.workload.model), *_stand_in_kernels(cluster.gpu))
    return evolve(resolved, assumed=assumed, **_cluster_fields(cluster, resolved.workload.gpus))


def _cluster_fields(cluster: Cluster, gpus: int) -> dict[str, Any]:
    ranks = min(gpus, cluster.gpus_per_host)
    return {
        "node_ranks": ranks_per_node(gpus, cluster),
        "pod_ranks": None if cluster.outer is None else cluster.inter.size,
        "host_bandwidth": host_link.bandwidth(cluster),
        "host_copies": host_link.copies(cluster, ranks),
        "host_optimizer": host_link.optimizer_traffic(cluster, ranks),
    }


def _without_images(workload: Workload) -> Workload:
    """Returns ``workload`` without a vision tower where no sample has an image."""
    if workload.model.vision is None or workload.recipe.images:
        return workload
    recipe = replace(workload.recipe, freeze_vision_model=None, recompute_vision=None)
    return replace(workload, model=replace(workload.model, vision=None), recipe=recipe)


def _clashes(m: Model, r: Recipe) -> str:
    """Returns the settings whose reach into layers or stages is known for a single stack only, joined."""
    used = [name for name in _ONE_STACK if getattr(r, name)]
    used += [name for name in _ONE_KIND if getattr(m, name) and not (m.vision and name in ("sandwich_norm", "mla"))]
    if (r.recompute_num_layers or 1) > 1 and r.recompute_method != "block":
        used.append("recompute_num_layers")
    return ", ".join(used) or ("" if m.uniform else "layers that are not attention and an MLP")


_ONE_STACK = (
    *("lora", "rlhf_type", "document_lengths", "cpu_offloading_num_layers", "offload_modules", "recompute_layer_ids"),
    *("fp8_dot_product_attention", "first_last_layers_bf16"),
)
_ONE_KIND = (
    *("mtp_num_layers", "hyper_connections", "attn_res_block_size", "parallel_residual", "sandwich_norm", "mla"),
    *(
        "altup_num_inputs",
        "laurel_rank",
        "hidden_size_per_layer_input",
        "num_kv_shared_layers",
        "compressed",
        "indexer",
    ),
)
# fmt: off
#: Models with a second stack of layers that no training code here is known to run: ``expected`` holds the reason.
_TWO_STACKS = (
    # NVIDIA/Megatron-LM@00caa53a pretrain_t5.py raises "Pipeline parallelism is not supported for T5."
    Rule("recipe.pp", lambda m, r, w: r.pp > 1 and (m.encoder or m.position_embedding_type == "relative"),
         "pipeline parallelism of an encoder and a decoder: Megatron-LM has none for T5"),
    Rule("recipe.cp", lambda m, r, w: (m.encoder or m.vision) and r.token_ranks > 1 and _stack(m),
         "a sequence split over ranks (context parallelism, SUMMA) beside {0}"),
    Rule("recipe.precision", lambda m, r, w: m.vision and r.precision not in ("bf16", "fp16", "fp32"),
         "a vision tower in {r.precision}: its tokens are no whole blocks of that"),
    Rule("recipe.optimizer", lambda m, r, w: m.vision and (r.freeze_language_model or r.freeze_vision_model)
         and r.optimizer in MUON,
         "{r.optimizer} of a model that is frozen in part"),
    Rule("model", lambda m, r, w: (m.encoder or m.vision) and (it := _clashes(m, r)) and f"{_stack(m)} beside {it}", "{0}"),
)
# fmt: on


def _stack(m: Model) -> str:
    return "an encoder" if m.encoder else "a vision tower"


_RECOMPUTE = "recompute_granularity"


def _with_recompute_assumed(resolved: Resolved, gpu: Gpu, host: str, published: bool) -> Resolved:
    """Returns ``resolved`` with the recompute of a ``published`` run that states none: none where the run may fit in
    memory, else full, because it did fit. An excess within the memory model's own tolerance decides nothing and is
    named. A planned run does what its framework does by default, which is no assumption."""
    if not published or f"{_RECOMPUTE}=none" not in resolved.assumed:
        return resolved
    without = plan(resolved, gpu)
    if without.fits:
        return resolved
    if without.status == "too-close":
        excess, tolerance = (100 * share for share in (without.required / without.usable - 1, without.tolerance))
        close = f"{_RECOMPUTE}=none ({excess:.0f} % too much, within the {tolerance:.0f} % of the memory model)"
        return replace(resolved, assumed=(*_other_assumptions(resolved), close))
    recipe = replace(resolved.workload.recipe, recompute_granularity="full", recompute_method="uniform")
    if scheduling.conflict(recipe):
        return resolved

    resolved_full = resolve(replace(resolved.workload, recipe=recipe), gpu.vendor, gpu.arch, host, published=True)
    full = replace(resolved_full, assumed=(*_other_assumptions(resolved), f"{_RECOMPUTE}=full (does not fit without)"))
    return full if plan(full, gpu).fits else resolved


def _other_assumptions(resolved: Resolved) -> tuple[str, ...]:
    return tuple(item for item in resolved.assumed if not item.startswith(_RECOMPUTE))
