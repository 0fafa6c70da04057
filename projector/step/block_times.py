"""The blocks of a run, or of many runs whose sizes are columns, with their times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from projector.frameworks.types import Resolved
from projector.kernels.protocol import ComputeOp, Times
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
    synchronises_after_exchange,
)
from projector.step.timing import Clock
from projector.workload.composition import Composition


def block_switches(resolved: Resolved) -> Hashable:
    """Returns what the time of a block depends on beside what modules see and how groups lie."""
    recipe, sharing = resolved.workload.recipe, resolved.execution.data_parallel
    return (
        pairs_microbatches(recipe),
        splits(recipe),
        synchronises_after_exchange(resolved),
        bool(recipe.defer_embedding_wgrad_compute) and recipe.pp > 1,
        bool(recipe.overlap_grad_reduce),
        sharing.gathers_every_microbatch(recipe),
        sharing.reduces_every_microbatch(resolved.workload),
    )


def moves_every_microbatch(resolved: Resolved) -> bool:
    """Returns whether weights or gradients travel with every micro-batch."""
    recipe, sharing = resolved.workload.recipe, resolved.execution.data_parallel
    return sharing.gathers_every_microbatch(recipe) or sharing.reduces_every_microbatch(resolved.workload)


class BlockTimes:
    """The blocks (``parts``) of virtual stages of these ``kinds`` and their ``times``, by name
    (:func:`projector.step.stages.counted_names`). Operators are priced once, through one call of the kernel model.
    ``slowest``: time of a product on the slowest chip over that on a usual one (:mod:`projector.step.slowest_chip`)."""

    def __init__(
        self,
        run: Resolved,
        kinds: Iterable[Composition],
        times: Callable[[Sequence[ComputeOp]], Times],
        collective: Callable[[Collective], float],
        slowest: float = 1.0,
    ) -> None:
        names = dict.fromkeys(name for kind in kinds for name, _ in counted_names(kind))
        self.parts: dict[Hashable, StageBlock] = {name: named(run, name) for name in names}
        ops = list(dict.fromkeys(compute_operators(self.parts.values())))
        priced = times(ops)  # type: ignore[arg-type]
        self.clock = Clock(
            kernels=slowed(dict(zip(ops, priced.seconds.tolist(), strict=True)), slowest),
            measured={op for op, known in zip(ops, priced.measured.tolist(), strict=True) if known},
            collective=collective,
            execution=run.execution,
        )
        self.times = {name: block_time(run, part, self.clock) for name, part in self.parts.items()}
        self._run = run

    def stage(self, kind: Composition) -> tuple[tuple[StageBlock, ...], StageTime]:
        """Returns the blocks of a virtual stage of ``kind``, one of ``kinds``, in order, and its times of a micro-batch."""
        blocks = [(self.parts[name], self.times[name], number) for name, number in counted_names(kind)]
        parts = tuple(part for part, _, number in blocks for part in (part,) * number)
        return parts, stage_from_blocks(self._run, blocks)


def added(time: StageTime) -> tuple[tuple[float, float], ...]:
    """Returns what a block adds to the device's and to the host's time of its stage: forward, backward without split
    weight gradients, split weight gradients. A stage lasts as long as the larger sum, or longer."""
    return tuple((phase.device, sum(s.host for s in phase.segments)) for phase in time.phases)
