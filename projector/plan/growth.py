"""The same run on more GPUs: more replicas, the same batch as long as every replica has a micro-batch to train on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster, Efficiency
from projector.kernels.settings import Settings
from projector.parameter import Parameter, parameter
from projector.plan.forecast import Forecast
from projector.projection import Projection, project
from projector.step.slowest import slowest
from projector.workload.workload import Workload

MOST = parameter(131_072, kind="published", source="the largest job that arXiv 2410.21680 foresees", unit="GPUs")
_SPREAD = "clock.spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One number of GPUs: its step and its figures, or why there are none (``refused``). ``slowest``: time of a product on
    the slowest of them over that on a usual one."""

    gpus: int
    made: Projection | None
    slowest: float
    forecast: Forecast | None = None
    refused: str = ""


def sizes(load: Workload, cluster: Cluster, settings: Settings) -> Iterator[Size]:
    """The run on twice the GPUs, again and again up to :data:`MOST`, without figures. The batch stays while the framework
    takes it; else it doubles with the GPUs. Ends at the first size that no model covers, with the reason."""
    efficiency, gpus, batch = efficiency_of(cluster.gpu), 2 * load.gpus, load.recipe.global_batch_size
    while gpus <= MOST:
        made, reason = None, ""
        for each in (batch, 2 * batch):
            grown = replace(load, gpus=gpus, recipe=replace(load.recipe, global_batch_size=each))
            try:
                made, batch = project(grown, cluster, settings=settings), each
                break
            except (InputError, Unsupported) as error:
                reason = reason or str(error).partition("\n")[0]
        yield Size(gpus=gpus, made=made, slowest=slowest(efficiency, gpus), refused="" if made else reason)
        if made is None:
            return
        gpus *= 2


def slowest_chip(load: Workload, cluster: Cluster, settings: Settings, made: Projection) -> Parameter | None:
    """Time of a step at the ends of what is known of the spread of clocks, over that of ``made``; None where the
    device has none."""
    known = efficiency_of(cluster.gpu)
    spread = known.parameters.get(_SPREAD)
    if spread is None or spread.low is None or spread.high is None:
        return None
    low, high = (_step(load, cluster, settings, known, end) / made.step_seconds for end in (spread.low, spread.high))
    return Parameter(1.0, "derived", f"{_SPREAD} {spread.low:g} to {spread.high:g}: {spread.source}", low, high)


def _step(load: Workload, cluster: Cluster, settings: Settings, known: Efficiency, spread: float) -> float:
    other = Parameter(spread, "assumed", "an end of its range")
    changed = Efficiency(gpu=known.gpu, parameters={**known.parameters, _SPREAD: other})
    return project(load, cluster, efficiency=changed, settings=settings).step_seconds
