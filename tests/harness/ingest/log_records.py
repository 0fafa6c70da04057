"""Logs as their records, for the tests of trainers."""

from __future__ import annotations

from pathlib import Path

from harness.evidence.ingest.dialects import read_records_of_log
from harness.evidence.ingest.logs.build import state_of
from harness.evidence.ingest.logs.logged import Logged


def records(tmp_path: Path, text: str, name: str = "a.log") -> tuple[str, list[Logged]]:
    path = tmp_path / name
    path.write_text(text)
    return read_records_of_log(path)


def step(record: Logged) -> float | None:
    state = state_of(record)
    return None if state is None else state.value
