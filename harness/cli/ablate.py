"""``harness ablate``: the worth of each mechanism and each parameter of a profile, on rows seen and unseen."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.cli.common import say, tables_in
from projector.errors import Problem, nearest, raise_all
from projector.io.progress import progress
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd

    from harness.contracts.runs import MeasuredRun
    from harness.evaluation.ablate import Ablation, Outcome
    from harness.report.table import Report
    from harness.score.whatif import Worth

_UNSEEN = "unseen_"
_NAMED = 3  # sources named in a cell


class _Line(NamedTuple):
    of: Ablation
    open: Worth
    unseen: Worth


KNOWN = {"--jobs": {"default": os.cpu_count() or 1}}


def command(args: argparse.Namespace) -> int:
    from harness.evaluation import ablate

    chosen = _chosen(args.names, ablate.declared())
    if args.list:
        for ablation in chosen:
            print(f"{ablation.kind:11} {ablation.lines:5} {ablation.name}")
        return 0
    runs, ids = _runs(args.measured)
    with progress("switching off", 1 + len(chosen)) as advance:
        on = ablate.projected(runs, None, args.jobs, {})
        before, lines = _frame(runs, on), []
        for done, ablation in enumerate(chosen):
            advance(1 + done, words=ablation.name)
            lines.append(_line(ablation, before, _frame(runs, ablate.projected(runs, ablation, args.jobs, on)), ids))
    say(args, _report(lines), out=args.out, most=None)
    return 0


def _chosen(patterns: Sequence[str], ablations: Sequence[Ablation]) -> list[Ablation]:
    """Returns the ablations that a pattern matches, all for none. Raises :class:`InputError` for patterns without a
    match."""
    names = [ablation.name for ablation in ablations]
    unmatched = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    wrong = [Problem("command line", "NAME", pattern, nearest(pattern, names)) for pattern in unmatched]
    raise_all(wrong)
    return [a for a in ablations if not patterns or any(fnmatchcase(a.name, p) for p in patterns)]


def _runs(folder: Path) -> tuple[list[MeasuredRun], frozenset[str]]:
    """Returns the runs that can be compared, and the ids of those that nobody had seen. Raises :class:`InputError` for a
    folder without runs."""
    from harness.evidence.runs_of import runs_of_all

    paths = tables_in(folder)
    unseen = runs_of_all(path for path in paths if path.name.startswith(_UNSEEN))
    runs = [*runs_of_all(path for path in paths if not path.name.startswith(_UNSEEN)), *unseen]
    comparable = [run for run in runs if run.measured.exists and run.recipe and run.model and not run.doubt]
    return comparable, frozenset(run.id for run in unseen)


def _frame(runs: Sequence[MeasuredRun], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    from harness.contracts import frame
    from harness.evaluation.evaluate import Selected, row_of
    from harness.evaluation.facts import facts_of

    rows = [row_of(Selected("", run), "simulate", "uncalibrated", outcomes[run.id][1], None) for run in runs]
    return frame.of(rows, {run.id: facts_of(run) for run in runs})


def _line(of: Ablation, on: pd.DataFrame, off: pd.DataFrame, unseen: frozenset[str]) -> _Line:
    from harness.contracts.estimates import publisher
    from harness.score.whatif import worth

    sources = {run: publisher(source) for run, source in zip(on["run_id"], on["source"], strict=True)}
    is_unseen = on["run_id"].isin(unseen).to_numpy()
    return _Line(of, worth(on[~is_unseen], off[~is_unseen], sources), worth(on[is_unseen], off[is_unseen], sources))


def _report(lines: Sequence[_Line]) -> Report:
    from harness.report.spec import tabled
    from harness.report.table import Report

    named = lambda line: ", ".join((*line.open.helped, *line.unseen.helped)[:_NAMED])  # noqa: E731
    kinds = grouped((line.of.kind, line) for line in sorted(lines, key=lambda line: -line.unseen.error))
    order = dict.fromkeys(line.of.kind for line in lines)
    return Report.of(
        "What each mechanism is worth", [tabled("mechanisms", kinds[k], kind=k, named=named) for k in order]
    )
