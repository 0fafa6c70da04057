"""``harness collectives``: the collective model scored on measured collectives."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli.common import Subparsers, add_command, say
from harness.evidence import shelf
from projector.errors import InputError, Problem


def register(commands: Subparsers) -> None:
    parser = add_command(
        commands,
        "collectives",
        "score the collective model on measured collectives, by fabric and size",
        command,
        examples=("--cluster h100_sxm", "measured/collectives --json"),
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=shelf.folder("measured/collectives"),
        metavar="FOLDER",
        help="tables of measured collectives, <cluster>.csv (default: measured/collectives)",
    )
    parser.add_argument("--cluster", nargs="+", action="extend", default=[], metavar="NAME", help="only these clusters")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write every figure as Markdown")


def command(args: argparse.Namespace) -> int:
    from harness.kernels.collectives_score import score
    from harness.kernels.collectives_table import read
    from harness.report import view_collectives

    if not args.folder.is_dir():
        raise InputError([Problem(str(args.folder), "", "no such folder", "a folder of <cluster>.csv tables")])
    records = read(args.folder)
    known = {record.cluster for record in records}
    unknown = [name for name in args.cluster if name not in known]
    if unknown:
        expected = ", ".join(sorted(known)) or "tables in the folder"
        raise InputError([Problem("command line", "--cluster", name, expected) for name in unknown])
    chosen = [record for record in records if not args.cluster or record.cluster in args.cluster]
    if not chosen:
        raise InputError([Problem(str(args.folder), "", "no measured collective", "tables of <cluster>.csv")])
    say(args, view_collectives.build(score(chosen)), out=args.out)
    return 0
