"""A piece of a layer with its forward and backward operators; a layer is a chain of pieces.

A chain runs forward in order and backward in reverse order, so each layer kind is written once, as a list of parts.
``tags`` are the names by which users select modules: ``recompute_modules``, ``offload_modules`` and ``cuda_graph_scope`` of
Megatron-LM, the names that ``recompute_saved`` keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from projector.layers.saved import Saved, Transient, costliest, once
from projector.layers.types import Block, Operator, Recomputed
from projector.layers.weights import Weight

__all__ = ["Part", "block", "forward_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Operators of one module on one rank, the weights it holds there and the tensors it saves for its backward.

    ``makes``: its outputs, as far as other modules save them or a policy may keep them: a replay makes them again.
    ``reads``: inputs that only a replay of it needs. ``forward_transient``, ``backward_transient``: its costliest moments.
    """

    name: str
    forward: tuple[Operator, ...] = ()
    backward_input: tuple[Operator, ...] = ()
    backward_weight: tuple[Operator, ...] = ()
    weights: tuple[Weight, ...] = ()
    saves: tuple[Saved, ...] = ()
    makes: tuple[Saved, ...] = ()
    reads: tuple[Saved, ...] = ()
    forward_transient: Transient | None = None
    backward_transient: Transient | None = None
    tags: frozenset[str] = frozenset()

    def operator_names(self) -> Iterable[str]:
        for phase in (self.forward, self.backward_input, self.backward_weight):
            for op in phase:
                yield op.name


def forward_of(parts: Iterable[Part]) -> tuple[Operator, ...]:
    """Forward operators of the parts in order."""
    return tuple(op for part in parts for op in part.forward)


def block(
    name: str,
    parts: tuple[Part, ...],
    again: Recomputed | None = None,
    graphed: frozenset[str] = frozenset(),
    offloaded: frozenset[str] = frozenset(),
) -> Block:
    """The :class:`Block` that executes ``parts`` in order forward and in reverse order backward.

    ``again``: what recompute does to them; ``offloaded``: tags of the modules whose inputs go to host memory.
    """
    backward = parts[::-1]
    saves = once(each for part in parts for each in part.saves)
    again = again or Recomputed(kept=tuple(each for each in saves if each.since == "forward"))
    return Block(
        name=name,
        forward=forward_of(parts),
        backward_input=tuple(op for part in backward for op in part.backward_input),
        backward_weight=tuple(op for part in backward for op in part.backward_weight),
        recompute=again.operators,
        weights=tuple(weight for part in parts for weight in part.weights),
        graphed=graphed,
        saves=saves,
        kept=again.kept,
        dropped=again.dropped,
        replay_transient=again.transient,
        offloadable=once(each for part in parts if part.tags & offloaded for each in part.saves if each.input),
        forward_transient=costliest(part.forward_transient for part in parts),
        backward_transients=tuple(part.backward_transient for part in backward if part.backward_transient),
    )
