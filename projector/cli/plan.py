"""Forecasts days, GPU-hours, energy and money for a number of tokens, under failures: ``projector plan``."""

from __future__ import annotations

import argparse

from projector.cli import runs
from projector.errors import InputError, Problem, or_none

KNOWN = runs.FLAGS


def command(options: argparse.Namespace) -> None:
    from projector.cli import as_json, plan_view
    from projector.cli.inputs import naming_the_flag, one_schedule, read_case
    from projector.cli.layout import with_layout
    from projector.cli.setting_remarks import refuse_assumed
    from projector.io.table import values
    from projector.plan.assumptions import ASSUMPTIONS, assumed
    from projector.plan.plan import plan
    from projector.plan.price import unstated

    problems: list[Problem] = []
    or_none(problems, lambda: one_schedule(options, "projector performance compares them all"))
    ranges = or_none(problems, lambda: assumed(options.assume))
    or_none(problems, lambda: runs.prepare(options))
    case = or_none(problems, lambda: read_case(options))
    if case is None or ranges is None or problems:
        raise InputError(problems)
    price, gpu = options.price, case.cluster.gpu.name
    if price is not None and not price.at(gpu):
        raise unstated(gpu)
    user_runs = runs.read_own(options)
    case = user_runs.applied_to(case)
    with naming_the_flag(options):
        case = with_layout(case, options)
        inputs = {**ranges, **(price.at(gpu) if price else {})}
        told = values(case, "settings assumed known")
        forecast = plan(case.workload, case.cluster, options.tokens, inputs, seed=options.seed, **told)
    if options.strict:
        defaults = (f"{name}={float(value):g}" for name, value in ranges.items() if value is ASSUMPTIONS[name])
        refuse_assumed(case.workload, forecast.made, (*case.assumed, *defaults))
    as_json.tell(
        options.json,
        lambda: {**plan_view.as_document(case, forecast, price), **runs.as_values(user_runs)},
        lambda: (*plan_view.as_page(case, forecast, price), *runs.lines(user_runs)),
    )
