"""A piece of a layer with its forward and backward operators; a layer is a chain of pieces.

A chain runs forward in order and backward in reverse order, so each layer kind is written once, as a list of parts.
``tags`` are the names by which users select modules: ``recompute_modules``, ``offload_modules`` and ``cuda_graph_scope`` of
Megatron-LM, the names that ``recompute_saved`` keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cached_property

from projector.dataclass import dataclass
from projector.operators.saved import Saved, Transient, costliest, once
from projector.operators.types import Operator
from projector.operators.weights import Weight, WeightSet, held


@dataclass(frozen=True, slots=True)
class Module:
    """Operators of one module on one rank, the weights it holds there and the tensors it saves for its backward.

    ``makes``: its outputs, as far as other modules save them or a policy may keep them: a replay makes them again.
    ``reads``: inputs that only a replay of it needs. ``forward_transient``, ``backward_transient``: its costliest moments.
    ``role``: what a step knows it as, whatever its name: ``dispatch``, ``combine``, ``experts``, ``shared_experts``.
    """

    name: str
    role: str = ""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What recompute does to a chain of parts: the operators replayed before its backward, what stays saved all the
    same, what the replay brings back, and the costliest moment of the replay."""

    operators: tuple[Operator, ...] = ()
    kept: tuple[Saved, ...] = ()
    dropped: tuple[Saved, ...] = ()
    transient: Transient | None = None


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of the model on one rank, in the order in which it is executed.

    ``backward_input`` holds what must run before the gradient can leave the block (dgrad and everything beside it),
    ``backward_weight`` what a split-backward schedule may postpone (wgrad GEMMs). ``recompute`` is replayed before the
    backward when its activations were not kept. ``launches_scale`` < 1 where graphs replace launches.
    ``weights``: what this rank holds of its modules'. ``saves``: what its modules save, each storage once; ``kept`` and
    ``dropped``: what stays of it under recompute, and what ``recompute`` brings back with ``replay_transient`` beside it;
    ``offloadable``: inputs of the modules that ``offload_modules`` names, if kept: what recompute drops is nowhere.
    ``roles``: the names of the operators of the modules that play each role.
    """

    name: str
    forward: tuple[Operator, ...]
    backward_input: tuple[Operator, ...]
    backward_weight: tuple[Operator, ...] = ()
    recompute: tuple[Operator, ...] = ()
    weights: tuple[Weight, ...] = ()
    graphed: frozenset[str] = field(default_factory=frozenset)
    roles: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False)
    saves: tuple[Saved, ...] = field(default=(), compare=False)
    kept: tuple[Saved, ...] = field(default=(), compare=False)
    dropped: tuple[Saved, ...] = field(default=(), compare=False)
    offloadable: tuple[Saved, ...] = field(default=(), compare=False)
    forward_transient: Transient | None = field(default=None, compare=False)
    replay_transient: Transient | None = field(default=None, compare=False)
    backward_transients: tuple[Transient, ...] = field(default=(), compare=False)

    @cached_property
    def saved_bytes(self) -> float:
        """Saved between forward and backward without recompute."""
        return sum(each.bytes for each in self.saves if each.since == "forward")

    @cached_property
    def kept_bytes(self) -> float:
        """Returns the bytes that stay saved between forward and backward under recompute."""
        return sum(each.bytes for each in self.kept)

    @property
    def dropped_bytes(self) -> float:
        return sum(each.bytes for each in self.dropped)

    @cached_property
    def pending_bytes(self) -> float:
        """Kept between the halves of a split backward: what weight gradients read."""
        return sum(each.bytes for each in self.saves if each.until == "weight_gradient")

    @property
    def held(self) -> WeightSet:
        """Returns all of its weights, those borrowed from other parts of the model included."""
        return held([(self.weights, 1)])

    @cached_property
    def owned(self) -> WeightSet:
        """Returns the weights that this part of the model owns."""
        return held([([w for w in self.weights if not w.borrowed], 1)])

    def under(self, again: Recomputed) -> Block:
        """This block, which keeps everything, under recompute."""
        stays = {each.tensor for each in again.kept}
        return replace(
            self,
            recompute=again.operators,
            kept=again.kept,
            dropped=again.dropped,
            replay_transient=again.transient,
            offloadable=tuple(each for each in self.offloadable if each.tensor in stays),
        )


def forward_of(parts: Iterable[Module]) -> tuple[Operator, ...]:
    """Forward operators of the parts in order."""
    return tuple(op for part in parts for op in part.forward)


def block(
    name: str, parts: tuple[Module, ...], graphed: frozenset[str] = frozenset(), offloaded: frozenset[str] = frozenset()
) -> Block:
    """The :class:`Block` that executes ``parts`` in order forward and in reverse order backward, and keeps what they save.

    ``offloaded``: tags of the modules whose inputs go to host memory.
    """
    backward = parts[::-1]
    saves = once(each for part in parts for each in part.saves)
    return Block(
        name=name,
        forward=forward_of(parts),
        backward_input=tuple(op for part in backward for op in part.backward_input),
        backward_weight=tuple(op for part in backward for op in part.backward_weight),
        weights=tuple(weight for part in parts for weight in part.weights),
        graphed=graphed,
        roles={
            role: frozenset(name for part in parts if part.role == role for name in part.operator_names())
            for role in {part.role for part in parts if part.role}
        },
        saves=saves,
        kept=tuple(each for each in saves if each.since == "forward"),
        offloadable=once(each for part in parts if part.tags & offloaded for each in part.saves if each.input),
        forward_transient=costliest(part.forward_transient for part in parts),
        backward_transients=tuple(part.backward_transient for part in backward if part.backward_transient),
    )
