"""``harness compare``: measured runs side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.cli.common import Subparsers, add_command, read_any
from harness.facts import facts_of
from harness.report import terminal
from harness.report.table import NONE, Column, Report, Table, number, signed
from harness.runs import MeasuredRun
from projector.errors import InputError, Problem, nearest

__all__ = ["command", "register"]


def register(commands: Subparsers) -> None:
    parser = add_command(commands, "compare", "measured runs side by side: step time, throughput, memory", command)
    parser.add_argument(
        "ids", nargs="+", metavar="RUN", help="ids of measured runs; the first is what others compare to"
    )
    parser.add_argument("--runs", nargs="+", type=Path, metavar="FILE", help="files of measured runs")
    parser.add_argument(
        "--measured",
        type=Path,
        default=Path("measured/runs"),
        metavar="FOLDER",
        help="folder of measured runs, where --runs is not given (default: measured/runs)",
    )


def command(args: argparse.Namespace) -> int:
    paths = args.runs or sorted(args.measured.glob("*.yaml"))
    if not paths:
        raise InputError([Problem(str(args.measured), "", "no *.yaml", "a folder of measured runs, or --runs FILE")])
    known = {run.id: run for run in read_any(paths)}
    unknown = [i for i in args.ids if i not in known]
    if unknown:
        raise InputError(Problem("command line", "RUN", i, nearest(i, tuple(known))) for i in unknown)
    chosen = [known[i] for i in dict.fromkeys(args.ids)]
    tables = (_figures(chosen), _differences(chosen))
    terminal.show(Report(title="Measured runs", tables=tuple(t for t in tables if t.rows)))
    return 0


def _figures(runs: Sequence[MeasuredRun]) -> Table:
    columns = (
        Column("run", numeric=False),
        Column("step, s"),
        Column("TGS"),
        Column("of the first"),
        Column("memory, GiB"),
        Column("measured as", numeric=False),
        Column("status", numeric=False),
    )
    first = runs[0].measured.tgs
    made = []
    for run in runs:
        m = run.measured
        relative = m.tgs / first - 1.0 if m.tgs and first else None
        times = (number(m.step_seconds, 4), number(m.tgs, 1), signed(relative))
        made.append((run.id, *times, number(m.peak_memory_gib, 1), m.memory_kind or NONE, m.status))
    return Table(title="Figures", columns=columns, rows=tuple(made))


def _differences(runs: Sequence[MeasuredRun]) -> Table:
    """The configuration keys that are not the same in all of the runs."""
    configurations = [facts_of(run).differs for run in runs]
    keys = dict.fromkeys(key for c in configurations for key in c)
    differing = [k for k in keys if len({c.get(k, NONE) for c in configurations}) > 1]
    columns = (Column("key", numeric=False), *(Column(run.id, numeric=False) for run in runs))
    rows = tuple((k, *(c.get(k, NONE) for c in configurations)) for k in differing)
    return Table(title="What differs", columns=columns, rows=rows)
