"""Prices everything that a step consists of: stages of its layers, weights of its ranks, a clock for what surrounds them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from projector.collectives.model import Pricing
from projector.collectives.placement import groups as place
from projector.dataclass import dataclass
from projector.errors import NoMeasurement
from projector.frameworks import Resolved
from projector.hardware.types import Cluster, Efficiency
from projector.kernels import backends
from projector.kernels.protocol import KernelModel
from projector.kernels.settings import Settings
from projector.kernels.simulate import Simulated, shared
from projector.memo import BoundedCache, IdentityKey
from projector.memory.holding import placement
from projector.operators.types import Operator
from projector.operators.weights import WeightSet
from projector.step import unfed_stages
from projector.step.block_times import BlockTimes, blocks_of, clock_of
from projector.step.cycle import by_rank, once_a_step, stage_row
from projector.step.slowest_chip import slowed, slowest
from projector.step.stages import StageBlock, StageTime, owned
from projector.step.timing import Clock
from projector.workload.composition import compositions


@dataclass(frozen=True, eq=False)
class Priced:
    """A priced step. ``parts``, ``times``: the blocks of every virtual stage in order, and the times of one micro-batch
    of it. ``idle``: seconds that a step waits for stages that compute without input. ``model``, ``price``: of kernels,
    on a usual chip, and of collectives; ``slowest``: time of a product on the slowest chip over that on a usual one."""

    resolved: Resolved
    parts: Sequence[tuple[StageBlock, ...]]
    times: Sequence[StageTime]
    idle: float
    layers: BlockTimes
    model: KernelModel
    price: Pricing
    slowest: float = 1.0

    @cached_property
    def held(self) -> list[WeightSet]:
        """Returns the weights with gradients of every virtual stage; one object for equal stages."""
        weights = {id(blocks): owned(self.resolved, blocks) for blocks in self.parts}
        return [weights[id(blocks)] for blocks in self.parts]

    @cached_property
    def clock(self) -> Clock:
        """Returns the clock for the layers and for what the device computes once a step, on any rank."""
        ops: dict[Operator, None] = {}
        for whole in {id(each): each for each in by_rank(self.held, placement(self.resolved))}.values():
            ops |= once_a_step(self.resolved, whole)
        seconds = dict(zip(ops, self.model.times(list(ops)).seconds.tolist(), strict=True))  # type: ignore[arg-type]
        layers = self.layers.clock
        return replace(layers, kernels=ChainMap(slowed(seconds, self.slowest), layers.kernels))  # type: ignore[arg-type]


_RUNS: BoundedCache[Resolved] = BoundedCache(512)  # equal runs share one object, and the blocks cached with it
_PRICED: BoundedCache[Priced] = BoundedCache(128)


def priced(
    resolved: Resolved,
    cluster: Cluster,
    efficiency: Efficiency,
    mode: str,
    settings: Settings,
    corrected: Callable[[KernelModel], KernelModel] | None = None,
) -> Priced:
    """Returns the step of ``resolved``, priced by the kernel model of ``mode``, which ``corrected`` may wrap.

    Raises :class:`NoMeasurement` in ``benchmark`` mode on a GPU without measured tables.
    """
    resolved = _RUNS.get(resolved, lambda: resolved)
    kernels = _kernels(resolved, cluster, efficiency, mode, settings)
    model = corrected(kernels) if corrected else kernels
    private = mode != "simulate" or corrected is not None  # a kernel model of this projection alone
    slowdown, price = slowest(efficiency, resolved.workload.gpus), pricing(resolved, cluster, efficiency)

    _, kinds = compositions(resolved.workload.model, resolved.workload.recipe)

    def staged(run: Resolved) -> tuple[BlockTimes, list[tuple[StageBlock, ...]], list[StageTime]]:
        parts = blocks_of(run, kinds)
        clock = clock_of(parts.values(), run.execution, model.times, price.seconds, slowdown)
        layers = BlockTimes(run, parts, clock)
        by_kind = {kind: layers.stage(kind) for kind in dict.fromkeys(kinds)}
        return layers, [by_kind[kind][0] for kind in kinds], [by_kind[kind][1] for kind in kinds]

    def make() -> Priced:
        (layers, parts, times), idle, empty = staged(resolved), 0.0, unfed_stages.fed_with_zeros(resolved)
        if empty:
            full, unfed = (np.array([stage_row(time) for time in private]).T for private in (times, staged(empty)[2]))
            idle = unfed_stages.seconds(full, unfed, resolved.workload.recipe.pp)
        return Priced(resolved, parts, times, idle, layers, model, price, slowdown)

    key = IdentityKey(cluster), IdentityKey(efficiency), settings, IdentityKey(model), resolved
    return make() if private else _PRICED.get(key, make)


def pricing(resolved: Resolved, cluster: Cluster, efficiency: Efficiency) -> Pricing:
    """Returns the prices of the collectives of a run."""
    recipe, across_nodes = resolved.workload.recipe, resolved.execution.data_parallel.across_nodes
    groups = place(recipe, resolved.workload.gpus, cluster, shards_apart=across_nodes)
    return Pricing(groups, cluster, efficiency, recipe.moe_deepep_num_sms)


def priced_by(resolved: Resolved) -> Hashable:
    """Returns what :func:`pricing` depends on beside the numbers of a run (:func:`projector.frameworks.scope.numbers`)."""
    recipe = resolved.workload.recipe
    instances, units = recipe.num_distributed_optimizer_instances, recipe.moe_deepep_num_sms
    return recipe.tp2, instances, units, recipe.domain, resolved.execution.data_parallel.across_nodes


def _kernels(
    resolved: Resolved, cluster: Cluster, efficiency: Efficiency, mode: str, settings: Settings
) -> KernelModel:
    device, sustained = settings.device(cluster.gpu, efficiency)
    analytic = shared(device, sustained, resolved.execution)
    simulated = backends.over(settings.gemm_backend, device, sustained, analytic)
    if mode == "simulate":
        return simulated
    from projector.kernels import recorded

    if not recorded.available(cluster.gpu.name):
        raise NoMeasurement(f"no measurement for {cluster.gpu.name}")
    alone = partial(Simulated, device, sustained, resolved.execution, alone=True) if simulated is analytic else None
    return recorded.recorded_over(cluster.gpu, simulated, alone)
