"""A piece of a layer with its forward and backward operators; a layer is a chain of pieces.

A chain runs forward in order and backward in reverse order, so each layer kind is written once, as a list of parts.
``tags`` are the names by which users select modules: ``recompute_modules`` and ``cuda_graph_scope`` of Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from projector.layers.types import Block, Operator
from projector.layers.weights import Weight

__all__ = ["Part", "block", "forward_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Operators of one module on one rank and the weights it holds there."""

    name: str
    forward: tuple[Operator, ...] = ()
    backward_input: tuple[Operator, ...] = ()
    backward_weight: tuple[Operator, ...] = ()
    weights: tuple[Weight, ...] = ()
    tags: frozenset[str] = frozenset()

    def operator_names(self) -> Iterable[str]:
        for phase in (self.forward, self.backward_input, self.backward_weight):
            for op in phase:
                yield op.name


def forward_of(parts: Iterable[Part]) -> tuple[Operator, ...]:
    """Forward operators of the parts in order."""
    return tuple(op for part in parts for op in part.forward)


def block(
    name: str, parts: tuple[Part, ...], recompute: tuple[Operator, ...] = (), graphed: frozenset[str] = frozenset()
) -> Block:
    """The :class:`Block` that executes ``parts`` in order forward and in reverse order backward."""
    backward = parts[::-1]
    return Block(
        name=name,
        forward=forward_of(parts),
        backward_input=tuple(op for part in backward for op in part.backward_input),
        backward_weight=tuple(op for part in backward for op in part.backward_weight),
        recompute=recompute,
        weights=tuple(weight for part in parts for weight in part.weights),
        graphed=graphed,
    )
