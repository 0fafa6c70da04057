"""Low-rank adapters beside frozen linears (LoRA, arXiv:2106.09685): two thin GEMMs, and passes over input and output.

Layout of Megatron-Bridge peft/lora.py, peft/utils.py@067f987df: beside a column linear the first factor sees the whole
input and the second one the local outputs; beside a row linear the first factor's partial result is summed over the
tensor-parallel group. The input is dropped out, the output scaled, then added. Under sequence parallelism a column linear
returns the input that it gathered, unless ``tp_comm_overlap`` gathers it inside the product: then the adapter gathers it
again, and scatters its gradient. TransformerEngine's operation fuser leaves the products alone of all that
(peft/lora_layers.py ``TEFusedLoRALinear``), where tensors are not parallel.
"""

from __future__ import annotations

from projector.layers.local import Local
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Collective, Gemm, Operator, Stream
from projector.operators.weights import Weight

__all__ = ["adapter"]


def adapter(target: str, name: str, parallel: str, rows: int, width: int, inputs: int, reads: str, lo: Local) -> Part:
    """The adapter of linear ``name`` [width, inputs] on ``rows`` tokens of storage ``reads``; empty when ``target`` is
    not adapted."""
    spec = lo.recipe.lora
    if spec is None or target not in spec.targets:
        return Part(name=f"{name}.lora")
    rank, row = spec.dim, parallel == "row"
    out_rows = lo.shard_tokens if row else rows
    down = Gemm(name=f"{name}.lora_a", m=rows, n=rank, k=inputs, dtype=lo.dtype, out_bytes=lo.act)
    fused = lo.execution.adapters.fused and lo.tp == 1
    up = Gemm(name=f"{name}.lora_b", m=out_rows, n=width, k=rank, dtype=lo.dtype, out_bytes=lo.act, accumulate=fused)
    out, into = lo.act * out_rows * width, lo.act * rows * inputs
    reduce: tuple[Operator, ...] = ()
    if row and lo.tp > 1:
        reduce = (Collective(name=f"{name}.lora_ar", kind="all_reduce", group="tp", bytes=lo.act * rows * rank),)
    again = not row and lo.sp and bool(lo.recipe.tp_comm_overlap)
    dropped = (lo.shard_tokens if again else rows) * inputs
    added = lo.act * dropped
    return Part(
        name=f"{name}.lora",
        forward=(
            *_dropout(f"{name}.lora_dropout", dropped, lo),
            *_gathered(f"{name}.lora_ag", "all_gather", into, again),
            down,
            *reduce,
            up,
            *_unless(fused, f"{name}.lora_scale", out, out),
            *_unless(fused, f"{name}.lora_add", 2 * out, out),
        ),
        backward_input=(
            *_unless(fused, f"{name}.lora_scale.bwd", out, out),
            Gemm(name=f"{name}.lora_b.dgrad", m=out_rows, n=rank, k=width, dtype=lo.dtype, layout="NN"),
            Gemm(name=f"{name}.lora_a.dgrad", m=rows, n=inputs, k=rank, dtype=lo.dtype, layout="NN"),
            *_gathered(f"{name}.lora_rs", "reduce_scatter", into, again),
            *_dropout(f"{name}.lora_dropout.bwd", dropped, lo),
            # fused: the base linear's data gradient reads it and adds
            Stream(name=f"{name}.lora_grad_add", kind="elementwise", read=added, write=0.0, launches=0)
            if fused
            else Stream(name=f"{name}.lora_grad_add", kind="elementwise", read=2 * added, write=added),
        ),
        backward_weight=(
            Gemm(name=f"{name}.lora_b.wgrad", m=width, n=rank, k=out_rows, dtype=lo.dtype, layout="NT"),
            Gemm(name=f"{name}.lora_a.wgrad", m=rank, n=inputs, k=rows, dtype=lo.dtype, layout="NT"),
        ),
        weights=_weights(name, rank, width, inputs, parallel, lo.tp),
        saves=_saves(name, (lo.shard_tokens if parallel == "column" else rows) * inputs, reads, lo),
    )


def _dropout(name: str, elements: int, lo: Local) -> tuple[Stream, ...]:
    """A tensor and a mask of one byte an element: written forward, read backward."""
    if not lo.execution.adapters.dropout:
        return ()
    tensor, mask = lo.act * elements, float(elements)
    back = name.endswith(".bwd")
    return (Stream(name=name, kind="elementwise", read=tensor + mask * back, write=tensor + mask * (not back)),)


def _unless(fused: bool, name: str, read: float, write: float) -> tuple[Stream, ...]:
    return () if fused else (Stream(name=name, kind="elementwise", read=read, write=write),)


def _gathered(name: str, kind: str, nbytes: float, needed: bool) -> tuple[Collective, ...]:
    return (Collective(name=name, kind=kind, group="tp", bytes=nbytes),) if needed else ()


def _saves(name: str, elements: int, reads: str, lo: Local) -> tuple[Saved, ...]:
    """The input of the first factor in the activations' type, a copy of its own where dropout or a quantised base linear
    leaves no other; with dropout also its mask, one byte an element (Megatron-Bridge peft/lora.py, NeMo
    collections/llm/peft/lora.py)."""
    dropout = bool(lo.execution.adapters.dropout)
    shared = reads and not dropout and not lo.quantised
    into = Saved(
        name=f"{name}.lora_in",
        storage=reads if shared else "",
        bytes=lo.act * elements,
        until="weight_gradient",
        input=bool(shared),
    )
    return (into, Saved(name=f"{name}.lora_mask", bytes=float(elements))) if dropout else (into,)


def _weights(name: str, rank: int, width: int, inputs: int, parallel: str, tp: int) -> tuple[Weight, Weight]:
    """Both factors are cut as their linear is on the sides that it cuts, else by the adapter's own width
    (Megatron-Bridge peft/utils.py, ``ParallelLinearAdapter``)."""
    thin = rank // tp if parallel != "replicated" and rank % tp == 0 else rank
    down, up = (thin, rank) if parallel == "column" else (rank, thin) if parallel == "row" else (rank, rank)
    return (
        Weight(name=f"{name}.lora_a", rows=down, columns=inputs, role="adapter"),
        Weight(name=f"{name}.lora_b", rows=width, columns=up, role="adapter"),
    )
