"""The gate as JUnit XML: one test case a check, for the test view of a CI system."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from harness.gate import Check

__all__ = ["render"]


def render(checks: Sequence[Check]) -> str:
    """One ``testsuite`` per suite; a failed check is a ``failure`` whose message is its line in the report."""
    root = ElementTree.Element("testsuites", name="projection accuracy")
    for suite in dict.fromkeys(c.suite for c in checks):
        mine = [c for c in checks if c.suite == suite]
        failed = sum(not c.passed for c in mine)
        element = ElementTree.SubElement(
            root, "testsuite", name=suite, tests=str(len(mine)), failures=str(failed), errors="0", skipped="0"
        )
        for c in mine:
            case = ElementTree.SubElement(
                element, "testcase", classname=f"{suite}.{c.predictor}", name=c.name, time="0"
            )
            if not c.passed:
                ElementTree.SubElement(case, "failure", message=str(c))
            ElementTree.SubElement(case, "system-out").text = str(c)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
