"""Logs as their records, for the tests of trainers."""

from pathlib import Path

from asked import put

from harness.evidence.ingest.dialects import read_records_of_log
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.steady import state_of


def records(tmp_path: Path, text: str, name: str = "a.log") -> tuple[str, list[Logged]]:
    return read_records_of_log(put(tmp_path / name, text))


def step(record: Logged) -> float | None:
    state = state_of(record)
    return None if state is None else state.value
