"""Every collective of one step on the rank that works longest: what it is, how often, how long, and how much is hidden.

Hidden and exposed seconds add up to those of the collective; exposed ones add up, group by group, to the parts ``tp_s``,
``ep_s``, ``cp_s``, ``pp_s`` and ``dp_s`` of the step. Waits for other ranks' communication have rows without a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from projector.collectives.model import Pricing
from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.operators.types import Collective
from projector.pipeline.types import Schedule
from projector.step.run import GROUP_KEY, Step, owned_by_rank
from projector.step.stage_messages import activations, copies, tied
from projector.step.stages import StageBlock, messages
from projector.step.timing import Clock

OTHERS = "wait for other ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of collective. ``group``: as of :class:`projector.operators.types.Collective`; ``part``: the part of the
    step it belongs to (``tp_s``, …); ``bytes``: of one message; ``count``: messages a step; ``seconds``: of all
    messages, = ``hidden`` + ``exposed``."""

    name: str
    group: str
    part: str
    operation: str = ""
    algorithm: str = ""
    bytes: float = 0.0
    count: float = 0.0
    seconds: float
    hidden: float = 0.0

    @property
    def exposed(self) -> float:
        return max(0.0, self.seconds - self.hidden)


def traffic(
    resolved: Resolved, stages: Sequence[Sequence[StageBlock]], clock: Clock, price: Pricing, step: Step
) -> tuple[Traffic, ...]:
    """Returns the collectives of ``step``, by part, the longest first. ``stages``: blocks by virtual stage."""
    schedule = step.timeline.compiled.schedule
    own_stages = [stages[v] for v in schedule.placement[step.rank]]
    inside = list(_inside(resolved, own_stages, clock, price, schedule.each))
    rows = [
        *_hidden_as_in_step(inside, step.breakdown),
        *_boundaries(resolved, schedule, step, clock, price),
        *_exchange(resolved, stages, inside, step, clock, price),
    ]
    order = [*dict.fromkeys(GROUP_KEY.values()), "dp_s"]
    merged = _merged(row for row in rows if row.seconds > 0)
    return tuple(sorted(merged, key=lambda row: (order.index(row.part), -row.seconds)))


def _row(op: Collective, seconds: float, hidden: float, count: float, price: Pricing) -> Traffic:
    return Traffic(
        name=op.name,
        group=op.group,
        part=GROUP_KEY.get(op.group, "dp_s"),
        operation=op.kind,
        algorithm=price.algorithm(op),
        bytes=op.bytes,
        count=count,
        seconds=count * seconds,
        hidden=count * hidden,
    )


def _inside(
    resolved: Resolved, stages: Sequence[Sequence[StageBlock]], clock: Clock, price: Pricing, m: int
) -> Iterator[Traffic]:
    """Yields what the forwards and backwards of the rank's stages issue, ``m`` times each."""
    for stage in stages:
        for part in stage:
            for message in messages(resolved, part, clock):
                yield _row(message.op, message.seconds, message.hidden, m, price)


def _hidden_as_in_step(rows: Sequence[Traffic], parts: Mapping[str, float]) -> Iterator[Traffic]:
    """Scales hidden seconds to those of the step: an exchange without a partner micro-batch is exposed."""
    for part in {row.part for row in rows}:
        in_part = [row for row in rows if row.part == part]
        hidden = sum(row.hidden for row in in_part)
        unhidden = parts[part] - sum(row.exposed for row in in_part) if part != "dp_s" else 0.0
        share = max(0.0, 1.0 - unhidden / hidden) if hidden > 0 else 0.0
        yield from (replace(row, hidden=row.hidden * share) for row in in_part)


def _boundaries(resolved: Resolved, schedule: Schedule, step: Step, clock: Clock, price: Pricing) -> Iterator[Traffic]:
    """Yields the activations and gradients that the rank sends and receives; longer delays are waits for other ranks."""
    stages = schedule.placement[step.rank]
    rows = [
        replace(_row(replace(op, name=name), clock.collective(op), 0.0, times * schedule.each, price), part="pp_s")
        for stage, op in enumerate(activations(resolved, schedule))
        for name in ("p2p.activation", "p2p.gradient")
        if op is not None and (times := (stage in stages) + (stage + 1 in stages))
    ]
    yield from _with_exposed(rows, step.breakdown["pp_s"], "pp")


def _exchange(
    resolved: Resolved,
    stages: Sequence[Sequence[StageBlock]],
    inside: Sequence[Traffic],
    step: Step,
    clock: Clock,
    price: Pricing,
) -> Iterator[Traffic]:
    """Yields the gradient reduction and parameter gather around the pipeline, once a step."""
    schedule, held = step.timeline.compiled.schedule, owned_by_rank(resolved, stages)
    whole = held[step.rank]
    workload, sharing = resolved.workload, resolved.execution.data_parallel
    reduce = () if sharing.reduces_every_microbatch(workload) else sharing.reduction(workload, whole)
    reduce += (*copies(resolved, schedule, step.rank, whole), *tied(resolved, schedule, held)[step.rank])
    fetch = () if sharing.gathers_every_microbatch(workload.recipe) else sharing.gather(workload, whole)
    left = step.breakdown["dp_s"] - sum(row.exposed for row in inside if row.part == "dp_s")
    first = min(left, step.gather)
    for ops, shown in ((fetch, first), (reduce, left - first)):
        yield from _with_exposed([_row(op, clock.collective(op), 0.0, 1.0, price) for op in ops], shown, "dp")


def _with_exposed(rows: Sequence[Traffic], shown: float, group: str) -> Iterator[Traffic]:
    """Exposes ``shown`` seconds of ``rows`` in proportion; any excess over their sum is a wait for other ranks."""
    total = sum(row.seconds for row in rows)
    share = min(1.0, max(0.0, shown) / total) if total > 0 else 0.0
    yield from (replace(row, hidden=row.seconds * (1.0 - share)) for row in rows)
    excess = shown - share * total
    if excess > 1e-12:
        yield Traffic(name=OTHERS, group=group, part=GROUP_KEY.get(group, "dp_s"), seconds=excess)


def _merged(rows: Iterable[Traffic]) -> Iterator[Traffic]:
    """Sums rows of one name, group, algorithm and size."""
    groups: dict[tuple[str, str, str, float], list[Traffic]] = {}
    for row in rows:
        groups.setdefault((row.name, row.group, row.algorithm, row.bytes), []).append(row)
    for first, *rest in groups.values():
        names = ("count", "seconds", "hidden")
        yield replace(first, **{n: sum((getattr(other, n) for other in rest), getattr(first, n)) for n in names})
