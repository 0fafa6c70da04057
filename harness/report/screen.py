"""The result of a run on one screen: the verdict, five figures, the rows that matter by name, changes, the gate, and
where everything else lies."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report import spec, view_drift, view_rows
from harness.report.said import said
from harness.report.table import Report, Table, number, percent, signed
from harness.score import accuracy
from harness.score.drift import Drift
from harness.score.figures import Figures
from harness.score.gate import Check
from projector.dataclass import dataclass
from projector.io import terminal
from projector.io.table import Line

#: Most lines of a screen, at 80 columns.
LINES = 40
_WIDTH = 80
_WORST = 5
_MOVED = 0.001  # a tenth of a point; less is not worth a line
_REASON = 120  # characters of a refusal
_WORDS_SHOWN = 60  # characters of a row's unread words
_NO_GATE = "Gate: none; a suite sets thresholds."
_WORDS = {
    "PASS": "Holds: ",
    "FAIL": "Does not hold: ",
    "INCONCLUSIVE": "Inconclusive (disturbed measurements; what is left holds): ",
}
_NAMED = 3  # cases, and rows that moved, which are named

Block = Line | Table


@dataclass(frozen=True, kw_only=True)
class Screen:
    """The content of a screen. ``report``: with its gate lines, those of a comparison too; ``drift``: the comparison;
    ``folder``: of the files."""

    report: Report
    evaluation: Evaluation
    checks: Sequence[Check] = ()
    drift: Drift | None = None
    folder: Path | None = None

    @property
    def judged(self) -> int:
        """Returns the number of checks; a comparison with earlier results is one."""
        return len(self.checks) + (self.drift is not None)

    @property
    def failed(self) -> list[str]:
        """Returns one line for each check that does not hold."""
        lost = [] if self.drift is None or self.drift.passed else ["FAIL against earlier results"]
        return [str(check) for check in self.checks if not check.passed] + lost

    @property
    def unsure(self) -> list[str]:
        """Returns one line for each check about which the measurements say nothing."""
        return [str(check) for check in self.checks if check.passed and check.inconclusive]

    @property
    def verdict(self) -> str:
        """Returns the verdict on all checks together."""
        return "FAIL" if self.failed else "INCONCLUSIVE" if self.unsure else "PASS"

    @property
    def main(self) -> str:
        """Returns the predictor that answers for the error: the first with a threshold on the error, else the first."""
        judged = [check.predictor for check in self.checks if check.name == "mape"]
        return (judged or self.evaluation.predictors)[0]


def blocks(screen: Screen) -> list[Block]:
    """Returns at most :data:`LINES` lines at 80 columns: where there would be more, names are broken less often at the
    cost of columns, and fewer rows and failures are listed."""
    head = (
        Line(screen.report.title, "bold"),
        Line(_verdict(screen)),
        spec.table(screen.evaluation.once, spec.SPECS["screen"]),
    )
    single, refused = _rows(screen), [*_refused(screen), *_doubted(screen), *_unread(screen)]
    for name, most in ((24, view_rows.FEW), *((0, most) for most in range(view_rows.FEW, 0, -1))):
        shown = [*head, *_shortened(single, most, name), *refused, *_tail(screen, most)]
        if sum(1 for _ in terminal.plain(shown, _WIDTH)) <= LINES:
            break
    return shown


def gate(screen: Screen) -> Iterator[Line]:
    """Yields a line for every check, for readers who want nothing else."""
    yield from (Line(line, _style(line)) for line in screen.report.gate)
    if not screen.judged:
        yield Line(_NO_GATE)


def _tail(screen: Screen, most: int) -> Iterator[Block]:
    if screen.drift is not None:
        yield Line("")
        yield from _changed(screen.drift, most)
    yield Line("")
    yield from _gate(screen, most)
    if screen.folder is not None:
        rest = "rows: results.csv; all tables: report.md, --verbose"
        yield Line(f"Page: {screen.folder / 'report.html'} ({rest})", "dim")


def _verdict(screen: Screen) -> str:
    """Returns the verdict in one sentence."""
    of = Figures.of(screen.evaluation.once, screen.main)
    held = of.held
    word = _WORDS[screen.verdict] if screen.judged else ""
    if screen.verdict == "INCONCLUSIVE" and bool(of.rows["disturbed"].all()):
        word = "Inconclusive (every measurement was disturbed): "
    key = "screen_nothing" if held.macro_mape is None else "screen_one" if held.compared == 1 else "screen_many"
    sentence = said(key, {"name": screen.main, "held": held})[0]
    return f"{word}{sentence}." if word else f"{sentence[0].upper()}{sentence[1:]}."


def _rows(screen: Screen) -> list[Block]:
    """Returns all of few runs; of many, those that are furthest off, and the cases that nobody measured."""
    table = view_rows.few(screen.evaluation, screen.main)
    if table.rows:
        return [table]
    compared = view_rows.beside_expected(screen.evaluation.once, screen.main).dropna(subset=["held_error"])
    sized = compared.assign(size=compared["held_error"].abs())
    furthest = sized.sort_values(["size", "run_id"], ascending=[False, True])[:_WORST]
    worst = spec.tabled("furthest_off", frame.lines(furthest), name=screen.main)
    blocks: list[Block] = [worst] if worst.rows else []
    cases = view_rows.unmeasured_rows(screen.evaluation, screen.main)
    if cases:
        named = ", ".join(f"{row.run_id} {number(row.projected_tgs, 0)}" for row in cases[:_NAMED])
        more = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
        blocks.append(Line(f"Projected, nothing measured (tokens/s/GPU): {named}{more}"))
    return blocks


def _shortened(blocks: Sequence[Block], most: int, name: int) -> Iterator[Block]:
    """Yields the blocks, tables cut to ``most`` rows, first column broken to ``name`` characters (0: as usual)."""
    for block in blocks:
        if isinstance(block, Table):
            more = len(block.rows) - most
            note = f"And {more} more: --verbose. {block.note}" if more > 0 else block.note
            columns = (replace(block.columns[0], least=name), *block.columns[1:])
            block = replace(block, columns=columns, rows=block.rows[:most], note=note)
        yield block


def _refused(screen: Screen) -> Iterator[Line]:
    plain = frame.part(screen.evaluation.once, predictor=screen.main, fit="uncalibrated")
    refusals = accuracy.refusals(plain)
    if refusals:
        total = int(plain["projected_step_seconds"].isna().sum())
        first = refusals[0]
        reason = textwrap.shorten(first.reason, _REASON, placeholder=" …")
        yield Line(f"No projection of {total} of {len(plain)} rows, most often: {reason} ({len(first.run_ids)}).")


def _doubted(screen: Screen) -> Iterator[Line]:
    named = list(dict.fromkeys(row.run_id for row in screen.evaluation.doubted))
    if named:
        text = f"Doubted by their own sources, and part of no figure here: {spec.few(named, _NAMED)}."
        yield Line(text)


def _unread(screen: Screen) -> Iterator[Line]:
    """Yields how many rows have unread words, and the words that most rows have."""
    rows = {row.run_id: row.unread.split("; ") for row in screen.evaluation.every if row.unread}
    if rows:
        counts = Counter(text for texts in rows.values() for text in texts).most_common()
        named = [f"{textwrap.shorten(text, _WORDS_SHOWN, placeholder=' …')} ({count})" for text, count in counts]
        yield Line(f"Unread words of rows: {len(rows)}. Most often: {spec.few(named, _NAMED)}.")


def _changed(drift: Drift, most: int) -> Iterator[Line]:
    counts = {"lost": drift.lost, "broken": drift.broken, "removed": drift.removed, "gained": drift.gained}
    counted = ", ".join(f"{len(keys)} {word}" for word, keys in (*counts.items(), ("new", drift.added)))
    mean = f"mean error of shared rows {percent(drift.before)} before, {percent(drift.after)} now"
    yield Line(f"Against earlier results: {counted}; {mean}.")
    causes = list(view_drift.causes(drift))
    yield from (Line(text, "bad") for text in causes[:most][:_WORST])
    if len(causes) > min(most, _WORST):
        yield Line(f"and {len(causes) - min(most, _WORST)} more rows: --quiet names ten, report.md all", "bad")
    moved = [m for m in drift.moved if m not in drift.broken and abs(m.growth) >= _MOVED]
    for m in sorted(moved, key=lambda m: -abs(m.growth))[: max(0, min(most, _NAMED) - len(causes))]:
        word = "worse" if m.growth > 0 else "better"
        yield Line(f"{word}: {m.run_id}, {m.predictor}: {m.metric} error {signed(m.before)} → {signed(m.after)}")


def _gate(screen: Screen, most: int) -> Iterator[Line]:
    if not screen.judged:
        yield Line(_NO_GATE)
        return
    open_ = [*screen.failed, *screen.unsure]
    word = screen.verdict
    yield Line(f"Gate: {word}, {screen.judged - len(open_)} of {screen.judged} checks hold.", _style(word))
    yield from (Line(line, "bad") for line in open_[:most])
    if len(open_) > most:
        yield Line(f"and {len(open_) - most} more that do not: --quiet lists every check", "bad")


def _style(line: str) -> str:
    return "good" if line.startswith("PASS") else "bad"
