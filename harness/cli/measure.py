"""``harness measure``: runs real trainings on the devices of this machine, keeps their logs, and ingests these."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.common import add_command, folder_problems
from projector.cli import as_json
from projector.cli.parser import Parser
from projector.io import terminal
from projector.io.progress import progress
from projector.io.table import NONE, Table

if TYPE_CHECKING:
    from harness.measure.spec import Plan
    from harness.measure.train_plan import Trained

DEFAULT_OUT = Path("out") / "measure"


def register(parser: Parser) -> None:
    add_command(parser, command, {"--out": {"default": Path(os.environ.get("OUTPUT_DIR") or DEFAULT_OUT)}})


def command(args: argparse.Namespace) -> int:
    from harness.measure import train_plan

    plan = _plan(args)
    with watching(len(plan.jobs) * plan.repeat) as advance:
        done = train_plan.train(plan, args.out, str(args.spec), advance)
    if args.json:
        table = _table(done)
        names = [column.title.replace(" ", "_").replace("/", "_") for column in table.columns]
        runs = [dict(zip(names, row, strict=True)) for row in table.rows]
        as_json.write({"command": "measure", "runs": runs, "written": str(args.out)})
        return 0
    show(done)
    print(f"written to {args.out}: {len(done)} logs, runs.yaml")
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    from harness.evidence import shelf
    from harness.measure import spec
    from projector.errors import Problem, raise_all, unknown

    args.spec = shelf.suite(args.spec)
    plan = spec.read(args.spec)
    strategies = args.strategy or [name for name in [os.environ.get("PARALLEL", "")] if name in spec.STRATEGIES]
    plan = spec.by_strategy(plan, strategies, str(args.spec)) if strategies else plan
    named = {job.id: {"all", job.id, job.id.removesuffix(f"-{job.strategy}")} for job in plan.jobs}
    problems = unknown("--only", args.only, sorted(set().union(*named.values())))
    if args.steps is not None and args.steps < spec.LEAST_STEPS:
        problems.append(Problem("command line", "--steps", args.steps, f"at least {spec.LEAST_STEPS}"))
    problems += folder_problems(args.out)
    raise_all(problems)
    wanted = [job for job in plan.jobs if not args.only or named[job.id] & set(args.only)]
    jobs = tuple(replace(job, steps=args.steps or job.steps) for job in wanted)
    return replace(
        plan,
        jobs=jobs,
        repeat=args.repeat or plan.repeat,
        device=args.device or plan.device,
        threads=args.threads or plan.threads,
        cooldown=args.cooldown or plan.cooldown,
        profile=plan.profile or (spec.Profile() if args.profile else None),
    )


@contextmanager
def watching(total: int) -> Iterator[Callable[[str], None]]:
    """Shows a bar on stderr where that is a terminal, else a line for every training."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    done = count(1)
    with progress("training", total) as advance:
        yield lambda text: advance(next(done), words=text)


def show(done: Sequence[Trained], *, aside: bool = False) -> None:
    """Shows the trainings, a line each; ``aside``: on stderr, where stdout is a document."""
    terminal.show([_table(done)], sys.stderr if aside else sys.stdout)


def _table(done: Sequence[Trained]) -> Table:
    from harness.report.spec import tabled

    return tabled(
        "trained",
        done,
        split=_split,
        steps=lambda done: f"{done.run.measured.samples}/{done.job.steps * len(done.rounds)}",
        interval=_interval,
        shown_spread=lambda done: done.spread if len(done.rounds) > 1 else None,
        tokens=lambda done: (done.run.measured.tgs or 0.0) * done.job.workload.gpus,
        loss=lambda done: f"{done.losses[0]:.3f} → {done.losses[-1]:.3f}",
    )


def _interval(done: Trained) -> str | None:
    step = done.run.measured.step_seconds or 0.0
    return None if done.low is None or done.high is None else f"±{(done.high - done.low) / 2 / step:.1%}"


def _split(done: Trained) -> str:
    recipe, work = done.job.workload.recipe, done.job.workload
    sizes = {"tp": recipe.tp, "pp": recipe.pp, "vpp": recipe.vpp, "ep": recipe.ep, "dp": work.dp}
    words = [f"{name}{size}" for name, size in sizes.items() if size > 1]
    if recipe.pp > 1:
        words.append(str(recipe.pipeline_schedule))
    if recipe.data_parallel_sharding != "no_shard" and work.dp > 1:
        words.append("fsdp")
    return " ".join(words) or NONE
