"""``settle``: a workload as a cluster would run it, nothing left open, every assumption named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from projector.collectives.placement import ranks_per_node
from projector.errors import InputError, Unsupported
from projector.frameworks import Resolved, resolve
from projector.hardware import efficiency, host_link
from projector.hardware.types import Cluster, Gpu
from projector.layers.mask import mask_bytes, meant
from projector.layers.optimizers import MUON
from projector.memo import evolve, with_its_own
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
    """``workload`` as ``cluster`` would run it, nothing left open. Raises as :func:`project`, but for kernels."""
    arguments.check(workload, cluster)
    return settled(workload, cluster, published=published)


def settled(workload: Workload, cluster: Cluster, *, published: bool) -> Resolved:
    """:func:`settle` of arguments that were checked."""
    if workload.model.unsupported:
        raise Unsupported(", ".join(workload.model.unsupported))
    workload = _without_images(workload)
    gpu = cluster.gpu
    resolved = resolve(workload, gpu.vendor, gpu.arch, cluster.host, published, checked=True)
    resolved = _placed(_recomputed(resolved, gpu, cluster.host, published), cluster)
    if workload.recipe.create_attention_mask_in_dataloader is None and mask_bytes(resolved) >= _WORTH_A_WORD:
        resolved = _masked(resolved)
    beyond = [*capable.problems(workload.recipe, gpu), *capable.host_problems(resolved, cluster)]
    if beyond and not published:
        raise InputError(beyond)
    if beyond:
        resolved = evolve(resolved, assumed=(*resolved.assumed, *map(capable.doubt, beyond)))
    unknown = (each.expected for each in broken(_TWO_STACKS, resolved.workload))
    conflict = scheduling.conflict(resolved.workload.recipe) or next(unknown, "")
    if conflict:
        raise Unsupported(conflict)
    return resolved


def _masked(resolved: Resolved) -> Resolved:
    """Without a mask that nobody can have meant; either way it is said."""
    name, size = "create_attention_mask_in_dataloader", float(mask_bytes(resolved)) / 2.0**30
    if meant(resolved):
        words = f"{name}=True ({size:.3g} GiB a micro-batch, the default of this framework)"
        return evolve(resolved, assumed=(*resolved.assumed, words))
    words = (
        f"{name}=False (the default of this framework is a mask of {size:,.0f} GiB, more than the inputs of all layers)"
    )
    workload = evolve(resolved.workload, recipe=evolve(resolved.workload.recipe, **{name: False}))
    return evolve(resolved, workload=workload, assumed=(*resolved.assumed, words))


@with_its_own(0)
def _unmeasured(model: Model) -> tuple[str, ...]:
    """What stands for kernels that no table here holds, one entry for each kind of them."""
    mixers = dict.fromkeys(
        kind.mixer.name for kind in model.layer_kinds if isinstance(kind.mixer, Recurrent | BlockAttention)
    )
    return tuple(f"kernels of {name} layers (priced by bytes, FLOP and serial steps: one measured)" for name in mixers)


def _borrowed(gpu: Gpu) -> tuple[str, ...]:
    """Whose kernels stand for those of an architecture that no file describes."""
    near = efficiency.stands_in(gpu)
    return (f"kernels of {near} (nothing is known of {gpu.arch})",) if near else ()


def _placed(resolved: Resolved, cluster: Cluster) -> Resolved:
    """With what the lowering asks of the cluster: its nodes, its pods, the way from the host's memory; and with what
    stands for kernels that were not measured."""
    recipe = resolved.workload.recipe
    if recipe.optimizer_cpu_offload or recipe.offload_optimizer_states or recipe.cpu_offloading_num_layers:
        host_link.separate(cluster)
    assumed = (*resolved.assumed, *_unmeasured(resolved.workload.model), *_borrowed(cluster.gpu))
    return evolve(resolved, assumed=assumed, **_around(cluster, resolved.workload.gpus))


def _around(cluster: Cluster, gpus: int) -> dict[str, Any]:
    ranks = min(gpus, cluster.gpus_per_host)
    return {
        "node_ranks": ranks_per_node(gpus, cluster),
        "pod_ranks": None if cluster.outer is None else cluster.inter.size,
        "host_bandwidth": host_link.bandwidth(cluster),
        "host_copies": host_link.copies(cluster, ranks),
        "host_optimizer": host_link.optimizer_traffic(cluster, ranks),
    }


def _without_images(workload: Workload) -> Workload:
    """``workload`` without the vision tower that no sample has an image for."""
    if workload.model.vision is None or workload.recipe.images:
        return workload
    recipe = replace(workload.recipe, freeze_vision_model=None, recompute_vision=None)
    return replace(workload, model=replace(workload.model, vision=None), recipe=recipe)


def _apart(m: Model, r: Recipe) -> str:
    """Settings that reach into layers or stages in a way that is known for one stack alone."""
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
#: Why no training code here is known to run a stack of layers before the model's own: what is ``expected`` is the reason.
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
    Rule("model", lambda m, r, w: (m.encoder or m.vision) and _apart(m, r) and f"{_stack(m)} beside {_apart(m, r)}", "{0}"),
)
# fmt: on


def _stack(m: Model) -> str:
    return "an encoder" if m.encoder else "a vision tower"


_RECOMPUTE = "recompute_granularity"


def _recomputed(resolved: Resolved, gpu: Gpu, host: str, published: bool) -> Resolved:
    """``resolved`` with what is taken for granted of a run that exists (``published``): recompute that nobody stated is none
    where the run may fit in memory, else enough, because it did fit. What is over by less than the memory model's own
    tolerance says nothing, and is named. A planned run does what its framework does by default, which is no assumption."""
    if not published or f"{_RECOMPUTE}=none" not in resolved.assumed:
        return resolved
    without = plan(resolved, gpu)
    if without.fits:
        return resolved
    if without.status == "too-close":
        over, near = (100 * share for share in (without.required / without.usable - 1, without.tolerance))
        close = f"{_RECOMPUTE}=none ({over:.0f} % too much, within the {near:.0f} % of the memory model)"
        return replace(resolved, assumed=(*_others(resolved), close))
    recipe = replace(resolved.workload.recipe, recompute_granularity="full", recompute_method="uniform")
    if scheduling.conflict(recipe):
        return resolved

    found = resolve(replace(resolved.workload, recipe=recipe), gpu.vendor, gpu.arch, host, published=True)
    full = replace(found, assumed=(*_others(resolved), f"{_RECOMPUTE}=full (does not fit without)"))
    return full if plan(full, gpu).fits else resolved


def _others(resolved: Resolved) -> tuple[str, ...]:
    return tuple(item for item in resolved.assumed if not item.startswith(_RECOMPUTE))
