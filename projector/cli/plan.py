"""Forecasts days, GPU-hours, energy and money for a number of tokens, under failures: ``projector plan``."""

from __future__ import annotations

import argparse

from projector.cli import runs
from projector.cli.options import add_selection, add_strict
from projector.cli.parser import Parser, add_command, add_json, price, tokens, whole
from projector.errors import InputError, Problem


def register(parser: Parser) -> None:
    add_command(
        parser,
        _run,
        examples=(
            "--config examples/deepseek_v3_h800.yaml --tokens 14.8T",
            "--model llama3.1_8b --gpu h100 --gpus 256 --tp 4 --mbs 1 --gbs 512 --seq-length 8192 "
            "--data-parallel-sharding optim --tokens 15T --price 2.5",
        ),
    )
    add_selection(parser)
    runs.add_runs(parser.add_argument_group("what was measured"))
    group = parser.add_argument_group("what is planned")
    add = group.add_argument
    add("--tokens", type=tokens, required=True, metavar="N", help="tokens of the whole run: 15T, 300B, 14.8e12")
    add(
        "--price",
        type=price,
        metavar="X|FILE",
        help="of a GPU-hour, of each GPU (h100=2,mi300x=1.8), or a YAML file with price_per_gpu_hour, price_by_gpu, "
        "energy_price_per_kwh (value, low, high), currency and source; no price is invented",
    )
    add(
        "--assume",
        action="append",
        default=[],
        metavar="KEY=V[,LOW,HIGH]",
        help="another value of an assumption, with its range (without: certain): failures_per_node_day, checkpoint_s, "
        "restart_s, run_over_steps, power_share, server_over_boards, pue; may be given again",
    )
    add("--seed", type=whole(0), default=0, metavar="N", help="of the simulation and of the intervals; default: 0")
    add_strict(group)
    add_json(group)


def _run(options: argparse.Namespace) -> None:
    from projector.cli import as_json, plan_view
    from projector.cli.inputs import naming_the_flag, one_schedule, or_none, read_case
    from projector.cli.layout import with_layout
    from projector.cli.setting_remarks import refuse_assumed
    from projector.io.terminal import show
    from projector.plan.assumptions import ASSUMPTIONS, assumed
    from projector.plan.plan import plan

    problems: list[Problem] = []
    or_none(problems, lambda: one_schedule(options, "projector performance compares them all"))
    ranges = or_none(problems, lambda: assumed(options.assume))
    or_none(problems, lambda: runs.prepare(options))
    case = or_none(problems, lambda: read_case(options))
    if case is None or ranges is None or problems:
        raise InputError(problems)
    price, gpu = options.price, case.cluster.gpu.name
    if price is not None and not price.at(gpu):
        raise InputError([Problem("--price", "", f"none of {gpu}", "price_per_gpu_hour, or one of it in price_by_gpu")])
    user_runs = runs.read_own(options)
    case = user_runs.applied_to(case)
    with naming_the_flag(options):
        case = with_layout(case, options)
        forecast = plan(
            case.workload,
            case.cluster,
            options.tokens,
            {**ranges, **(price.at(gpu) if price else {})},
            settings=case.settings,
            assumed=case.assumed,
            seed=options.seed,
            known=case.known,
        )
    if options.strict:
        defaults = (f"{name}={float(value):g}" for name, value in ranges.items() if value is ASSUMPTIONS[name])
        refuse_assumed(case.workload, forecast.made, (*case.assumed, *defaults))
    if options.json:
        content = plan_view.as_document(case, forecast, price)
        as_json.write({**content, **runs.as_values(user_runs)})
    else:
        show((*plan_view.as_page(case, forecast, price), *runs.lines(user_runs)))
