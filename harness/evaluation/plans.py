"""Plans of whole published runs: one from the rate of their own steps, one from a projection of them."""

from __future__ import annotations

from collections.abc import Iterable

from harness.evidence.totals import Total
from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.parameter import Parameter
from projector.plan.assumptions import ASSUMPTIONS, NODE, ends
from projector.plan.forecast import Figures, Forecast, Run, forecast
from projector.plan.plan import Plan, plan

_SCOPES = {
    "gpu": ("power_share",),
    "machines": ("power_share", "server_over_boards"),
    "site": ("power_share", "server_over_boards", "pue"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A published run beside its plans. ``own``: from the rate of its steps; ``planned``: from a projection of its case,
    or the reason (``refused``); ``goodput``: what failures leave at its size; ``interruptions``, ``kilowatts`` (of one
    GPU in the scope of the source): low, middle, high."""

    total: Total
    own: Forecast | None
    planned: Plan | None
    refused: str
    goodput: tuple[float, float, float]
    interruptions: tuple[float, ...] | None
    kilowatts: tuple[float, ...] | None

    def inside(self, found: Forecast | None) -> bool | None:
        """Tells whether the published GPU-hours lie within the interval of a forecast; None where either is missing."""
        if found is None or self.total.gpu_hours is None:
            return None
        return bool(found.low.gpu_hours <= self.total.gpu_hours <= found.high.gpu_hours)


def held(totals: Iterable[Total]) -> list[Held]:
    return [_beside_plans(total) for total in totals]


def _beside_plans(total: Total) -> Held:
    at_size = _forecast(total, total.tokens or 1e12, 1.0)
    refused, planned = "", None
    if total.case is not None and total.tokens is not None:
        try:
            cluster = catalogue.cluster(total.case.cluster or "")
            workload = total.case.workload()
            planned = plan(
                workload, cluster, total.tokens, ASSUMPTIONS, assumed=total.case.assumed, grow=False, published=True
            )
        except (InputError, Unsupported) as error:
            refused = str(error).partition("\n")[0]
    by_rate = None
    if total.tokens is not None and total.tgs is not None:
        by_rate = _forecast(total, total.tokens, total.tgs * total.gpus)
    figures: list[Figures] = [at_size.low, at_size.middle, at_size.high]
    low, middle, high = (float(figure.goodput) for figure in figures)
    return Held(
        total=total,
        own=by_rate,
        planned=planned,
        refused=refused,
        goodput=(low, middle, high),
        interruptions=_interruptions(total),
        kilowatts=_kilowatts(total),
    )


def _forecast(total: Total, tokens: float, tokens_a_second: float) -> Forecast:
    """Forecasts a run of ``tokens`` at a rate of ``tokens_a_second``, with steps of one second."""
    watts = catalogue.gpu(total.gpu).tdp_watts if total.gpu else 1.0
    run = Run(tokens=tokens, tokens_per_step=tokens_a_second, gpus=total.gpus, watts=watts)
    return forecast(run, {**ASSUMPTIONS, "step_seconds": Parameter(1.0)})


def _interruptions(total: Total) -> tuple[float, ...] | None:
    if total.interruptions is None:
        return None
    days, gpus = total.interruptions.days, total.interruptions.gpus
    return tuple(rate * days * gpus / NODE for rate in ends(ASSUMPTIONS["failures_per_node_day"]))


def _kilowatts(total: Total) -> tuple[float, ...] | None:
    if total.mwh is None or total.gpu is None:
        return None
    kilowatts = [catalogue.gpu(total.gpu).tdp_watts / 1e3] * 3
    for name in _SCOPES[total.of]:
        kilowatts = [power * end for power, end in zip(kilowatts, ends(ASSUMPTIONS[name]), strict=True)]
    return tuple(kilowatts)
