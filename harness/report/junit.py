"""Writes gates and rows as JUnit XML, for the test view of a CI system: a test case a check and a test case a row.

What fails here fails the command, and the other way round. A row is judged where its suite's ``worst`` threshold does
not hold for its predictor: |held-out error| above it fails. A comparison with earlier results is a test case, too. A row
that cannot be projected, or that its source doubts, is skipped with the reason; the baseline has no test cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.contracts.results import BASELINE, Row
from harness.report.table import NONE, number, signed
from harness.report.view_drift import causes
from harness.score.drift import Drift
from harness.score.gate import Check
from projector.io.rows import grouped

if TYPE_CHECKING:
    from junitparser import TestCase

# The only threshold of a gate that judges single rows.
WORST = "worst"


def render(
    checks: Sequence[Check], rows: Iterable[Row] = (), drift: Drift | None = None, *, judged: bool = True
) -> str:
    """Returns the XML: one ``testsuite`` for each suite's gate, one for the ``drift``, one for each suite and predictor
    with its held-out ``rows``. ``judged`` False: nothing fails, failures are skipped (``--no-gate``)."""
    from junitparser import JUnitXml, TestSuite

    limits = {(c.suite, c.predictor): c.limit for c in checks if c.name == WORST and not c.passed}
    cases = grouped(
        (c.suite, _case(c.name, f"{c.suite}.{c.predictor}", str(c), failed="" if c.passed else str(c), judged=judged))
        for c in checks
    )
    if drift is not None:
        found = "\n".join(causes(drift)) or "no row was lost, removed or broke"
        case = _case("drift", "drift", found, failed="" if drift.passed else found, judged=judged)
        cases["against earlier results"] = [case]
    for row in rows:
        if row.fit == "heldout" and row.predictor != BASELINE:
            suite = f"{row.suite or 'runs'} rows, {row.predictor}"
            cases.setdefault(suite, []).append(_row_case(row, limits.get((row.suite, row.predictor)), judged))
    document = JUnitXml("projection accuracy")
    for name, members in cases.items():
        test_suite = TestSuite(_legal(name))
        test_suite.add_testcases(members)  # all at once: one by one they are counted again each time
        document.add_testsuite(test_suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    text: str = document.tostring().decode("utf-8")  # type: ignore[no-untyped-call]
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _case(
    name: str, place: str, said: str, seconds: float = 0.0, *, failed: str = "", skipped: str = "", judged: bool = True
) -> TestCase:
    from junitparser import Failure, Skipped, TestCase

    if not judged:
        failed, skipped = "", skipped or (failed and f"not judged: {failed}")
    case = TestCase(_legal(name), _legal(place), seconds)
    if failed or skipped:  # before the output: the schema has an order
        case.result = [Failure(_legal(failed)) if failed else Skipped(_legal(skipped))]
    case.system_out = _legal(said)
    return case


def _row_case(row: Row, limit: float | None, judged: bool) -> TestCase:
    text, failed, skipped = _row_text(row), "", ""
    place = f"{row.suite or 'runs'}.{row.predictor}.{row.gpu or 'no-gpu'}"
    if row.doubt:
        skipped = f"doubted by its source: {row.doubt}"
    elif row.projected_step_seconds is None:
        skipped = f"{row.status}: {row.reason}"
    elif limit is not None and row.error is not None and abs(row.error) > limit:
        failed = f"{text}; required |error| <= {limit:g}"
    seconds = round(row.seconds_to_project or 0.0, 4)
    return _case(row.run_id, place, text, seconds, failed=failed, skipped=skipped, judged=judged)


def _row_text(row: Row) -> str:
    error = signed(row.error) if row.error is not None else "not compared"
    span = ""
    if row.interval_low is not None and row.interval_high is not None:
        span = f" (90 % interval {number(row.interval_low, 1)} to {number(row.interval_high, 1)})"
    projected = NONE if row.projected_tgs is None else number(row.projected_tgs, 1) + span
    return f"{row.status}: measured {number(row.measured_tgs, 1)}, projected {projected} tokens/s/GPU, error {error}"


def _legal(text: str) -> str:
    """Returns ``text`` without the characters that XML 1.0 cannot hold (section 2.2)."""
    return re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
