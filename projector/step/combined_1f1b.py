"""What hides behind what when the forward of one micro-batch runs beside the backward of another, layer by layer.

Megatron-LM's combined 1F1B (NVIDIA/Megatron-LM@d98e8a64dd core/models/common/model_chunk_schedule_plan.py,
``TransformerLayerSchedulePlan.run``) zips layer i of the forward with layer L−i of the backward on two streams::

    communication  combine backward | dispatch forward → dispatch backward                | combine forward
    compute        attention forward| experts backward → (their weight gradients) → experts forward | attention backward

Each column begins when the one before it has ended on both streams. The dispatch of the backward waits for the experts' data
gradients: ``delay_wgrad_compute`` takes their weight gradients out of the way, behind which it then hides. A replay of the
forward (full recompute) runs before its own backward, with its exchanges exposed (pull requests #5869, #6311).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from projector import pipeline
from projector.dataclass import dataclass
from projector.mechanism import mechanism
from projector.operators.module import Block
from projector.operators.types import Collective, Operator
from projector.size import least, most
from projector.step.timing import CONTENTION, SLOWED, Clock
from projector.workload.recipe import Recipe

Hidden = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ExchangeOverlap:
    """The overlap of exchanges, by name: (hidden seconds of the exchange, seconds that the compute beside it loses)."""

    forward: Hidden = field(default_factory=dict)
    backward: Hidden = field(default_factory=dict)


def pairs_microbatches(recipe: Recipe) -> bool:
    """Returns whether forwards run beside backwards: without a pipeline, with virtual stages (Megatron-LM requires
    them), or in a schedule that is made of such pairs."""
    if not recipe.overlap_moe_expert_parallel_comm:
        return False
    several = recipe.vpp > 1 or recipe.pp == 1  # in this order: rows without a pipeline stand beside others
    return several or pipeline.generator(pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)).pairs


def schedule_pairs(recipe: Recipe) -> bool:
    """Returns whether the schedule of a pipeline decides which forwards and backwards have a partner."""
    return pairs_microbatches(recipe) and recipe.pp > 1


@mechanism(off=lambda *_: ExchangeOverlap())
def exchange_overlap(block: Block, clock: Clock, delayed: bool) -> ExchangeOverlap:
    """Returns what the exchanges of ``block`` hide behind a neighbour of the same kind; nothing without exchange.

    ``delayed``: ``delay_wgrad_compute``. Compute stretches by :data:`projector.step.timing.CONTENTION`, an exchange by
    :data:`projector.step.timing.SLOWED`, as long as both run.
    """
    forward, backward = block.forward, block.backward_input
    dispatch, combine = (_exchanges(forward, block, role) for role in ("dispatch", "combine"))
    combine_back, dispatch_back = (_exchanges(backward, block, role) for role in ("combine", "dispatch"))
    if not (dispatch and combine and combine_back and dispatch_back):
        return ExchangeOverlap()

    def work(ops: Sequence[Operator]) -> float:
        return clock.work(ops) * (1.0 + CONTENTION)

    of_shared = block.roles.get("shared_experts", frozenset())
    computed = of_shared | block.roles.get("experts", frozenset())  # together (core/models/gpt)
    shared = [op for op in forward[: forward.index(dispatch[0])] if op.name in of_shared]
    attention = [op for op in forward[: forward.index(dispatch[0])] if op not in shared]
    experts = [*shared, *_between(forward, dispatch[-1], combine[0])]
    gradients = [op for op in block.backward_weight if op.name in computed]
    after = backward[backward.index(dispatch_back[-1]) + 1 :]
    shared = [op for op in after if op.name in of_shared]
    inputs = [*_between(backward, combine_back[-1], dispatch_back[0]), *shared]
    outer = [op for op in after if op not in shared] + [op for op in block.backward_weight if op not in gradients]
    left = _column(_seconds(combine_back, clock), work(attention))
    right = _column(_seconds(combine, clock), work(outer))
    exchanges = _seconds(dispatch, clock), _seconds(dispatch_back, clock)
    middle = _middle(exchanges, work(inputs), work(gradients), work(experts), delayed)
    return ExchangeOverlap(
        forward=_spread(dispatch, middle[0], clock) | _spread(combine, right, clock),
        backward=_spread(dispatch_back, middle[1], clock) | _spread(combine_back, left, clock),
    )


def _column(exchange: float, beside: float) -> tuple[float, float]:
    """Returns (hidden seconds of an exchange, seconds lost by the compute): the shorter of both limits the overlap."""
    return _split(least(exchange * (1.0 + SLOWED), beside))


def _middle(
    exchanges: tuple[float, float], inputs: float, weights: float, experts: float, delayed: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the same for the two dispatches beside the experts' backward and forward, forward dispatch first."""
    forth, back = (seconds * (1.0 + SLOWED) for seconds in exchanges)
    before_back = inputs + (0.0 if delayed else weights)
    backward = inputs + weights
    back_begins = most(forth, before_back)  # when the second dispatch may start
    experts_begin = most(backward, forth)  # when the forward of the experts may
    compute = (0.0, backward), (experts_begin, experts_begin + experts)
    overlaps = [
        sum(most(0.0, least(high, end) - most(low, begin)) for begin, end in compute)
        for low, high in ((0.0, forth), (back_begins, back_begins + back))
    ]
    return _split(overlaps[0]), _split(overlaps[1])


def _split(window: float) -> tuple[float, float]:
    return window / (1.0 + SLOWED), window * CONTENTION / (1.0 + CONTENTION)


def _exchanges(ops: Sequence[Operator], block: Block, role: str) -> list[Collective]:
    """Returns the messages of one exchange between the ranks that share the experts: tokens and routing weights."""
    names = block.roles.get(role, frozenset())
    return [op for op in ops if isinstance(op, Collective) and op.group == "ep" and op.name in names]


def _between(ops: Sequence[Operator], first: Operator, last: Operator) -> Sequence[Operator]:
    return ops[ops.index(first) + 1 : ops.index(last)]


def _seconds(ops: Sequence[Collective], clock: Clock) -> float:
    return sum(clock.collective(op) for op in ops)


def _spread(ops: Sequence[Collective], seconds: tuple[float, float], clock: Clock) -> dict[str, tuple[float, float]]:
    """Divides (hidden, lost) ``seconds`` of an exchange among its messages, in proportion to their length."""
    total = _seconds(ops, clock)
    shares = {op.name: clock.collective(op) / total if total > 0 else 0.0 for op in ops}
    return {name: (share * seconds[0], share * seconds[1]) for name, share in shares.items()}
