"""What a plan rests on beside the step: each a parameter with its source and the 90 % range in which it is moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import cast

from projector.errors import InputError, Problem, nearest
from projector.parameter import Parameter, parameter

Ranges = Mapping[str, Parameter]

NODE = parameter(
    8, kind="published", source="GPUs of the nodes whose failures are counted: arXiv 2410.21680", unit="GPUs"
)
ASSUMPTIONS = cast(
    Ranges,
    {
        "failures_per_node_day": parameter(
            0.0039,
            kind="derived",
            source="geometric mean of 6.50 and 2.34 failures in 1,000 days of an 8-GPU node, two A100 clusters, 11 "
            "months, Kokolis et al., arXiv 2410.21680",
            low=0.00234,
            high=0.0065,
            unit="1/day",
        ),
        "checkpoint_s": parameter(
            40.0,
            kind="published",
            source="2.3 TB in 40 s while training stops: bigscience-workshop/bigscience, chronicles of tr11-176B-ml; "
            "asynchronous saves 6.3 s (7B, PyTorch and IBM), 5 minutes in arXiv 2410.21680",
            low=5.0,
            high=300.0,
            unit="s",
        ),
        "restart_s": parameter(
            600.0,
            kind="published",
            source="5 to 20 minutes, arXiv 2410.21680; detection and diagnosis below 10 minutes, arXiv 2402.15627",
            low=300.0,
            high=1200.0,
            unit="s",
        ),
        "run_over_steps": parameter(
            1.05,
            kind="assumed",
            source="time of a run without failures over its counted steps: evaluation, batch ramp, stalls, steps taken "
            "back. BLOOM-176B and Llama 3 405B lost 10 to 17 % to these and failures together",
            low=1.0,
            high=1.15,
            scored=True,
        ),
        "power_share": parameter(
            0.76,
            kind="published",
            source="mean draw of a server with 8 H100 that trains a transformer over its rating of 10.2 kW, arXiv "
            "2506.14551; its peak 0.82, arXiv 2412.08602",
            low=0.63,
            high=0.82,
        ),
        "server_over_boards": parameter(
            1.82,
            kind="derived",
            source="rated power of a server over that of its boards: DGX H100 10.2 kW over 8 × 700 W; GB200 NVL72 132 kW "
            "over 72 × 1.2 kW (1.53); DGX A100 6.5 kW over 8 × 400 W (2.03)",
            low=1.53,
            high=2.03,
        ),
        "pue": parameter(
            1.2,
            kind="published",
            source="power of a site over that of its machines: 1.09 to 1.2 as large operators declare, 1.55 mean of the "
            "industry in 2022 (Uptime Institute)",
            low=1.08,
            high=1.55,
        ),
    },
)
#: What a table says for each name; further ones come from the projection and the prices.
WORDS = {
    "failures_per_node_day": "failures of 8 GPUs a day",
    "checkpoint_s": "seconds that a save stops training",
    "restart_s": "seconds from a failure to training",
    "run_over_steps": "run without failures over its steps",
    "power_share": "power drawn over rated",
    "server_over_boards": "rated server over its boards",
    "pue": "power of the site over its machines (PUE)",
    "step_seconds": "seconds of a step (projected)",
    "slowest_chip": "step with another spread of clocks",
    "price_per_gpu_hour": "price of a GPU-hour",
    "energy_price_per_kwh": "price of a kWh",
}


_BOUNDS: Mapping[str, tuple[float, float]] = parameter(
    {
        "failures_per_node_day": (1e-9, 100.0),
        "checkpoint_s": (1e-3, 1e5),
        "restart_s": (1e-3, 1e6),
        "run_over_steps": (1.0, 100.0),
        "power_share": (0.01, 2.0),
        "server_over_boards": (1.0, 10.0),
        "pue": (1.0, 10.0),
    },
    kind="assumed",
    source="what tells a value from one of another unit",
)


def assumed(texts: Sequence[str], where: str = "--assume") -> Ranges:
    """:data:`ASSUMPTIONS` with what ``KEY=VALUE`` or ``KEY=VALUE,LOW,HIGH`` texts say over them; a value without a range
    is certain. Raises :class:`InputError` with every mistake."""
    found, problems = dict(ASSUMPTIONS), list[Problem]()
    for text in texts:
        key, _, values = text.partition("=")
        name = key.strip().replace("-", "_")
        if name not in ASSUMPTIONS:
            problems.append(Problem(where, "", text, nearest(name, tuple(ASSUMPTIONS))))
            continue
        low, high = _BOUNDS[name]
        made = ranged(values.split(","), low, high, ASSUMPTIONS[name].unit, "command line")
        if made is None:
            expected = f"{name}=VALUE or VALUE,LOW,HIGH: numbers from {low:g} to {high:g}, VALUE between LOW and HIGH"
            problems.append(Problem(where, "", text, expected))
            continue
        found[name] = made
    if problems:
        raise InputError(problems)
    return found


def ranged(values: Sequence[object], low: float, high: float, unit: str, source: str) -> Parameter | None:
    """One number, or one with its range (value, low, high); None where they are not finite, ordered and in bounds."""
    numbers = [_number(each) for each in values]
    if len(numbers) not in (1, 3) or not all(isfinite(each) and low <= each <= high for each in numbers):
        return None
    value, least, most = numbers if len(numbers) == 3 else numbers * 3
    if not least <= value <= most:
        return None
    return Parameter(value, "assumed", source, least, most, unit)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float("nan")
    try:
        return float(value)
    except (ValueError, OverflowError):
        return float("nan")


def ends(made: Parameter) -> tuple[float, float, float]:
    """(low, value, high) of a parameter; without a range the value thrice."""
    return (made if made.low is None else made.low, made.value, made if made.high is None else made.high)
