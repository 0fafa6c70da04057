"""Recordings of made-up versions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.contracts.results import Row, RunFacts
from harness.history.store import Recorded, Recording

Versions = Callable[..., tuple[Recorded, ...]]


def recording_of(number: int, **more: Any) -> Recording:
    """Version ``number``, committed on that day of November 2025."""
    values: dict[str, Any] = {
        "recorded": f"2026-01-01T00:00:{number:02d}.000000+00:00", "version": "0.1.0", "code": f"{number:064x}",
        "mode": "simulate", "suites": {"s": "same"}, "revision": f"{number:040x}"[::-1],
        "committed": f"2025-11-{number:02d}T00:00:00Z", "subject": f"change {number}",
    }  # fmt: skip
    return Recording(**{**values, **more})


@pytest.fixture
def recording() -> Callable[..., Recording]:
    return recording_of


@pytest.fixture
def of_errors(make_row: Callable[..., Row]) -> Versions:
    """Versions from 1 on: a mapping of run → signed error each (None: not projected), a missing run: not in the suite."""

    def make(*found: Mapping[str, float | None], **more: Any) -> tuple[Recorded, ...]:
        made = []
        for number, errors in enumerate(found, start=1):
            rows = tuple(make_row(n, projected=None if e is None else 100.0 * (1 + e)) for n, e in errors.items())
            rows = tuple(replace(r, reason="no model of it" if r.error is None else "") for r in rows)
            facts = {name: RunFacts(run_id=name) for name in errors}
            made.append(Recorded(recording=recording_of(number, **more), rows=rows, facts=facts))
        return tuple(made)

    return make
