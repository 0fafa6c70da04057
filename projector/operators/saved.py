"""The tensors that a module keeps for its backward, as the modules declare them: the one book of activations.

Activation memory, what recompute drops and keeps, what goes to host memory, what a split backward holds on to: all are
folds over these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from projector.dataclass import dataclass
from projector.size import most


class Saved(NamedTuple):
    """``bytes`` of one micro-batch on this rank.

    ``storage``: tensors of one storage are one, however many modules read it (empty: named as the tensor). ``until``:
    ``backward`` or, where a split backward needs it for longer, ``weight_gradient``. ``since``: ``forward``, or ``backward``
    for gradients that wait for the weight gradient. ``input``: what the module reads, another one made; otherwise its own.
    """

    name: str
    bytes: float
    storage: str = ""
    until: str = "backward"
    since: str = "forward"
    input: bool = False

    @property
    def tensor(self) -> str:
        return self.storage or self.name


@dataclass(frozen=True, slots=True)
class Transient:
    """Bytes that live only at the costliest moment of a module, beside everything saved; ``freed``: saved bytes of the
    same layer that are gone by then; ``stranded``: of a block given back since the forward, too small for what is asked for
    then. The gradient that enters the layer is not counted."""

    name: str
    bytes: float
    freed: float = 0.0
    stranded: float = 0.0

    @property
    def net(self) -> float:
        return self.bytes - self.freed


def once(saves: Iterable[Saved]) -> tuple[Saved, ...]:
    """Every storage once, as wide and for as long as the reader that needs most of it.

    A linear that could do with a quantised copy saves the original where another module keeps that one anyway
    (``save_original_input`` of TransformerEngine pytorch/module/linear.py).
    """
    found: dict[str, Saved] = {}
    for each in saves:
        other = found.get(each.tensor)
        if other is None:
            found[each.tensor] = each
        elif other.bytes < each.bytes or other.until != each.until:
            longest = "weight_gradient" if "weight_gradient" in (other.until, each.until) else "backward"
            found[each.tensor] = other._replace(bytes=most(other.bytes, each.bytes), until=longest)
    return tuple(found.values())


def nbytes(saves: Iterable[Saved]) -> float:
    """Returns the bytes of them together, each storage once."""
    return sum(each.bytes for each in once(saves))


def costliest(moments: Iterable[Transient | None]) -> Transient | None:
    """Returns the first of the largest; None where no module declares one."""
    return max((moment for moment in moments if moment), key=lambda moment: moment.net, default=None)
