"""Low-rank adapters beside frozen linears (LoRA, arXiv:2106.09685): two thin products, and passes over input and output.

Layout of Megatron-Bridge peft/{lora,utils}.py@067f987df: beside a column linear the first factor sees the whole input
and the second one the local outputs; beside a row linear the first factor's partial result is summed over the
tensor-parallel group. The input is dropped out, the output scaled, then added. Under sequence parallelism a column
linear returns the input that it gathered, unless ``tp_comm_overlap`` gathers it inside the product: then the adapter
gathers it again, and scatters its gradient. TransformerEngine's operation fuser leaves only the products
(peft/lora_layers.py ``TEFusedLoRALinear``), where tensors are not parallel.

A linear of routed experts has one adapter for all experts of its rank (``ParallelLinearAdapter``: plain products on all
of its rows), or one for each (``GroupedExpertLinearAdapter``: grouped products), cut over expert-tensor-parallel ranks
as the linear is, with its own collectives. Experts whose weights are parameters of one module
(``moe_use_legacy_grouped_gemm``) have no linear of that name, so nothing is adapted there (NVIDIA/Megatron-LM
core_v0.12.0 megatron/core/transformer/moe/experts.py, ``GroupedMLP``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from projector.layers.local import LayerView
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Collective, Gemm, GroupedGemm, Operator, Stream, added
from projector.operators.weights import Weight
from projector.size import most, real

Product = Callable[[str, int, int, int, str], Gemm | GroupedGemm]


def adapter(
    target: str, name: str, parallel: str, rows: int, width: int, inputs: int, reads: str, view: LayerView
) -> Module:
    """Returns the adapter of linear ``name`` [width, inputs] on ``rows`` of storage ``reads``; empty unless on
    ``target``."""
    spec = view.recipe.lora
    if spec is None or target not in spec.targets:
        return Module(f"{name}.lora")
    rank, row = spec.dim, parallel == "row"
    reduce: tuple[Operator, ...] = ()
    if row and view.tp > 1:
        reduce = (Collective(f"{name}.lora_ar", "all_reduce", "tp", view.act * rows * rank),)
    gathers = not row and view.sp and bool(view.recipe.tp_comm_overlap)
    nbytes = view.act * rows * inputs
    part = _factors(
        name,
        _plain_product(view),
        (rows, view.shard_tokens if row else rows),
        (inputs, rank, width),
        view.shard_tokens if gathers else rows,
        view,
        before=_gathered(f"{name}.lora_ag", "all_gather", nbytes, gathers),
        between=reduce,
        after=_gathered(f"{name}.lora_rs", "reduce_scatter", nbytes, gathers),
    )
    return replace(
        part,
        weights=_weights(name, rank, width, inputs, parallel, view.tp),
        saves=_saves(name, view.shard_tokens if parallel == "column" else rows, inputs, rank, reads, view),
    )


def one_module(view: LayerView) -> bool:
    """Returns whether experts' weights are parameters of one module, multiplied by the Function of tgale96/grouped_gemm."""
    return view.recipe.moe_grouped_gemm == "legacy" and (view.recipe.sync_free_stage or 0) < 2


