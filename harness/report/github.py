"""Shows a run in GitHub Actions: annotations on stdout and the step summary. Both are plain text that the runner reads
(GitHub Docs, "Workflow commands for GitHub Actions"): a line ``::error title=…::message`` becomes an annotation, and
Markdown appended to the file that ``GITHUB_STEP_SUMMARY`` names becomes the summary page of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.report import markdown
from harness.report.table import Report, Table
from harness.report.view_drift import named_causes
from harness.score.drift import Drift
from harness.score.gate import Check
from projector.dataclass import dataclass

# Limits of GitHub: annotations of one level that a step may show, and bytes of one step's summary.
MOST_ANNOTATIONS = 10
MOST_BYTES = 1024 * 1024
MOST_COMMENT = 65_536
MARK = "<!-- projector: training speed -->"  # finds the earlier comment, which the new one replaces
# Rows of a table on the page: longer tables are for the report files.
MOST_ROWS = 40
# Marks that would end the message of a workflow command, and those that would end a property of it.
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


@dataclass(frozen=True, slots=True)
class Annotation:
    """One message beside a job. ``level``: ``error``, ``warning`` or ``notice``."""

    level: str
    title: str
    message: str

    def __str__(self) -> str:
        """Returns the workflow command, on one line whatever the texts hold."""
        return f"::{self.level} title={self.title.translate(_PROPERTY)}::{self.message.translate(_DATA)}"


def wanted(environment: Mapping[str, str]) -> bool:
    """Tells whether a runner of GitHub Actions reads stdout."""
    return environment.get("GITHUB_ACTIONS") == "true"


def summary_file(environment: Mapping[str, str]) -> Path | None:
    named = environment.get("GITHUB_STEP_SUMMARY")
    return Path(named) if named else None


def annotate(
    checks: Sequence[Check], drift: Drift | None = None, lines: Sequence[str] = (), *, level: str = "error"
) -> list[Annotation]:
    """Returns an annotation for each gate that failed and each row lost or broken; where all held, a notice with the
    headline ``lines``. ``level``: of the failures (``warning`` where they do not fail the job). At most as many as
    GitHub shows are returned, the last one then counting the rest."""
    failed = [(f"projection gate: {c.suite} {c.predictor} {c.name}", str(c)) for c in checks if not c.passed]
    failed += [(f"projection {kind}", text) for kind, text in named_causes(drift)] if drift else []
    if failed:
        return [Annotation(level, title, message) for title, message in _at_most(failed)]
    return [Annotation("notice", "projection accuracy", "\n".join(lines))] if lines else []


_TitleAndMessage = tuple[str, str]


def _at_most(annotations: list[_TitleAndMessage]) -> list[_TitleAndMessage]:
    if len(annotations) <= MOST_ANNOTATIONS:
        return annotations
    shown = annotations[: MOST_ANNOTATIONS - 1]
    rest = len(annotations) - len(shown)
    return [*shown, ("projection gate", f"and {rest} more: see the summary and the report files")]


def summary(report: Report) -> str:
    """Returns the report as Markdown for the summary page: verdicts and headline tables, cut to what GitHub takes."""
    head = replace(report, tables=tuple(_short(t) for t in report.tables if not t.detail), provenance=())
    text = markdown.render(head)
    return text if _size(text) <= MOST_BYTES else markdown.render(replace(head, tables=()))


def comment(report: Report) -> str:
    """Returns the body of a comment on a pull request, cut to what GitHub takes; names in it notify nobody."""
    text = summary(report)
    if _size(text) > MOST_COMMENT - 200:
        text = markdown.render(Report(title=report.title, lines=report.lines[:MOST_ROWS]))[: MOST_COMMENT // 4]
    silent = text.replace("@", "@\u200b")
    return f"{MARK}\n{silent}\n"


def write_summary(path: Path, report: Report) -> None:
    """Appends the report to the file: earlier commands of the same step may have written there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(summary(report) + "\n")


def _short(table: Table) -> Table:
    more = len(table.rows) - MOST_ROWS
    if more <= 0:
        return table
    note = f"… and {more} more rows: see the report files. {table.note}".strip()
    return replace(table, rows=table.rows[:MOST_ROWS], note=note)


def _size(text: str) -> int:
    return len(text.encode())
