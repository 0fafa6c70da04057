"""The common parts of mixers with a recurrence: their chain of modules, their kernels, the exchange over cp.

Every kernel states its bytes and FLOP per token of this rank. Context parallelism exchanges sequence for heads in an
all-to-all before the recurrence and after it (NVIDIA/Megatron-LM@d98e8a64dd core/ssm/mamba_context_parallel.py): each
rank then sees the whole sequence of its heads, as many elements as before and cp times the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm, residual, sandwich
from projector.operators.module import Module, function
from projector.operators.saved import Saved
from projector.operators.types import Collective, Operator, Scan, Stream
from projector.operators.weights import Weight


def per_rank(size: int, view: LayerView) -> int:
    """Returns how many heads, groups or channels one tensor-parallel rank has."""
    return -(-size // view.tp)


class Kernels:
    """Makes the kernels of a recurrence from sizes per token of this rank. ``chunk``: tokens that a step takes."""

    def __init__(self, name: str, chunk: int, view: LayerView) -> None:
        self._name, self._tokens, self._act = name, view.tokens, view.act
        longest = max(view.recipe.document_lengths or (view.recipe.seq_length,))  # documents run beside one another
        self._steps = -(-longest // chunk)

    def __call__(
        self, name: str, read: float, write: float, flops: float = 0.0, *, serial: str = "", launches: int = 1
    ) -> Scan:
        """Returns one kernel. ``read``, ``write``: bytes; ``serial``: what each step of its chain does."""
        tokens = self._tokens
        return Scan(
            name=f"{self._name}.{name}",
            kind="elementwise",
            read=read * tokens,
            write=write * tokens,
            launches=launches,
            work=flops * tokens,
            steps=self._steps * launches if serial else 0,
            step=serial or "scale",
        )


def mixer_chain(
    name: str, view: LayerView, inputs: Sequence[Module], core: Sequence[Module], output: Module, tags: frozenset[str]
) -> tuple[Module, ...]:
    """Returns a mixer from its norm to its residual: ``inputs`` project, ``core`` mixes, ``output`` projects back."""
    return (
        norm("input_norm", view, tags=tags | {"attn_norm"}),
        *inputs,
        *core,
        output,
        *sandwich("post_attn_norm", view, tags, f"{output.name}.out"),
        residual(f"{name}_residual", view, tags, "pre_mlp_norm.in"),
    )


def projection(name: str, width: int, view: LayerView, tags: frozenset[str], *, into: str = "") -> Module:
    """Returns a linear of the normed input to ``width`` of this rank (column), or back from storage ``into`` (row)."""
    spec = Linear(
        name,
        (view.hidden,) if into else (width,),
        width if into else view.hidden,
        view.tokens,
        "row" if into else "column",
        after_norm=not into,
        reads=into or "input_norm.out",
    )
    return linear(spec, view, tags)


def gated_norm(width: int, weight: int, view: LayerView, tags: frozenset[str], gate: str = "") -> Module:
    """Returns the norm over heads or groups after a recurrence, times a gate of storage ``gate`` if given.

    ``width``: elements of a token on this rank; ``weight``: elements that it learns there.
    """
    tensor = view.act * width * view.tokens
    reads = 2 if gate else 1
    saves = [Saved("gated_norm.in", tensor, input=True), Saved("gated_norm.statistics", 4.0 * view.tokens)]
    saves += [Saved("gated_norm.gate", tensor, storage=gate, input=True)] if gate else []
    return function(
        "gated_norm",
        tensor,
        (reads, 1, 1),
        (1 + reads, reads, 2),
        "norm",
        weights=(Weight("gated_norm.weight", weight, split="rows" if weight == width else ""),),
        saves=tuple(saves),
        makes=(Saved("gated_norm.out", tensor),),
        tags=tags,
    )


def between_exchanges(
    name: str, width_in: float, width_out: float, calls: int, view: LayerView, ops: tuple[tuple[Operator, ...], ...]
) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Returns (forward, backward) ``ops`` between the exchanges of sequence for heads: ``width_in`` elements of a token
    go in by ``calls`` collectives and ``width_out`` come back, each reordered before and after."""
    forward, backward = ops
    if view.recipe.cp == 1:
        return forward, backward

    def swap(suffix: str, width: float, number: int) -> tuple[Operator, ...]:
        nbytes = view.act * width * view.tokens
        return (
            Collective(f"{name}.{suffix}", "all_to_all", "cp", nbytes, launches=number),
            Stream(f"{name}.{suffix}.order", "copy", 2 * nbytes, 2 * nbytes, launches=2),
        )

    return (
        (*swap("a2a_in", width_in, calls), *forward, *swap("a2a_out", width_out, 1)),
        (*swap("a2a_grad_out", width_out, 1), *backward, *swap("a2a_grad_in", width_in, calls)),
    )
