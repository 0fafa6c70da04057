"""A clock that knows phases which were measured whole: what the projection asks of blocks, answered by live times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from projector.dataclass import dataclass
from projector.operators.types import Operator
from projector.step.timing import Clock, Message, Phase, Segment


@dataclass(frozen=True)
class Live(Clock):
    """``phases``: measured, by the operators that a model would price in their place."""

    phases: Mapping[tuple[Operator, ...], Phase] = field(default_factory=dict)

    def phase(
        self,
        operators: Sequence[Operator],
        *,
        layer: bool = False,
        graphed: frozenset[str] = frozenset(),
        covered: Mapping[str, tuple[float, float]] | None = None,
        ledger: list[Message] | None = None,
    ) -> Phase:
        """The measured phase of ``operators``, else the priced one."""
        found = self.phases.get(tuple(operators))
        if found is not None:
            return found
        return super().phase(operators, layer=layer, graphed=graphed, covered=covered, ledger=ledger)

    def work(self, operators: Iterable[Operator]) -> float:
        """Of a measured phase its seconds: nobody saw its operators one by one."""
        found = self.phases.get(tuple(operators))
        return super().work(operators) if found is None else found.compute


def measured_phase(seconds: float, beyond: Mapping[str, float] | None = None, more: float = 0.0) -> Phase:
    """``seconds`` that were measured, and after them what was only priced: communication ``beyond`` them by group, and
    ``more`` seconds of compute."""
    shown = dict(beyond or {})
    return Phase((Segment(seconds + more + sum(shown.values()), 0.0),), seconds + more, shown, seconds)
