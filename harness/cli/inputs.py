"""``harness inputs``: projects or refuses every experiment of a Primus checkout, one line each."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from projector.cli import as_json
from projector.errors import InputError, Problem, collecting_into, raise_all
from projector.io.progress import progress


def command(args: argparse.Namespace) -> int:
    from harness.evaluation import inputs
    from projector.hardware import catalogue
    from projector.io.files import write_whole

    problems: list[Problem] = []
    if args.gpu is not None:
        try:
            catalogue.cluster(args.gpu)
        except InputError as error:
            problems += [replace(problem, where="--gpu", key="") for problem in error.problems]
    experiments: list[tuple[Path, list[Path]]] = []
    for folder in args.folders:
        with collecting_into(problems):
            experiments.append((folder, inputs.experiments(folder)))
    raise_all(problems)
    lines: list[inputs.Line] = []
    with progress("projecting", sum(len(files) for _, files in experiments)) as advance:
        for folder, files in experiments:
            for line in inputs.lines(folder, files, args.gpu):
                lines.append(line)
                advance(len(lines))
    text = inputs.markdown(lines)
    if args.out is not None:
        write_whole(args.out, text)
    refused = sum(bool(line.reason) for line in lines)
    if args.json:
        records = [asdict(line) for line in lines]
        as_json.write({"command": "inputs", "experiments": records, "refused": refused, "written": args.out})
    elif args.out is None:
        print(text, end="")
    else:
        print(
            f"{args.out}: {len(lines)} experiments, {len(lines) - refused} projected, {refused} refused with the reason"
        )
    return 0
