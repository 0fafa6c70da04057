"""A module of a layer with its forward and backward operators, and the block that a chain of modules makes.

A chain runs forward in order and backward in reverse order, so each layer kind is written once, as a list of modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from projector.dataclass import dataclass
from projector.operators.saved import Saved, Transient, costliest, once
from projector.operators.types import Cost, Operator, stream
from projector.operators.weights import Weight, WeightSet, weight_set


@dataclass(frozen=True, slots=True)
class Module:
    """Operators of one module on one rank, the weights it holds there and the tensors it saves for its backward.

    ``makes``: outputs that other modules save or that a policy may keep: a replay makes them again. ``reads``: inputs
    that only a replay of the module needs. ``forward_transient``, ``backward_transient``: the costliest moments of the
    module. ``role``: what a step knows the module as, whatever its name: ``dispatch``, ``combine``, ``experts``,
    ``shared_experts``. ``tags``: the names by which users select modules: ``recompute_modules``, ``offload_modules``
    and ``cuda_graph_scope`` of Megatron-LM, the names that ``recompute_saved`` keeps.
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


def function(
    name: str, tensor: float, forward: Cost, backward: Cost | None, kind: str = "elementwise", **parts: Any
) -> Module:
    """Returns the module of one memory-bound function of a tensor of ``tensor`` bytes (or elements): a kernel of ``kind``
    and, where it has a ``backward``, the kernel ``<name>.bwd``. ``parts``: other fields of the module."""
    back = (stream(f"{name}.bwd", kind, tensor, backward),) if backward else ()
    return Module(name, forward=(stream(name, kind, tensor, forward),), backward_input=back, **parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What recompute does to a chain of modules: the ``operators`` replayed before its backward, the tensors ``kept``
    all the same, the tensors ``dropped`` and brought back by the replay, and the costliest moment (``transient``) of
    the replay."""

    operators: tuple[Operator, ...] = ()
    kept: tuple[Saved, ...] = ()
    dropped: tuple[Saved, ...] = ()
    transient: Transient | None = None


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of the model on one rank, in the order in which it is executed.

    ``backward_input`` holds what must run before the gradient can leave the block (dgrad and everything beside it),
    ``backward_weight`` what a split-backward schedule may postpone (wgrad GEMMs). ``recompute`` is replayed before the
    backward when its activations were not kept. ``graphed``: names of operators that a CUDA graph launches.
    ``weights``: what this rank holds of the weights of the modules. ``saves``: what the modules save, each storage
    once; ``kept`` and ``dropped``: what stays of ``saves`` under recompute, and what ``recompute`` brings back while
    ``replay_transient`` lives; ``offloadable``: inputs of the modules that ``offload_modules`` names, if kept (a
    dropped tensor needs no host memory). ``roles``: the names of the operators of the modules that play each role.
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
        """Returns the bytes that are saved between forward and backward without recompute."""
        return sum(saved.bytes for saved in self.saves if saved.since == "forward")

    @cached_property
    def kept_bytes(self) -> float:
        """Returns the bytes that stay saved between forward and backward under recompute."""
        return sum(saved.bytes for saved in self.kept)

    @property
    def dropped_bytes(self) -> float:
        return sum(saved.bytes for saved in self.dropped)

    @cached_property
    def pending_bytes(self) -> float:
        """Returns the bytes kept between the halves of a split backward: what weight gradients read."""
        return sum(saved.bytes for saved in self.saves if saved.until == "weight_gradient")

    @property
    def held(self) -> WeightSet:
        """Returns all weights of the block, those borrowed from other parts of the model included."""
        return weight_set([(self.weights, 1)])

    @cached_property
    def owned(self) -> WeightSet:
        """Returns the weights that this part of the model owns."""
        return weight_set([([w for w in self.weights if not w.borrowed], 1)])

    def under(self, recomputed: Recomputed) -> Block:
        """Returns this block, which keeps every saved tensor, as it is when ``recomputed``."""
        kept = {saved.tensor for saved in recomputed.kept}
        return replace(
            self,
            recompute=recomputed.operators,
            kept=recomputed.kept,
            dropped=recomputed.dropped,
            replay_transient=recomputed.transient,
            offloadable=tuple(saved for saved in self.offloadable if saved.tensor in kept),
        )


def forward_of(parts: Iterable[Module]) -> tuple[Operator, ...]:
    """Returns the forward operators of the modules ``parts`` in order."""
    return tuple(op for part in parts for op in part.forward)


def block(
    name: str, parts: tuple[Module, ...], graphed: frozenset[str] = frozenset(), offloaded: frozenset[str] = frozenset()
) -> Block:
    """Returns the :class:`Block` that executes ``parts`` in order forward and in reverse order backward.

    ``graphed``: names of operators in a CUDA graph. ``offloaded``: tags of the modules whose inputs go to host memory.
    """
    backward = parts[::-1]
    saves = once(saved for part in parts for saved in part.saves)
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
        kept=tuple(saved for saved in saves if saved.since == "forward"),
        offloadable=once(saved for part in parts if part.tags & offloaded for saved in part.saves if saved.input),
        forward_transient=costliest(part.forward_transient for part in parts),
        backward_transients=tuple(part.backward_transient for part in backward if part.backward_transient),
    )
