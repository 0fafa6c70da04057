"""The options of what layers see and of what is done once a step, under the rules of a framework; groups of options
that are searched only on request, because they change the numbers of a training or need the memory of its hosts; and
ways to lay the layers of a model on pipeline stages, as a framework can be told them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from projector.errors import InputError, Problem
from projector.frameworks import load
from projector.hardware.architectures import precisions
from projector.hardware.types import Cluster, Gpu
from projector.settle import launch
from projector.workload.workload import Workload

Option = Mapping[str, Any]
Axis = tuple[Option, ...]

_MASKED = 32_768  # tokens of a sample whose mask from the data loader has 1 GiB
#: Precisions of fewer than 16 bits and who runs them: nvfp4 is Transformer Engine's, mxfp4 Primus-Turbo's.
RUN_BY = {
    "fp8": ("megatron", "primus", "torchtitan"),
    "mxfp8": ("megatron", "primus", "torchtitan"),
    "mxfp4": ("primus",),
    "nvfp4": ("megatron",),
}


def narrow(framework: str, gpu: Gpu) -> tuple[str, ...]:
    """Returns the precisions of fewer than 16 bits that ``gpu`` multiplies in and ``framework`` runs."""
    kind = launch.family(framework)
    return tuple(name for name, by in RUN_BY.items() if kind in by and name in precisions(gpu))


def layers(base: Workload) -> list[Axis]:
    """Returns the axes of what layers see that are searched without a request."""
    kind, moe = launch.family(base.framework), base.model.moe is not None
    axes: list[Axis] = [
        _recompute(base),
        ({"sequence_parallel": True}, {"sequence_parallel": False}),
        ({"precision": base.recipe.precision},),
    ]
    usual = load(base.framework).defaults
    axes.append(_sharding(base, kind, str(usual["data_parallel_sharding"])))
    if usual.get("defer_fsdp_grad_sync"):
        axes.append(({"defer_fsdp_grad_sync": True}, {"defer_fsdp_grad_sync": False}))
    if kind != "torchtitan":
        axes.append(({"tp_comm_overlap": False}, {"tp_comm_overlap": True}))
    if usual["create_attention_mask_in_dataloader"] and base.recipe.seq_length >= _MASKED:
        axes.append(({"create_attention_mask_in_dataloader": False},))  # leaving the mask out costs nothing
    if moe and kind != "torchtitan":
        deepep = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
        axes.append(({"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": None}, deepep))
        axes.append(({"overlap_moe_expert_parallel_comm": False}, {"overlap_moe_expert_parallel_comm": True}))
    return axes


def _sharding(base: Workload, kind: str, usual: object) -> Axis:
    """Returns what data-parallel ranks may shard: everything where the framework is made for that; else the optimizer's
    states or nothing, and where it can gradients and weights, too (not Megatron-LM with experts)."""
    every, megatron = "optim_grads_params", kind in ("megatron", "primus")
    more = () if megatron and base.model.moe else (every,) if megatron else ("optim_grads", every)
    levels = (every,) if usual == every else ("optim", "no_shard", *more)
    return tuple({"data_parallel_sharding": level} for level in levels)


def per_step(base: Workload) -> list[Axis]:
    """Returns the axes of what matters once a step; none where the framework has no switch (torchtitan: FSDP2)."""
    if launch.family(base.framework) == "torchtitan":
        return []
    pairs = ((True, True), (True, False), (False, False))
    return [tuple({"overlap_grad_reduce": reduce, "overlap_param_gather": gather} for reduce, gather in pairs)]


def grouped(
    base: Workload, cluster: Cluster, more: Mapping[str, tuple[Any, ...]]
) -> tuple[dict[str, tuple[Any, ...]], list[Axis]]:
    """Returns ``more`` without the groups that it names, and the axes of these groups. Raises :class:`InputError` for a
    group of which the framework or the device has nothing."""
    named = [name for name, values in more.items() if name in GROUPS and not values]
    axes = [GROUPS[name](base, cluster) for name in named]
    empty = [name for name, axis in zip(named, axes, strict=True) if len(axis) < 2]
    if empty:
        expected = f"something of it on {cluster.gpu.name} under {base.framework}"
        raise InputError([Problem("--vary", name, "nothing to choose", expected) for name in empty])
    return {name: values for name, values in more.items() if name not in named}, axes


def _precision(base: Workload, cluster: Cluster) -> Axis:
    """Returns 16 bits and the narrower precisions that the device multiplies in."""
    wide = base.recipe.precision if base.recipe.precision in ("bf16", "fp16") else "bf16"
    names = (wide, *narrow(base.framework, cluster.gpu))
    return tuple({"precision": name, "fp8_recipe": None} for name in names)


def _offload(base: Workload, _: Cluster) -> Axis:
    """Returns the options: no offload; the optimizer on the host; activations of some modules or layers on the host."""
    names = ("optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer")
    nothing = {**dict.fromkeys(names), "cpu_offloading_num_layers": None, "offload_modules": None}
    nothing["use_precision_aware_optimizer"] = base.recipe.use_precision_aware_optimizer
    if launch.family(base.framework) == "torchtitan":
        return ({"optimizer_cpu_offload": None}, {"optimizer_cpu_offload": True})
    layers = sorted({share * base.model.num_layers // 4 for share in (1, 2, 3)} - {0})
    modules = ("core_attn", "attn_proj", *(("expert_fc1", "moe_act") if base.model.moe is not None else ()))
    return (
        nothing,
        {**nothing, **dict.fromkeys(names, True)},
        {**nothing, "offload_modules": modules},
        *({**nothing, "cpu_offloading_num_layers": number} for number in layers),
    )


#: The axes that words of ``--vary`` add.
GROUPS: Mapping[str, Callable[[Workload, Cluster], Axis]] = MappingProxyType(
    {"precision": _precision, "offload": _offload}
)


def _recompute(base: Workload) -> Axis:
    """Returns the options of recompute: none; modules that Megatron-LM names; first layers of each stage; every layer."""
    options: list[Option] = [_recompute_option("none")]
    names = ["layernorm", "moe_act"] if base.model.moe is not None else ["layernorm", "mlp"]
    if base.model.mla is not None:
        names = ["mla_up_proj", *names]
    if launch.family(base.framework) == "torchtitan":
        options.append(_recompute_option("selective", modules=("op_sac",)))
    else:
        options += [
            _recompute_option("selective", modules=("core_attn",)),
            _recompute_option("selective", modules=tuple(names)),
        ]
        layers = [n for n in (1, 2, 4, 8, 16) if n < base.model.num_layers]
        options += [_recompute_option("full", method="block", layers=n) for n in layers]
    return (*options, _recompute_option("full", method="uniform", layers=1))


def _recompute_option(
    granularity: str, method: str | None = None, layers: int | None = None, modules: tuple[str, ...] = ()
) -> Option:
    return {
        "recompute_granularity": granularity,
        "recompute_method": method,
        "recompute_num_layers": layers,
        "recompute_modules": modules or None,
    }


def layouts(base: Workload, pp: int, vpp: int, *, v_shaped: bool = False) -> Iterator[dict[str, Any]]:
    """Yields the fields of each layout of the layers on ``pp * vpp`` stages: evenly; embedding and loss counted as
    layers; a lighter first and last stage; and stages that differ by one layer, with embedding, loss and each layer of
    multi-token prediction counted as one, where the layers divide neither evenly nor counted so. A framework with a
    rule of its own for what does not divide (torchtitan) takes no other."""
    layers, stages = base.model.num_layers, pp * vpp
    if launch.family(base.framework) == "torchtitan":
        yield {}
        return
    even = layers % stages == 0
    if even:
        yield {}
    if (layers + 2) % stages == 0 and layers + 2 > stages:
        yield {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    elif (layers + 1) % stages == 0 and layers + 1 > stages:
        yield {"account_for_loss_in_pipeline_split": True}
    elif not v_shaped:
        layout = written(layers, base.model.mtp_num_layers, stages)
        if layout is not None:
            yield {"pipeline_model_parallel_layout": layout}
    if not v_shaped:
        yield from _ends(layers, pp, vpp)


def _ends(layers: int, pp: int, vpp: int) -> Iterator[dict[str, Any]]:
    """Yields layouts whose last rank, or first and last, have fewer layers than the others: by one layer a chunk, or two."""
    first, last = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
    least = layers // (pp * vpp)
    for each in {vpp * least, vpp * (least + 1)} - {0}:
        on_last = layers - each * (pp - 1)
        if 0 < on_last < each <= on_last + 2 * vpp and on_last % vpp == 0:
            yield {last: on_last}
        rest = (layers - each * (pp - 2)) // vpp if pp > 2 else 0  # layers of each chunk of both ends together
        ends = {first: vpp * (rest - rest // 2), last: vpp * (rest // 2)}
        fits = layers == each * (pp - 2) + sum(ends.values())
        if fits and 0 < ends[last] <= ends[first] < each <= ends[last] + 2 * vpp:
            yield ends


def written(layers: int, mtp: int, stages: int) -> str | None:
    """Returns Megatron-LM's layout string of stages that differ by one layer at most, the last ones the emptier:
    embedding, loss and each MTP layer stand for a layer. None where a stage would hold nothing."""
    each, more = divmod(layers + mtp + 2, stages)
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1 + mtp
    if counts[-1] < 0:  # the layers that do not fit there move to the stages before
        lacking, counts[-1] = -counts[-1], 0
        for stage in range(lacking):
            counts[-2 - stage % max(1, stages - 2)] -= 1
    if min(counts[1:-1], default=1) < 1 or counts[0] < 0 or stages < 2:
        return None
    return spelled(counts, mtp)


def spelled(counts: Sequence[int], mtp: int) -> str:
    """Returns Megatron-LM's layout string of stages with these ``counts`` of layers, and ``mtp`` layers of multi-token
    prediction on the last."""
    middle = ((f"{_repeated(count)}|", len(list(same))) for count, same in groupby(counts[1:-1]))
    stages_between = "".join(stage if times == 1 else f"({stage})*{times}" for stage, times in middle)
    return f"E{_repeated(counts[0])}|{stages_between}{_repeated(counts[-1])}{'m' * mtp}L"


def _repeated(layers: int) -> str:
    return "t" * layers if layers < 4 else f"t*{layers}"
