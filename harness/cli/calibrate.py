"""``harness calibrate``: what measured runs say of each GPU and framework, with held-out errors and transfer tests; with
``--kernels`` the constants of kernel classes, fitted on measured kernels. Steps fit only what kernels leave.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.calibrate import ratios
from harness.cli.common import Subparsers, add_command, add_measured, measured_runs, positive, say
from harness.contracts import frame
from harness.contracts.estimates import Factor
from harness.contracts.results import Evaluation
from harness.evaluation import evaluate, experience
from harness.report import view_transfer
from harness.report.spec import metric
from harness.report.table import Report, Table, figure, listed, number, text
from harness.score import changes
from harness.score.figures import Figures
from projector import experience_file, relative
from projector.errors import InputError, Problem, nearest
from projector.io.files import write_whole
from projector.io.progress import progress

NAME = "simulate"
# Kinds of harness.kernels.calibrate, which takes long to import.
KINDS = ("gemm", "attention", "grouped", "stream")


def register(commands: Subparsers) -> None:
    parser = add_command(
        commands,
        "calibrate",
        "fit few parameters per GPU and framework and report their held-out error",
        command,
        examples=("mi355x --runs measured/runs/primus_mi355x.yaml", "--kernels h100_sxm --only gemm --dry-run"),
    )
    parser.add_argument("gpus", nargs="*", metavar="GPU", help="GPUs to show (default: all that were measured)")
    add_measured(parser)
    parser.add_argument(
        "--kernels", action="store_true", help="fit the kernel constants of each GPU and write its file"
    )
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], choices=KINDS, help="with --kernels: only these kinds"
    )
    parser.add_argument("--dry-run", action="store_true", help="with --kernels: show the errors, write nothing")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="also write parameters and intervals, as projector/experience.yaml has them",
    )
    parser.add_argument(
        "--ratios",
        type=Path,
        metavar="FILE",
        help="also write how far off ratios of two projections are, as projector/ratios.yaml has it",
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="processes (default: 1; with --kernels: 2)")


def command(args: argparse.Namespace) -> int:
    if args.kernels:
        from harness.cli import calibrate_kernels

        return calibrate_kernels.run(args)
    if args.only or args.dry_run:
        raise InputError([Problem("command line", "--only, --dry-run", "no --kernels", "--kernels beside them")])
    runs = measured_runs(args)
    present = tuple(dict.fromkeys(run.gpu for run in runs))
    unknown = [gpu for gpu in args.gpus if gpu not in present]
    if unknown:
        raise InputError(Problem("command line", "GPU", gpu, nearest(gpu, present)) for gpu in unknown)
    tools = evaluate.tools_for(NAME)[:1]
    with progress("projecting", len(runs)) as told:
        made = evaluate.evaluate([evaluate.Selected("", r) for r in runs], tools, jobs=args.jobs or 1, progress=told)
        told(words="learning")
        learnt = experience.learnt(made)
    differ = ratios.learn(changes.observed(changes.pairs(frame.part(made.once, predictor=NAME, fit="uncalibrated"))))
    if args.ratios and differ is None:
        raise InputError([Problem("measured runs", "", "too few pairs of runs", "runs that differ in a few switches")])
    if args.out and learnt is None:
        raise InputError([Problem("measured runs", "", "too few sources", "runs of many sources")])
    tables = [_table(made, args.gpus or present), *([] if learnt is None else [view_transfer.parameters(learnt)])]
    if not args.gpus:
        with progress("transferring"):
            tables += view_transfer.of_evaluation(made, NAME)
    if args.out and learnt is not None:
        write_whole(args.out, experience_file.text(learnt))
    if args.ratios and differ is not None:
        write_whole(args.ratios, relative.text(differ))
    report = Report(title=f"Calibration of {NAME}", lines=(_sentence(made),), tables=tuple(tables))
    say(args, report, most=None, written=str(args.out or ""))
    return 0


def _sentence(evaluation: Evaluation) -> str:
    fold = evaluation.laws[NAME]
    scores = ", ".join(f"{law} {score:.4f}" for law, score in fold.scores.items())
    return f"Law: {fold.law}" + (f", by the mean |ln error| of sources left out ({scores})" if scores else "")


def _table(evaluation: Evaluation, gpus: Sequence[str]) -> Table:
    def factor(of: Figures) -> Factor:
        return evaluation.factors[NAME, str(of.rows["gpu"].iloc[0])]

    made = (
        text("GPU", lambda of: of.rows["gpu"].iloc[0]),
        figure("step-time factor", lambda of: number(factor(of).value, 3)),
        figure("spread", lambda of: number(factor(of).spread, 3)),
        figure("rows", lambda of: factor(of).rows),
        figure("cells", lambda of: factor(of).cells),
        *(metric(name) for name in ("uncalibrated", "calibrated", "mape", "plain")),
    )
    fitted = sorted(gpu for gpu in gpus if (NAME, gpu) in evaluation.factors)
    lines = [Figures(frame.part(evaluation.once, gpu=gpu, predictor=NAME), evaluation.once) for gpu in fitted]
    note = (
        "Factor: mean over the cells of a GPU of what the law in use makes of its rows. Macro MAPE of TGS. Held out: each"
        " row by a law, parameters and all, that saw no row of its source."
    )
    return listed("Step-time factors", lines, made, note)
