"""A linear layer by SUMMA: a grid of tp × tp2 ranks, on which neither weights nor activations are replicated.

After van de Geijn and Watts (Concurrency 9(4), 1997) and Subramanian et al. (arXiv:2410.00273, section 3.2). Rank (i, j)
holds rows/tp2 × inputs/tp of the input, outputs/tp × inputs/tp2 of the weight and rows/tp2 × outputs/tp of the output.
Products run in panels of the contracted side: the panel of the input is broadcast along tp, that of the weight along tp2,
and their product is added. For the input's gradient the weight's panels are broadcast and partial results summed along tp;
for the weight's gradient the input's panels, and along tp2. The sums of all panels, each to another rank, are what a
reduce-scatter moves. The first panel (of sums: the last) is waited for; the others travel beside the products.

With ``b`` bytes an element, V = b·rows·inputs and W = b·inputs·outputs of a rank's row and column, forward moves V over
tp and W over tp2, and so does each half of the backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.saved import Transient
from projector.operators.types import Collective, Gemm, Operator, Stream


def product(
    name: str, view: LayerView, rows: int, inputs: int, outputs: Sequence[int], gemms: Sequence[str], *, bias: bool
) -> Module:
    """Returns the operators of the linear of ``inputs`` (undivided) to ``outputs`` (those of this rank), on ``rows`` of
    this rank."""
    n, count = sum(outputs), view.panels
    panel = -(-inputs // count)
    wide, tall = view.act * rows * inputs, view.act * inputs * n
    panels = Gemm(name, rows, n, panel, batch=count, launches=count, dtype=view.dtype, layout="TN", out_bytes=view.act)
    # panels add to one output, which all but the first read again
    forward = tuple(
        replace(panels, name=gemm, n=width, accumulate=count > 1) for gemm, width in zip(gemms, outputs, strict=True)
    )
    dgrad = replace(panels, name=f"{name}.dgrad", n=panel, k=n, layout="NN")
    wgrad = replace(panels, name=f"{name}.wgrad", m=n, n=panel, k=rows, layout="NT")
    held = n * -(-inputs // view.recipe.tp2)
    added = view.execution.fusion.added(f"{name}.wgrad.add", held, view.act, view.execution.data_parallel.grad_bytes)
    row = Stream(f"{name}.bias_grad", "elementwise", view.act * rows * n, 0.0)
    buffers = Transient(f"{name}.panels", 2 * (wide + tall) / count)  # one in use, one on its way
    return Module(
        name,
        forward=(
            *_paneled(f"{name}.input", "broadcast", "tp", wide, gemms, view),
            *_paneled(f"{name}.weight", "broadcast", "tp2", tall, gemms, view),
            *forward,
        ),
        backward_input=(
            *_paneled(f"{name}.weight_again", "broadcast", "tp2", tall, (dgrad.name,), view),
            dgrad,
            *_paneled(f"{name}.dgrad_sum", "reduce_scatter", "tp", wide, (dgrad.name,), view),
        ),
        backward_weight=(
            *_paneled(f"{name}.input_again", "broadcast", "tp", wide, (wgrad.name,), view),
            wgrad,
            *_paneled(f"{name}.wgrad_sum", "reduce_scatter", "tp2", tall, (wgrad.name,), view),
            *added,
            *((row,) if bias else ()),
        ),
        forward_transient=buffers,
        backward_transient=buffers,
    )


def _paneled(
    name: str, kind: str, group: str, nbytes: float, beside: Sequence[str], view: LayerView
) -> Iterator[Operator]:
    count = view.panels
    yield Collective(f"{name}.first", kind, group, nbytes / count, launches=1)
    if count > 1:
        rest = nbytes * (count - 1) / count
        yield Collective(name, kind, group, rest, hides_behind=tuple(beside), launches=count - 1)