def expert_adapter(name: str, width: int, inputs: int, reads: str, r: Routed, view: LayerView) -> Module:
    """Returns the adapters of ``name`` of all local experts, ``experts.fc1`` or ``experts.fc2``; empty without any."""
    spec, row = view.recipe.lora, name.endswith("fc2")
    if spec is None or f"linear_{name.removeprefix('experts.')}" not in spec.targets or one_module(view):
        return Module(f"{name}.lora")
    backend = view.execution.kernels.grouped_by(view.recipe)
    per_expert = (
        backend == "loop" or not spec.share_expert_adapters
    )  # a module for every expert has an adapter of its own
    rank, etp = spec.dim, view.recipe.etp
    if spec.normalize_moe_lora and view.model.moe is not None:
        rank = most(1, spec.dim // view.model.moe.moe_router_topk)
    thin, out = view.act * r.rows * rank, view.act * r.rows * width
    gathered = _gathered(f"{name}.lora_ag", "all_gather", thin, etp > 1 and not row)
    part = _factors(
        name,
        _grouped_product(backend, r, view) if per_expert else _plain_product(view),
        (r.rows, r.rows),
        (inputs, rank, -(-width // etp) if row else width),
        r.rows,
        view,
        between=gathered,
        beyond=_gathered(f"{name}.lora_ag", "all_gather", out, etp > 1 and row),
    )
    weights = _weights(name, rank, width, inputs, "row" if row else "column", etp)
    return replace(
        part,
        weights=tuple(replace(weight, count=r.experts if per_expert else 1, expert=True) for weight in weights),
        saves=_saves(name, r.held, inputs, rank, reads, view),
    )


def _plain_product(view: LayerView) -> Product:
    def product(name: str, rows: int, n: int, k: int, layout: str) -> Gemm:
        m, n, k = (n, k, rows) if layout == "NT" else (rows, n, k)
        return Gemm(name, m, n, k, dtype=view.dtype, layout=layout, out_bytes=view.act)

    return product


def _grouped_product(backend: str, r: Routed, view: LayerView) -> Product:
    def product(name: str, rows: int, n: int, k: int, layout: str) -> GroupedGemm:
        return replace(grouped_gemm(name, n, k, layout, backend, r, view), rows=rows, dtype=view.dtype, scaling="")

    return product


def grouped_gemm(name: str, n: int, k: int, layout: str, backend: str, r: Routed, view: LayerView) -> GroupedGemm:
    """Returns the product of all local experts in the type of the linears."""
    return GroupedGemm(
        name=name,
        groups=r.experts,
        rows=r.rows,
        n=n,
        k=k,
        dtype=view.linear_dtype,
        scaling=view.scaling,
        layout=layout,
        out_bytes=view.act,
        backend=backend,
        launches=1 if backend == "fused" else r.experts,
    )


def _factors(
    name: str,
    product: Product,
    rows: tuple[int, int],
    widths: tuple[int, int, int],
    dropped_rows: int,
    view: LayerView,
    *,
    before: tuple[Operator, ...] = (),
    between: tuple[Operator, ...] = (),
    beyond: tuple[Operator, ...] = (),
    after: tuple[Operator, ...] = (),
) -> Module:
    """Returns the operators of both factors on ``rows`` (of the input, of the output); ``widths``: input, rank, output.
    ``before``, ``between``, ``beyond``: messages around them forward, ``after``: at the end of the backward."""
    (m, out_m), (inputs, rank, width) = rows, widths
    dropped, out = dropped_rows * inputs, view.act * out_m * width
    up = product(f"{name}.lora_b", out_m, width, rank, "TN")
    fused = view.execution.adapters.fused and view.tp == 1 and isinstance(up, Gemm)
    return Module(
        f"{name}.lora",
        forward=(
            *_dropout(f"{name}.lora_dropout", dropped, view),
            *before,
            product(f"{name}.lora_a", m, rank, inputs, "TN"),
            *between,
            replace(up, accumulate=fused),
            *_unless(fused, f"{name}.lora_scale", out, out),
            *beyond,
            *_unless(fused, f"{name}.lora_add", 2 * out, out),
        ),
        backward_input=(
            *_unless(fused, f"{name}.lora_scale.bwd", out, out),
            product(f"{name}.lora_b.dgrad", out_m, rank, width, "NN"),
            product(f"{name}.lora_a.dgrad", m, inputs, rank, "NN"),
            *after,
            *_dropout(f"{name}.lora_dropout.bwd", dropped, view),
            # fused: the base linear's data gradient reads it and adds
            added(f"{name}.lora_grad_add", view.act * dropped, folded=fused),
        ),
        backward_weight=(
            product(f"{name}.lora_b.wgrad", out_m, width, rank, "NT"),
            product(f"{name}.lora_a.wgrad", m, rank, inputs, "NT"),
        ),
    )


def _dropout(name: str, elements: int, view: LayerView) -> tuple[Stream, ...]:
    """Returns a tensor and a mask of one byte an element: written forward, read backward."""
    if not view.execution.adapters.dropout:
        return ()
    tensor, mask = view.act * elements, real(elements)
    back = name.endswith(".bwd")
    return (Stream(name, "elementwise", tensor + mask * back, tensor + mask * (not back)),)


def _unless(fused: bool, name: str, read: float, write: float) -> tuple[Stream, ...]:
    return () if fused else (Stream(name, "elementwise", read, write),)


def _gathered(name: str, kind: str, nbytes: float, needed: bool) -> tuple[Collective, ...]:
    group = "etp" if name.startswith("experts.") else "tp"
    return (Collective(name, kind, group, nbytes),) if needed else ()


def _saves(name: str, rows: int, inputs: int, rank: int, reads: str, view: LayerView) -> tuple[Saved, ...]:
    """Returns the inputs of both factors in the activations' type, the first a copy where dropout or a quantised base
    linear leaves no other; with dropout also its mask, 1 B each (Megatron-Bridge peft/lora.py, NeMo
    collections/llm/peft/lora.py)."""
    dropout = bool(view.execution.adapters.dropout)
    shared = reads and not dropout and not view.quantised
    into = Saved(
        f"{name}.lora_in",
        view.act * rows * inputs,
        storage=reads if shared else "",
        until="weight_gradient",
        input=bool(shared),
    )
    thin = Saved(f"{name}.lora_mid", view.act * rows * rank, until="weight_gradient")
    return (into, thin, Saved(f"{name}.lora_mask", real(rows * inputs))) if dropout else (into, thin)


def _weights(name: str, rank: int, width: int, inputs: int, parallel: str, tp: int) -> tuple[Weight, Weight]:
    """Returns both factors, cut as their linear is on the sides that it cuts, else by the adapter's own width
    (Megatron-Bridge peft/utils.py, ``ParallelLinearAdapter``)."""
    thin = rank // tp if parallel != "replicated" and rank % tp == 0 else rank
    down, up = (thin, rank) if parallel == "column" else (rank, thin) if parallel == "row" else (rank, rank)
    return (Weight(f"{name}.lora_a", down, inputs, role="adapter"), Weight(f"{name}.lora_b", width, up, role="adapter"))
