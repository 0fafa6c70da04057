"""``harness collectives``: scores the collective model on measured collectives."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.cli.common import say
from harness.evidence import shelf
from projector.errors import InputError, Problem, raise_all, unknown

if TYPE_CHECKING:
    from harness.kernels.collectives_table import CollectiveRecord


KNOWN = {"places": {"default": [shelf.folder("measured/collectives")]}}


def command(args: argparse.Namespace) -> int:
    from harness.kernels import collectives_table
    from harness.kernels.collectives_score import score
    from harness.report import view_collectives
    from projector.io.files import write_whole

    records = _records(args)
    if args.table:
        write_whole(args.table, collectives_table.text(records))
    written = str(args.table or "")
    say(args, view_collectives.build(score(records)), out=args.out, written=written)
    return 0


def _records(args: argparse.Namespace) -> list[CollectiveRecord]:
    from harness.kernels.collectives_table import read, read_tests

    missing = [place for place in args.places if not place.exists()]
    if missing:
        expected = "a folder of <cluster>.csv tables, or what nccl-tests printed"
        raise InputError([Problem(str(place), "", "no such folder or file", expected) for place in missing])
    tests = [place for place in args.places if not place.is_dir()]
    if tests and (len(tests) < len(args.places) or len(args.cluster) > 1):
        raise InputError([Problem(str(tests[0]), "", "other folders or clusters beside it", "tests of one cluster")])
    if tests:
        return list(read_tests(tests, *args.cluster))
    records = [record for folder in args.places for record in read(folder)]
    known = {record.cluster for record in records}
    raise_all(unknown("--cluster", args.cluster, sorted(known)))
    chosen = [record for record in records if not args.cluster or record.cluster in args.cluster]
    if not chosen:
        raise InputError([Problem(str(args.places[0]), "", "no measured collective", "tables of <cluster>.csv")])
    return chosen
