"""``harness trace``: divides a profiler's trace of a step by cause, beside its projection."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.cli.common import Flags, Parser, add_command, say
from projector.cli.options import add_selection
from projector.cli.parser import whole
from projector.errors import InputError, Problem

if TYPE_CHECKING:
    from projector.hardware.types import Cluster
    from projector.workload.workload import Workload

_ABOUT = """\
Reads traces of torch.profiler (Chrome's JSON, plain or gzip; one file a rank, the first is looked at, the others tell its
waiting from its transfers), cuts out one whole step, and says where its time went: every moment once. With a configuration
the same of its projection stands beside it. A trace of less than a step is compared by the layer passes that it holds."""


def register(parser: Parser) -> None:
    first, second = (f"measured/traces/cpu_llama_tp2.rank{rank}.trace.json.gz" for rank in (0, 1))
    add_command(parser, command, examples=(f"{first} {second}", f"{second} --step 1 --json"))
    add_selection(parser)
    parser.usage = "%(prog)s TRACE... [--config FILE | --model NAME|FILE]\n    [--gpu NAME|FILE] [--step N] [flags]"
    parser.description = _ABOUT
    Flags(parser).path("traces", metavar="TRACE", help="a trace of torch.profiler", nargs="+")
    flags = Flags(parser.add_argument_group("which part, and what comes out"))
    flags.add("--step", type=whole(0), metavar="N", help="this step (default: the one of median length)")
    flags.path("--overlay", metavar="FILE", help="write both timelines as one trace, for ui.perfetto.dev")
    text = "add products and attention with recorded shapes to FOLDER/<gpu>, tables that benchmark mode reads"
    flags.path("--record", metavar="FOLDER", help=text)
    flags.path("--out", metavar="FILE", help="also write every figure as Markdown")


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
