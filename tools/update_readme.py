"""Put the generated parts of README.md in place: what a new source should expect from reports/sources.md, figures from
reports/figures.md and reports/results.csv, terminal output from reports/*.txt.

    python tools/update_readme.py [--check]

With ``--check`` nothing is written; exit code 1 says that README.md is not what the reports give.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pandas as pd
from docsite import blocks

from harness.contracts import frame
from harness.contracts.results import Row, RunFacts, parted
from harness.evaluation import first_look
from harness.evidence import dataset
from harness.report import files
from harness.report.table import percent, signed
from harness.score import accuracy
from projector.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("In short",)
TABLES, ROWS, SCREEN = 1, 8, 32
#: Kinds of sources in words, as runs of ``measured/runs`` state them.
KINDS = {
    "log": "logs of training runs",
    "table": "tables that were published with their runs",
    "document": "documentation of frameworks and vendors",
    "issue": "issues and pull requests",
    "figure": "figures of papers and posts",
}


def figures(text: str) -> str:
    """The sections of figures.md that the README shows, one heading level down."""
    parts = blocks.sections(text)
    return "\n\n".join(f"### {name}\n\n{parts[name]}" for name in SECTIONS if name in parts)


def expect(text: str) -> str:
    """What a new source should expect: what sources.md says first, today's figures and those of the first look."""
    return " ".join(line.removeprefix("- ") for line in text.splitlines() if line.startswith("- "))


def sources(rows: Iterable[Row], facts: Mapping[str, RunFacts], looked: Collection[str]) -> str:
    """Error of the simulation by kind of source, held out and as projected, most rows first; ``looked``: the runs that
    were projected before anybody had seen them, which stand apart."""
    mine = frame.part(frame.of(rows, facts), predictor="simulate")
    known = mine["run_id"].isin(looked)
    kinds = [_cells(KINDS.get(kind, kind), found) for (kind,), found in frame.parts(mine[~known], ["source_kind"])]
    lines = sorted((line for line in kinds if line[1] != "0"), key=lambda line: -int(line[1]))
    lines += [_cells("all of these", mine[~known]), _cells("sources that were looked at first", mine[known])]
    head = ["source", "runs compared", "median error", "plain mean", "macro mean", "bias", "as projected, plain"]
    note = (
        "Held out: each row corrected by what runs of other sources teach; the last column is before any correction."
        " Macro: every (model family × GPU × framework) cell weighs the same. All by the code of today: most of it was"
        " written with the open runs in sight, little of it with the others."
    )
    return f"{blocks.table(head, lines)}\n\n{note}"


def _cells(name: str, rows: pd.DataFrame) -> list[str]:
    held, plain = (accuracy.summarise(frame.part(rows, fit=fit)) for fit in ("heldout", "uncalibrated"))
    shown = (percent(held.median), percent(held.mape), percent(held.macro_mape), signed(held.bias), percent(plain.mape))
    return [name, str(held.compared), *shown]


def facts_of(folder: Path) -> dict[str, RunFacts]:
    """What the table of sources asks of each measured run."""
    return {
        run.id: RunFacts(
            run_id=run.id, source_kind=run.source.kind, complete=run.model is not None and run.recipe is not None
        )
        for run in dataset.read(folder)
    }


def excerpt(text: str) -> str:
    """What a run prints: whole where it is one screen, else its headline, the first tables, each cut, and the gate."""
    if len(text.splitlines()) <= SCREEN:
        return "```text\n" + text.strip() + "\n```"
    head, *parts = text.strip().split("\n\n")
    made = [head, *(_cut(part) for part in parts[:TABLES])]
    made += [part for part in parts[TABLES:] if part.startswith("Gate")]
    return "```text\n" + "\n\n".join(made) + "\n```"


def _cut(block: str) -> str:
    """Title, head and first rows; the sentences below (no cells apart by two spaces) stay out."""
    title, head, rule, *rest = block.splitlines()
    rows = [line for line in rest if "  " in line]
    return "\n".join((title, head, rule, *rows[:ROWS], *(["…"] if len(rows) > ROWS else [])))


def replaced(readme: str, name: str, content: str) -> str:
    """``readme`` with ``content`` between the two markers of ``name``."""
    try:
        return blocks.replaced(readme, name, content, "README.md")
    except InputError as error:
        raise SystemExit(str(error)) from None


def main(arguments: list[str]) -> int:
    path, reports = ROOT / "README.md", ROOT / "reports"
    old = path.read_text(encoding="utf-8")
    new = old
    for name in ("ask", "two", "score", "moe"):
        new = replaced(new, name, excerpt((reports / f"{name}.txt").read_text(encoding="utf-8")))
    new = replaced(new, "expect", expect((reports / "sources.md").read_text(encoding="utf-8")))
    sound, _ = parted(files.rows(reports / "results.csv"))
    looked = frozenset(look.run_id for look in first_look.read(reports / first_look.FILE.name))
    new = replaced(new, "sources", sources(sound, facts_of(ROOT / "measured" / "runs"), looked))
    new = replaced(new, "figures", figures((reports / "figures.md").read_text(encoding="utf-8")))
    if "--check" in arguments:
        if new != old:
            print("README.md: its generated parts are not those of reports/; run ./run reports", file=sys.stderr)
        return int(new != old)
    if new != old:
        path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
