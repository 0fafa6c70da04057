"""Gates and rows as JUnit XML, for the test view of a CI system: a test case a check and a test case a row.

A row is judged where its suite has a ``worst`` threshold for its predictor: |held-out error| above it fails. A row that
cannot be projected is skipped with its reason; the baseline has no test cases. Element and attribute names are those of
the JUnit Ant task's schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from harness.contracts.results import BASELINE, Row
from harness.report.table import NONE, number, signed
from harness.score.gate import Check

__all__ = ["render"]

# The threshold of a gate that is about single rows.
WORST = "worst"


def render(checks: Sequence[Check], rows: Iterable[Row] = ()) -> str:
    """One ``testsuite`` a suite for its gate, and one a suite and predictor for its held-out ``rows``."""
    root = ElementTree.Element("testsuites", name="projection accuracy")
    for suite in dict.fromkeys(c.suite for c in checks):
        _add(root, suite, [_check_case(c) for c in checks if c.suite == suite])
    limits = {(c.suite, c.predictor): c.limit for c in checks if c.name == WORST}
    held: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.fit == "heldout" and row.predictor != BASELINE:
            held.setdefault((row.suite, row.predictor), []).append(row)
    for (suite, predictor), members in held.items():
        limit = limits.get((suite, predictor))
        _add(root, f"{suite or 'runs'} rows, {predictor}", [_row_case(r, limit) for r in members])
    _total(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add(root: ElementTree.Element, name: str, cases: Sequence[ElementTree.Element]) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_legal(name), tests=str(len(cases)))
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(sum(case.find(tag) is not None for case in cases)))
    seconds = sum(float(case.get("time", 0)) for case in cases)
    suite.set("time", f"{seconds:.3f}")
    suite.extend(cases)


def _total(root: ElementTree.Element) -> None:
    for kind in ("tests", "failures", "errors", "skipped"):
        root.set(kind, str(sum(int(suite.get(kind, 0)) for suite in root)))


def _check_case(c: Check) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_legal(f"{c.suite}.{c.predictor}"), name=_legal(c.name), time="0")
    if not c.passed:
        ElementTree.SubElement(case, "failure", message=_legal(str(c)))
    ElementTree.SubElement(case, "system-out").text = _legal(str(c))
    return case


def _row_case(row: Row, limit: float | None) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=_legal(f"{row.suite or 'runs'}.{row.predictor}.{row.gpu or 'no-gpu'}"),
        name=_legal(row.run_id),
        time=f"{row.seconds_to_project or 0:.4f}",
    )
    said = _said(row)
    if row.projected_step_seconds is None:
        ElementTree.SubElement(case, "skipped", message=_legal(f"{row.status}: {row.reason}"))
    elif limit is not None and row.error is not None and abs(row.error) > limit:
        ElementTree.SubElement(case, "failure", message=_legal(f"{said}; required |error| <= {limit:g}"))
    ElementTree.SubElement(case, "system-out").text = _legal(said)
    return case


def _said(row: Row) -> str:
    error = signed(row.error) if row.error is not None else "not compared"
    span = ""
    if row.interval_low is not None and row.interval_high is not None:
        span = f" (90 % interval {number(row.interval_low, 1)} to {number(row.interval_high, 1)})"
    projected = NONE if row.projected_tgs is None else number(row.projected_tgs, 1) + span
    return f"{row.status}: measured {number(row.measured_tgs, 1)}, projected {projected} tokens/s/GPU, error {error}"


def _legal(text: str) -> str:
    """``text`` without the characters that XML 1.0 cannot hold (section 2.2)."""
    return "".join(
        c for c in text if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff"
    )
