"""The layers of a run with their times, shared by all configurations that only lay them out otherwise.

What one module costs depends on the view that modules have (:mod:`projector.frameworks.scope`), on the device, on how the
groups lie in which layers communicate, and on the few switches that :func:`problem_of` names; never on the number of
stages, the batch or the schedule. What is computed again says how often it is paid.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from itertools import chain

from projector.dataclass import dataclass
from projector.frameworks.scope import as_layers_see, as_modules_see
from projector.frameworks.types import Resolved
from projector.hardware.types import GroupShape
from projector.kernels.protocol import KernelModel
from projector.operators.types import Collective, Operator
from projector.operators.weights import Held
from projector.step.neighbours import pairs_up
from projector.step.slowest import slowed
from projector.step.stages import (
    Part,
    StageTime,
    after_exchange,
    block_time,
    compute_operators,
    owned,
    parts,
    splits,
    stage_time,
)
from projector.step.timing import Clock
from projector.workload.composition import Composition, compositions

_GROUPS = ("world", "tp", "tp2", "cp", "ep", "etp", "tp_ep")
_SHARDED = ("dp", "dp_shard", "dp_replicate", "edp", "edp_shard", "edp_replicate")
"""Groups in which layers communicate: always, and where their weights or gradients travel with every micro-batch."""


def problem_of(resolved: Resolved, groups: Mapping[str, GroupShape]) -> Hashable:
    """Equal for runs on one cluster whose layers take the same time: the key of their :class:`Layers`."""
    workload, sharing = resolved.workload, resolved.execution.data_parallel
    sharded: Hashable = None
    if travels(resolved):
        sharded = (workload.dp, workload.edp, sharing.copies(workload), *(groups.get(name) for name in _SHARDED))
    around = switches_of(resolved), sharded
    return (as_modules_see(resolved), *around, *(groups.get(name) for name in _GROUPS))


def switches_of(resolved: Resolved) -> Hashable:
    """What the time of a block depends on beside what modules see and how groups lie."""
    recipe, sharing = resolved.workload.recipe, resolved.execution.data_parallel
    return (
        pairs_up(recipe),
        splits(recipe),
        after_exchange(resolved),
        bool(recipe.defer_embedding_wgrad_compute) and recipe.pp > 1,
        bool(recipe.overlap_grad_reduce),
        sharing.gathers_every_microbatch(recipe),
        sharing.reduces_every_microbatch(resolved.workload),
    )


def travels(resolved: Resolved) -> bool:
    """Whether weights or gradients travel with every micro-batch."""
    recipe, sharing = resolved.workload.recipe, resolved.execution.data_parallel
    return sharing.gathers_every_microbatch(recipe) or sharing.reduces_every_microbatch(resolved.workload)


@dataclass(frozen=True, eq=False)
class Stage:
    """One virtual stage: its blocks in order, as ``view`` has them, and one micro-batch of it."""

    parts: tuple[Part, ...]
    time: StageTime
    view: Resolved

    @cached_property
    def held(self) -> Held:
        """Its weights with gradients."""
        return owned(self.view, self.parts)


class Layers:
    """Stages of one layer problem; operators are priced once, through one vectorised call for all that are new.

    ``slowest``: time of a product on the slowest chip over that on a usual one (:mod:`projector.step.slowest`)."""

    def __init__(
        self,
        resolved: Resolved,
        model: KernelModel,
        collective: Callable[[Collective], float],
        slowest: float = 1.0,
    ) -> None:
        self._model, self._slowest = model, slowest
        self._kernels: dict[Operator, float] = {}
        self._measured: set[Operator] = set()
        self._times: dict[tuple[int, bool], StageTime] = {}
        self._stages: dict[Resolved, dict[Composition, Stage]] = {}
        self.clock = Clock(
            kernels=self._kernels,
            measured=self._measured,
            collective=collective,
            execution=resolved.execution,
        )

    def stages(self, resolved: Resolved) -> list[Stage]:
        """The virtual stages of a run with this problem, in pipeline order."""
        _, kinds = compositions(resolved.workload.model, resolved.workload.recipe)
        view = as_layers_see(resolved)
        known = self._stages.setdefault(view, {})
        made = {kind: parts(resolved, kind) for kind in dict.fromkeys(kinds) if kind not in known}
        self._price(compute_operators(chain.from_iterable(made.values()), self._times))
        for kind, blocks in made.items():
            time = stage_time(resolved, blocks, self.clock, self._times)
            known[kind] = Stage(blocks, time, view)
        return [known[kind] for kind in kinds]

    def blocks(self, resolved: Resolved, named: Mapping[Hashable, Part]) -> Mapping[Hashable, StageTime]:
        """Times of blocks of a run with this problem, apart from any stage."""
        self._price(compute_operators(named.values(), self._times))
        for part in named.values():
            if part.key not in self._times:
                self._times[part.key] = block_time(resolved, part, self.clock)
        return {name: self._times[part.key] for name, part in named.items()}

    def additive(self, part: Part) -> tuple[tuple[float, float], ...]:
        """Of a block of a stage that was asked for: see :func:`added`."""
        return added(self._times[part.key])

    def _price(self, operators: Iterable[Operator]) -> None:
        new = [op for op in dict.fromkeys(operators) if op not in self._kernels]
        if not new:
            return
        times = self._model.times(new)  # type: ignore[arg-type]
        priced = dict(zip(new, times.seconds.tolist(), strict=True))
        self._kernels.update(slowed(priced, self._slowest))
        self._measured.update(op for op, known in zip(new, times.measured.tolist(), strict=True) if known)


def added(time: StageTime) -> tuple[tuple[float, float], ...]:
    """What a block adds to the device's and to the host's time of its stage: forward, backward without and of the weight
    gradients where these are apart. A stage lasts as long as the larger sum, or longer."""
    return tuple((phase.device, sum(s.host for s in phase.segments)) for phase in time.phases)
