"""``harness submit``: packs a folder of measured results into one file that another's ``harness ingest`` reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from projector.cli import as_json
from projector.errors import InputError, Problem

if TYPE_CHECKING:
    from harness.evidence.submission import Packed


def command(args: argparse.Namespace) -> int:
    from harness.evidence.submission import pack

    out = args.out or Path(f"{args.folder.resolve().name or 'results'}.zip")
    if out.suffix != ".zip":
        raise InputError([Problem("--out", "", str(out), "a file that ends in .zip")])
    packed = pack(args.folder, out)
    if args.json:
        as_json.write({"command": "submit", "written": str(out), **asdict(packed)})
    else:
        print(*_lines(packed, out), sep="\n")
    return 0


def _number_of_files(number: int) -> str:
    return f"{number} file{'s' * (number != 1)}"


def _lines(packed: Packed, out: Path) -> Iterator[str]:
    total = sum(packed.runs.values())
    beside = f"{_number_of_files(len(packed.files))} beside them"
    yield f"{out}: {total} measured run{'s' * (total != 1)} of {_number_of_files(len(packed.runs))}, and {beside}"
    replaced = ", ".join(f"{number} × {kind}" for kind, number in packed.stripped.items())
    yield f"Replaced: {replaced or 'nothing that names a person or a place was found'}"
    yield from (f"Left out: {name}" for name in packed.left)
    yield "Look into it before you send it (unzip -p): a name that no pattern knows stays."
