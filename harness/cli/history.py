"""``harness history``: shows accuracy over recorded versions, and the change at which a row broke."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from harness.cli.common import say
from harness.contracts.results import BASELINE, FITS
from harness.score.drift import BROKEN
from projector.errors import InputError, Problem, raise_all, unknown
from projector.io.files import write_whole

_PICTURES = (".png", ".svg", ".pdf")


KNOWN = {"--fit": {"choices": FITS}, "--drift-tolerance": {"default": BROKEN}}


def command(args: argparse.Namespace) -> int:
    from harness.history import series, store, view

    _check(args)
    recorded = store.read(args.store, fit=args.fit)
    chosen = _chosen(series.series(recorded), args)
    if args.row:
        runs = sorted({row.run_id for s in chosen for version in s.versions for row in version.rows})
        raise_all(unknown("--row", [args.row], runs, str(args.store)))
        report = view.row(chosen, args.row, args.drift_tolerance, args.limit, _commits(chosen))
    elif args.broken:
        report = view.broken(chosen, args.drift_tolerance, args.limit, _commits(chosen))
    else:
        report = view.overview(chosen, args.drift_tolerance, args.last, args.fit)
    if args.plot:
        _draw(args, chosen)
    if args.csv:
        sys.stdout.write(_csv(_records(args, chosen)))
        return 0
    say(args, report, written=str(args.plot or ""), further={"records": _records(args, chosen)})
    return 0


def _check(args: argparse.Namespace) -> None:
    problems = []
    if args.plot and args.plot.suffix.lower() not in _PICTURES:
        problems.append(Problem("command line", "--plot", str(args.plot), "a name that ends in .png, .svg or .pdf"))
    if args.csv and args.json:
        problems.append(Problem("command line", "--csv", "--json beside it", "one of the two"))
    raise_all(problems)


def _chosen(every: Sequence[Any], args: argparse.Namespace) -> list[Any]:
    """Returns the series that ``--suite`` and ``--predictor`` leave. Raises InputError for names that no recording has."""
    problems = [
        *unknown("--suite", filter(None, [args.suite]), sorted({s.suite for s in every}), str(args.store)),
        *unknown("--predictor", filter(None, [args.predictor]), sorted({s.predictor for s in every}), str(args.store)),
    ]
    raise_all(problems)
    return [
        s
        for s in every
        if (args.suite is None or s.suite == args.suite)
        and (s.predictor == args.predictor if args.predictor else s.predictor != BASELINE)
    ]


def _commits(chosen: Sequence[Any]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Returns the commits between consecutive versions, where this checkout holds them."""
    from itertools import pairwise

    from harness.report import provenance

    pairs = {(was.recording.revision, now.recording.revision) for s in chosen for was, now in pairwise(s.versions)}
    return {pair: provenance.commits(*pair) for pair in pairs if all(pair)}


def _records(args: argparse.Namespace, chosen: Sequence[Any]) -> list[dict[str, object]]:
    """Returns the plain figures of the report: a version, a row at a version, or a change, each with its series."""
    from harness.history.changes import changes, standing
    from harness.history.series import figures

    tolerance, limit = args.drift_tolerance, args.limit
    records: list[dict[str, object]] = []
    for s in chosen:
        head = {"suite": s.suite, "predictor": s.predictor, "fit": args.fit, "evaluated_with": " ".join(s.beside)}
        if args.broken:
            for c in standing(changes(s, tolerance, limit), tolerance, limit):
                plain = {f.name: getattr(c, f.name) for f in fields(c) if f.name not in ("since", "at", *head)}
                records.append({**head, **plain, **_version(c.at), "version_before": c.since.label})
        elif args.row:
            rows = ((v, r.to_mapping()) for v in s.versions for r in v.rows if r.run_id == args.row)
            records += [{**head, **_version(v.recording), **row, **head} for v, row in rows]
        else:
            lines = zip(s.versions, figures(s.versions, tolerance), strict=True)
            records += [{**head, **_version(v.recording), **f} for v, f in lines]
    return records


def _version(recording: Any) -> dict[str, object]:
    names = ("revision", "changed", "code", "committed", "recorded", "subject", "mode")
    return {"version": recording.label, **{name: getattr(recording, name) for name in names}}


def _csv(records: Sequence[dict[str, object]]) -> str:
    from harness.evidence import csvcell
    from projector.io import csv_file

    names = dict.fromkeys(name for record in records for name in record)
    rows = ([csvcell.shielded(record.get(name)) for name in names] for record in records)
    return csv_file.text(names, *rows) if names else ""


def _draw(args: argparse.Namespace, chosen: Sequence[Any]) -> None:
    from harness.history import plot
    from harness.report.plot import png, svg
    from projector.io.files import write_figure

    figure = plot.draw(chosen, args.drift_tolerance, args.last)
    if figure is None:
        raise InputError([Problem(str(args.store), "--plot", "nothing recorded", "at least one recording")])
    kind = args.plot.suffix.lower()
    if kind == ".pdf":
        write_figure(args.plot, figure)
    else:
        write_whole(args.plot, png(figure) if kind == ".png" else svg(figure))
