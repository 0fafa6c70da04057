"""``harness trace``: divides a profiler's trace of a step by cause, beside its projection."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.cli.common import say
from projector.errors import InputError, Problem

if TYPE_CHECKING:
    from projector.hardware.types import Cluster
    from projector.workload.workload import Workload


def command(args: argparse.Namespace) -> int:
    from harness.trace import overlay, view
    from harness.trace.overlay import record
    from harness.trace.study import study

    case = _case(args)
    if args.record and case is None:
        raise InputError([Problem("command line", "--record", "no GPU", "--config or --model and --gpu: whose table")])
    studied = study(args.traces, args.step, case)
    written = []
    if args.record and case is not None:
        added, skipped = record(studied, args.record, case[1].gpu.name)
        written.append(f"{args.record / case[1].gpu.name} ({added} rows added, {skipped} shapes not known whole)")
    if args.overlay:
        overlay.write(studied, args.overlay)
        written.append(str(args.overlay))
    say(args, view.build(studied), written=", ".join(written), out=args.out)
    return 0


def _case(args: argparse.Namespace) -> tuple[Workload, Cluster] | None:
    """Returns the workload and cluster that the trace is compared with; None where neither a file nor a model is named."""
    if not args.config and not args.model:
        return None
    from projector.cli.inputs import read_case

    case = read_case(args)
    return case.workload, case.cluster
