"""The blocks of a run, or of many runs whose sizes are columns, with their times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from projector.frameworks.types import Resolved
from projector.kernels.protocol import ComputeOp, Times
from projector.mechanisms import Execution
from projector.operators.types import Collective
from projector.step.combined_1f1b import pairs_microbatches
from projector.step.slowest_chip import slowed
from projector.step.stages import (
    StageBlock,
    StageTime,
    block_time,
    compute_operators,
    counted_names,
    named,
    splits,
    stage_from_blocks,
)
from projector.step.timing import Clock
from projector.workload.composition import Composition


def block_switches(resolved: Resolved) -> Hashable:
    """Returns what the time of a block depends on beside what modules see and how groups lie."""
    recipe, sharing = resolved.workload.recipe, resolved.execution.data_parallel
    return (
        pairs_microbatches(recipe),
        splits(recipe),
        bool(recipe.defer_embedding_wgrad_compute) and recipe.pp > 1,
        bool(recipe.overlap_grad_reduce),
        sharing.gathers_every_microbatch(recipe),
        sharing.reduces_every_microbatch(resolved.workload),
    )


def moves_every_microbatch(resolved: Resolved) -> bool:
    """Returns whether weights or gradients travel with every micro-batch."""
    recipe, sharing = resolved.workload.recipe, resolved.execution.data_parallel
    return sharing.gathers_every_microbatch(recipe) or sharing.reduces_every_microbatch(resolved.workload)


def blocks_of(run: Resolved, kinds: Iterable[Composition]) -> dict[Hashable, StageBlock]:
    """Returns the blocks of virtual stages of these ``kinds``, by name (:func:`projector.step.stages.counted_names`)."""
    return {name: named(run, name) for name in dict.fromkeys(name for kind in kinds for name, _ in counted_names(kind))}


def clock_of(
    blocks: Iterable[StageBlock],
    execution: Execution,
    times: Callable[[Sequence[ComputeOp]], Times],
    collective: Callable[[Collective], float],
    slowest: float = 1.0,
) -> Clock:
    """Returns the clock of ``blocks``, whose operators are priced once, through one call of the kernel model.
    ``slowest``: time of a product on the slowest chip over that on a usual one (:mod:`projector.step.slowest_chip`)."""
    ops = list(dict.fromkeys(compute_operators(blocks)))
    priced = times(ops)  # type: ignore[arg-type]
    return Clock(
        kernels=slowed(dict(zip(ops, priced.seconds.tolist(), strict=True)), slowest),
        measured={op for op, known in zip(ops, priced.measured.tolist(), strict=True) if known},
        collective=collective,
        execution=execution,
    )


class BlockTimes:
    """The ``times`` of blocks (``parts``) of a run by ``clock``, by name."""

    def __init__(self, run: Resolved, parts: Mapping[Hashable, StageBlock], clock: Clock) -> None:
        self._run, self.parts, self.clock = run, parts, clock
        self.times = {name: block_time(run, part, clock) for name, part in parts.items()}

    def stage(self, kind: Composition) -> tuple[tuple[StageBlock, ...], StageTime]:
        """Returns the blocks of a virtual stage of ``kind`` in order, and its times of a micro-batch."""
        blocks = [(self.parts[name], self.times[name], number) for name, number in counted_names(kind)]
        parts = tuple(part for part, _, number in blocks for part in (part,) * number)
        return parts, stage_from_blocks(self._run, blocks)


def added(time: StageTime) -> tuple[tuple[float, float], ...]:
    """Returns what a block adds to the device's and to the host's time of its stage: forward, backward without split
    weight gradients, split weight gradients. A stage lasts as long as the larger sum, or longer."""
    return tuple((phase.device, sum(s.host for s in phase.segments)) for phase in time.phases)
