"""Ring attention of ``torch.distributed.tensor.experimental.context_parallel``: torchtitan's context parallelism.

Counted from pytorch/pytorch@f2127dbd torch/distributed/tensor/experimental/_attention.py. Keys and values, heads repeated,
are packed in every step but gathered once, beside the first step (``_RotateMethod.ALL_GATHER``, the default); their fp32
gradients go round the ring, each message beside the next step and the last one beside nothing. Partial results are merged
in fp32 by elementary kernels; where a step touches half of a tensor, ``_partial_update`` writes the whole of it again.

In a compiled block no message is beside anything: a traced collective is followed by its wait
(torch 2.6.0 torch/distributed/_functional_collectives.py, ``_maybe_wrap_tensor``), and Inductor moves neither unless told to
(torch/_inductor/config.py, ``reorder_for_compute_comm_overlap``). It joins the element-wise kernels of a step, and drops the
packing of what is not gathered again.
"""

from __future__ import annotations

from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.types import Attention, Collective, Operator, Stream
from projector.parameter import parameter

Bytes = tuple[float, float]
"""Bytes read and bytes written for each element."""

_MERGE: Bytes = parameter(
    (22.0, 16.0),
    unit="B/element",
    kind="derived",
    source="to fp32 (2, 4), difference (8, 4), times a sigmoid of the log-sums (4, 4), subtracted (8, 4)",
)
_ADD: Bytes = parameter((6.0, 4.0), unit="B/element", kind="derived", source="a 16-bit gradient added to an fp32 sum")
_COPY: Bytes = (4.0, 4.0)  # fp32 concatenated, split or not
_COMPILED: Bytes = parameter(
    (6.0, 4.0),
    unit="B/element",
    kind="derived",
    source="one kernel of a compiler: a 16-bit partial result and the fp32 sum read, the sum written",
)
_TOUCHED, _PARTIAL = parameter(
    (0.75, 0.5), kind="derived", source="after the diagonal each step touches all or half of a tensor, in equal numbers"
)
_LAUNCHES, _GRADIENT_LAUNCHES = parameter(
    (10, 14), unit="launches", kind="derived", source="operators of one step of torch's ring, forward and backward"
)


def ring(
    calls: list[tuple[Attention, Attention]],
    sizes: list[int],
    elements: tuple[float, float],
    view: LayerView,
    tags: frozenset[str],
) -> Module:
    """Returns the attention of one rank. ``calls``: forward and backward of each step, ``sizes``: how many steps each
    stands for; ``elements``: of the rank's queries, and of its keys and values with repeated heads."""
    queries, keys = elements
    packed, packs = view.act * keys, 1 if view.compiled else view.recipe.cp - 1

    def gathered(infix: str, beside: str) -> tuple[Operator, ...]:
        behind = () if view.compiled else (beside,)
        return (
            Stream(f"cp.{infix}pack", "copy", packed * packs, packed * packs, launches=packs),
            Collective(f"cp.{infix}ag", "all_gather", "cp", packed * view.recipe.cp, hides_behind=behind),
        )

    backward: list[Operator] = []
    for i, (call, size) in enumerate(zip(calls, sizes, strict=True)):
        backward.append(call[1])
        beside = (calls[i + 1][1].name,) if i + 1 < len(calls) else ()
        inner = (call[1].name,) if size > 1 else ()
        backward.append(
            Collective(
                f"cp.grad_send{i}",
                "send_recv",
                "cp",
                4.0 * keys * size,
                hides_behind=() if view.compiled else (*inner, *beside),
                launches=size,
            )
        )
    merged, *sums = _compiled(queries, keys, view) if view.compiled else _elementary(queries, keys, view)
    return Module(
        "core_attn",
        forward=(*gathered("", calls[0][0].name), *(call[0] for call in calls), merged),
        backward_input=(*gathered("grad_", calls[0][1].name), *backward, *sums),
        tags=tags,
    )


def _elementary(queries: float, keys: float, view: LayerView) -> tuple[Stream, ...]:
    """Returns the merges of the forward, and the sums of the backward, function by function."""
    steps, halves = view.recipe.cp - 1, ((_ADD, _TOUCHED), (_COPY, _PARTIAL))
    return (
        _elementwise("cp.correct", steps, queries, ((_MERGE, _TOUCHED), (_COPY, _PARTIAL)), _LAUNCHES),
        _elementwise("cp.grad_sum", steps, queries, halves, _GRADIENT_LAUNCHES),
        _elementwise("cp.grad_kv_sum", steps, keys, (*halves, (_COPY, 1.0)), 0),
        # zeros, the diagonal step, and the 16-bit results
        _elementwise("cp.grad_ends", 1, queries + keys, (((0.0, 4.0), 1.0), (_ADD, 1.0), ((4.0, 2.0), 1.0)), 7),
    )


def _compiled(queries: float, keys: float, view: LayerView) -> tuple[Stream, ...]:
    """Returns the same as a compiler runs it: one kernel a step and tensor, which writes the whole tensor; the last one
    of the forward, and a cast of the backward, write 16 bits."""
    steps = view.recipe.cp - 1
    return (
        _elementwise("cp.correct", steps, queries, ((_COMPILED, 1.0),), 1),
        _elementwise("cp.grad_sum", steps, queries, ((_COMPILED, 1.0),), 1),
        _elementwise("cp.grad_kv_sum", steps, keys, ((_COMPILED, 1.0),), 1),
        _elementwise("cp.grad_ends", 1, queries + keys, (((2.0, 4.0), 1.0), ((4.0, 2.0), 1.0)), 4),
    )


def _elementwise(
    name: str, steps: int, elements: float, kernels: tuple[tuple[Bytes, float], ...], launches: int
) -> Stream:
    """Returns the elementary kernels of ``steps`` steps; each with the share of the elements that it touches."""
    read, write = (steps * elements * sum(each[i] * share for each, share in kernels) for i in (0, 1))
    return Stream(name, "elementwise", read, write, launches=launches * steps)
