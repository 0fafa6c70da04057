"""One screen at the end of a run: as a user sees it, for many rows and few, with gates that fail and rows that broke."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import command_line
import pytest
from asked import ROOT, says
from hypothesis import given
from hypothesis import strategies as st

from harness.contracts import frame
from harness.contracts.results import BASELINE, FITS, Evaluation, Row, RunFacts
from harness.contracts.runs import BREAKDOWN
from harness.report import html, latex, markdown, post, screen, view, view_drift, view_rows
from harness.report.screen import LINES, Screen
from harness.report.table import Report
from harness.score import drift, gate
from projector.io import terminal

LONG = "framework-26.06.01-pretraining-some_model_120b-gb200-64g-mxfp8-gbs1280-tp1pp1cp1vp1ep64-{}"


def harness(*arguments: str | Path, cwd: Path, columns: int = 80) -> command_line.Done:
    return command_line.run("harness", *arguments, cwd=cwd, env={"COLUMNS": str(columns)}, timeout=600)


def fits_a_screen(text: str, columns: int = 80) -> None:
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert [line for line in lines if len(line) > columns and " " in line] == []
    assert "\x1b" not in text


def test_a_run_ends_in_one_screen(project_folder: Path) -> None:
    done = harness("run", "suites/tiny.yaml", "--mode", "both", cwd=project_folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    fits_a_screen(done.stdout)
    head, verdict, *_ = done.stdout.splitlines()
    assert head == "A tiny suite"
    assert verdict.startswith("Holds: simulate is ")
    for name in ("simulate", "benchmark", BASELINE, "llama-tp1", "llama-tp4", "mixtral-ep8", "what-if"):
        assert re.search(rf"^{name} ", done.stdout, re.MULTILINE), name
    says(done.stdout, "Gate: PASS, 2 of 2 checks hold.", "Page: out/tiny/report.html")


def test_quiet_says_the_gate_and_verbose_everything(project_folder: Path) -> None:
    quiet = harness("run", "suites/tiny.yaml", "--quiet", cwd=project_folder)
    assert [line.split()[:4] for line in quiet.stdout.splitlines()] == [
        ["PASS", "tiny", "simulate", "coverage:"],
        ["PASS", "tiny", "simulate", "mape:"],
    ]
    verbose = harness("run", "suites/tiny.yaml", "--verbose", cwd=project_folder)
    for title in ("Throughput error", "simulate: by GPU", "simulate: run by run", "Gate (held out)"):
        assert f"\n{title}\n" in verbose.stdout
    alone = harness("run", "--runs", "measured/runs/tiny.yaml", "--quiet", cwd=project_folder)
    assert (alone.returncode, alone.stdout) == (0, "Gate: none; a suite sets thresholds.\n")


def test_progress_is_for_a_terminal(project_folder: Path) -> None:
    """A bar on stderr where that is a terminal; stdout, piped, has none of it."""
    shown, out = command_line.on_terminal("stderr", "harness", "run", "suites/tiny.yaml", cwd=project_folder)
    says(shown, "projecting", "\x1b")
    fits_a_screen(out)
    assert "projecting" not in out


# Built rows


@pytest.fixture
def many(make_row: Callable[..., Row]) -> Evaluation:
    """Sixty long names, the later the worse; one refused, one case."""
    rows = []
    for i in range(60):
        name = LONG.format(i)
        for predictor in ("simulate", "benchmark", BASELINE):
            for fit in FITS:
                measured = None if i == 59 else 100.0
                projected = None if i == 58 else 100.0 + i
                rows.append(make_row(name, measured, projected, predictor=predictor, fit=fit, status="ok"))
    facts = {row.run_id: RunFacts(run_id=row.run_id) for row in rows}
    return Evaluation(rows=tuple(rows), facts=facts)


def shown(made: Screen, columns: int = 80) -> list[str]:
    return [text for text, _ in terminal.plain(screen.blocks(made), columns)]


def test_forty_lines_hold_the_worst_whatever_fails(many: Evaluation) -> None:
    limits = {mode: dict.fromkeys(("mape", "worst", "bias", "memory_mape"), 0.0) for mode in ("simulate", "benchmark")}
    checks = gate.check("s", many.frame, limits)
    before = [row if row.error is None else replace(row, error=0.0) for row in many.rows]
    moved = drift.compare(frame.of(before, many.facts), many.frame)
    report = Report(title="x" * 100, gate=tuple(map(str, checks)))
    report = view_drift.added(report, moved)
    made = Screen(report=report, evaluation=many, checks=checks, drift=moved, folder=Path("out/s"))
    lines = shown(made)
    assert len(lines) <= LINES
    assert [line for line in lines if len(line) > 80 and " " in line] == []
    text = "".join(line.strip() for line in lines)
    says(text, "Does not hold: simulate is", "+57.0 %")
    assert LONG.format(57)[-10:] in text
    assert f"{LONG.format(59)} 159" in re.sub(r"\s", " ", " ".join(lines))
    assert "Gate: FAIL, 0 of 9 checks hold." in text
    assert "more that do not: --quiet lists every check" in text
    assert "No projection of 1 of 60 rows" in text
    scattered = gate.Check(
        suite="s", predictor="simulate", name="shrink", found=None, limit=0.1, passed=True, inconclusive=True
    )
    unsure = "".join(shown(Screen(report=Report(title="x"), evaluation=many, checks=[scattered])))
    assert "Inconclusive (disturbed measurements; what is left holds): " in unsure
    assert "Gate: INCONCLUSIVE, 0 of 1 checks hold." in unsure
    lost = many.marked(many.facts)
    unsure = "".join(shown(Screen(report=Report(title="x"), evaluation=lost, checks=[scattered])))
    assert "Inconclusive (every measurement was disturbed): " in unsure


def test_what_is_unread_is_counted_and_the_most_frequent_named(many: Evaluation) -> None:
    said = {LONG.format(0): "attention: FlexAttention; xla: lhs", LONG.format(7): "attention: FlexAttention"}
    rows = tuple(replace(row, unread=said.get(row.run_id, "")) for row in many.rows)
    text = " ".join(" ".join(shown(Screen(report=Report(title="x"), evaluation=replace(many, rows=rows)))).split())
    assert "Unread words of rows: 2. Most often: attention: FlexAttention (2), xla: lhs (1)." in text
    assert "Unread" not in " ".join(shown(Screen(report=Report(title="x"), evaluation=many)))


def test_a_run_without_a_held_out_row_has_no_expectation(make_row: Callable[..., Row]) -> None:
    """A file may lack it: the run is shown with what it has."""
    held = replace(make_row("row-1"), interval_low=80.0, interval_high=125.0)
    rows = (held, *(make_row(f"row-{i}", fit="uncalibrated") for i in (1, 2)))
    evaluation = Evaluation(rows=rows, facts={row.run_id: RunFacts(run_id=row.run_id) for row in rows})
    made = {row[0]: row for row in view_rows.few(evaluation, "simulate").rows}
    assert made.keys() == {"row-1", "row-2"}
    assert "yes" in made["row-1"]
    assert "yes" not in made["row-2"]


@given(st.lists(st.floats(0, 1e3), min_size=len(BREAKDOWN), max_size=len(BREAKDOWN)))
def test_a_bar_is_a_whole_step_and_no_part_is_off_by_a_letter(parts: list[float]) -> None:
    row = Row(
        **dict.fromkeys(("run_id", "suite", "group", "gpu", "model", "family", "precision", "framework"), "x"),
        predictor="simulate", fit="uncalibrated", status="ok", gpus=8, **dict(zip(BREAKDOWN, parts, strict=True)),
    )  # fmt: skip
    made = view_rows.bar(row)
    if not sum(parts):
        assert made == ""
        return
    assert len(made) == 12
    letters = [view_rows.LETTERS[name] for name in BREAKDOWN]
    for letter, part in zip(letters, parts, strict=True):
        assert abs(made.count(letter) - 12 * part / sum(parts)) < 1.0 + 1e-6
    assert list(dict.fromkeys(made)) == [letter for letter in letters if letter in made]


def test_nothing_measured_is_no_claim(make_row: Callable[..., Row]) -> None:
    rows = [make_row("only", None, 104.0, fit=fit) for fit in FITS]
    evaluation = Evaluation(rows=tuple(rows), facts={"only": RunFacts(run_id="only")})
    lines = shown(Screen(report=Report(title="t"), evaluation=evaluation))
    assert lines[1] == "Simulate projects no row with a measured throughput and a whole configuration."
    whole = view.build(evaluation)
    assert any(table.title == "simulate: projected, nothing measured" for table in whole.tables)
    assert "only" in markdown.render(whole)
    assert "only" in latex.render(post.tables(evaluation))
    assert "only" in html.render(whole)


@pytest.mark.night
@pytest.mark.parametrize(
    "suite",
    sorted(
        path.name for path in (ROOT / "suites").glob("*.yaml") if path.stem not in ("local", "gpu", "small_strategies")
    ),
)
def test_every_suite_ends_in_one_screen(suite: str, tmp_path) -> None:
    done = harness("run", ROOT / "suites" / suite, "--mode", "both", "--out", tmp_path / "o", "--no-plots", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    fits_a_screen(done.stdout)
