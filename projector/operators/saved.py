"""The tensors that a module keeps for its backward, as the modules declare them.

Activation memory, what recompute drops and keeps, what goes to host memory and what a split backward holds on to are
all folds over these declarations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from projector.dataclass import dataclass
from projector.size import most


class Saved(NamedTuple):
    """A tensor saved for the backward: ``bytes`` of one micro-batch on this rank.

    ``storage``: tensors with the same storage are one, however many modules read it (empty: the tensor's own name).
    ``until``: ``backward`` or, where a split backward needs it for longer, ``weight_gradient``. ``since``: ``forward``,
    or ``backward`` for gradients that wait for the weight gradient. ``input``: whether the tensor is an input that
    another module made. ``cached``: it lives to the end of the forward, also where a replay makes it again.
    """

    name: str
    bytes: float
    storage: str = ""
    until: str = "backward"
    since: str = "forward"
    input: bool = False
    cached: bool = False

    @property
    def tensor(self) -> str:
        return self.storage or self.name


@dataclass(frozen=True, slots=True)
class Transient:
    """Bytes that live only at the costliest moment of a module, beside everything saved; ``freed``: saved bytes of the
    same layer that are gone by then; ``stranded``: bytes of a block given back since the forward that is too small for
    what is asked for then. The gradient that enters the layer is not counted."""

    name: str
    bytes: float
    freed: float = 0.0
    stranded: float = 0.0

    @property
    def net(self) -> float:
        return self.bytes - self.freed


def once(saves: Iterable[Saved]) -> tuple[Saved, ...]:
    """Returns every storage once, as wide and for as long as the reader that needs most of it.

    A linear that could do with a quantised copy saves the original where another module keeps that one anyway
    (``save_original_input`` of TransformerEngine pytorch/module/linear.py).
    """
    tensors: dict[str, Saved] = {}
    for saved in saves:
        first = tensors.get(saved.tensor)
        if first is None:
            tensors[saved.tensor] = saved
        elif first.bytes < saved.bytes or first.until != saved.until:
            longest = "weight_gradient" if "weight_gradient" in (first.until, saved.until) else "backward"
            tensors[saved.tensor] = first._replace(bytes=most(first.bytes, saved.bytes), until=longest)
    return tuple(tensors.values())


def saved_bytes(saves: Iterable[Saved]) -> float:
    """Returns the bytes of ``saves`` together, each storage once."""
    return sum(saved.bytes for saved in once(saves))


def costliest(moments: Iterable[Transient | None]) -> Transient | None:
    """Returns the moment with the most net bytes, the first of equal ones; None where no module declares one."""
    return max((moment for moment in moments if moment), key=lambda moment: moment.net, default=None)
