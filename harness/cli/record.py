"""``--record STORE``: keeps the rows of an evaluation and the versions that made them, for ``harness history``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.contracts.results import Evaluation
from harness.evidence.suite import Suite


def check(args: argparse.Namespace) -> None:
    """Raises :class:`InputError` before anything is projected, where the store could not be written."""
    if args.record is not None:
        from harness.history import store

        store.check(args.record)


def append(args: argparse.Namespace, suites: Sequence[Suite], evaluation: Evaluation) -> None:
    """Appends one recording of all rows, where ``--record`` asks for it."""
    if args.record is None:
        return
    from harness.history import store
    from harness.history.store import Recording
    from harness.report import files, provenance
    from projector import __version__
    from projector.cli.options import read_settings
    from projector.io.code import code_hash, hash_of
    from projector.kernels.settings import DEFAULT
    from projector.kernels.tables import tables_dir

    usual = asdict(DEFAULT)
    loose = "+".join(dict.fromkeys(path.name for path in args.runs))  # the source of rows without a suite
    named = {s.name: _contents(s.inputs) for s in suites}
    folder = tables_dir()
    tables = [(str(path.relative_to(folder)), path) for path in sorted(folder.rglob("*.csv"))] if folder else []
    recording = Recording(
        recorded=datetime.now(UTC).isoformat(timespec="microseconds"),
        version=__version__,
        code=code_hash(),
        mode=args.mode,
        suites={**named, **({loose: _contents(args.runs)} if loose else {})},
        settings={name: value for name, value in asdict(read_settings(args)).items() if value != usual[name]},
        versions={**provenance.versions(), "kernel tables": hash_of(tables)},
        **asdict(provenance.commit()),
    )
    rows = [files.rounded(row if row.suite else replace(row, suite=loose)) for row in evaluation.rows]
    store.append(args.record, recording, rows, evaluation.facts)


def _contents(paths: Iterable[Path]) -> str:
    from projector.io.code import hash_of

    return hash_of((path.name, path) for path in paths if path.is_file())
