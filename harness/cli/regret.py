"""``harness regret``: the optimum of transformer-perf-estimates' laws under ours, and ours under its."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.common import Parser, add_command, say

if TYPE_CHECKING:
    from projector.workload.workload import Workload


def register(parser: Parser) -> None:
    add_command(
        parser,
        command,
        examples=(
            "--model megatron_1t --gpu b200 --gpus 2048",
            "--gpu h200 --domains 4,8,64 --strategies 1d,2d-seqp",
        ),
    )
    add = parser.add_argument
    add(
        "--model",
        default="megatron_1t",
        metavar="NAME",
        help="a model of the zoo with equal heads (default: megatron_1t)",
    )
    add("--gpu", default="b200", metavar="NAME|FILE", help="a GPU or a cluster, or its file (default: b200)")
    add("--gpus", type=int, default=2048, metavar="N", help="GPUs of the run (default: 2048)")
    add("--gbs", type=int, default=4096, metavar="N", help="samples of a step (default: 4096)")
    add("--seq-length", type=int, default=2048, metavar="N", help="tokens of a sample (default: 2048)")
    add("--domains", default="", metavar="N,…", help="sizes of the fast domain (default: that of the cluster)")
    add("--strategies", default="1d", metavar="NAME,…", help="1d, 2d (SUMMA), 2d-seqp (default: 1d)")
    add("--out", type=Path, metavar="FILE", help="write the table there, as Markdown")


def command(args: argparse.Namespace) -> int:
    from harness.evaluation.regret import compared, in_domains
    from harness.report import view_regret
    from projector.hardware import catalogue

    base, cluster = _base(args), catalogue.cluster(args.gpu)
    strategies = args.strategies.split(",")
    sizes = [int(size) for size in args.domains.split(",")] if args.domains else [cluster.gpus_per_node]
    found = [compared(how, base, each) for each in in_domains(cluster, sizes) for how in strategies]
    title = (
        f"{base.model.name} on {base.gpus:,} × {cluster.gpu.title}, {args.gbs:,} samples of {args.seq_length:,} tokens"
    )
    say(args, view_regret.build(title, found), out=args.out)
    return 0


def _base(args: argparse.Namespace) -> Workload:
    from harness.predictors.tpe import STRATEGIES
    from projector.errors import InputError, Problem
    from projector.workload import zoo
    from projector.workload.recipe import Recipe
    from projector.workload.workload import Workload

    wrong = [
        Problem("command line", f"--{name}", getattr(args, name.replace("-", "_")), "1 or more")
        for name in ("gpus", "gbs", "seq-length")
        if getattr(args, name.replace("-", "_")) < 1
    ]
    wrong += [
        Problem("command line", "--strategies", name, ", ".join(STRATEGIES))
        for name in args.strategies.split(",")
        if name not in STRATEGIES
    ]
    if not all(size.isdigit() for size in args.domains.split(",")) and args.domains:
        wrong.append(Problem("command line", "--domains", args.domains, "whole numbers separated by commas"))
    if wrong:
        raise InputError(wrong)
    recipe = Recipe(micro_batch_size=1, global_batch_size=args.gbs, seq_length=args.seq_length)
    return Workload(model=zoo.load(args.model), recipe=recipe, gpus=args.gpus, framework="analytic")
