"""Publishers from titles, runs that their own sources doubt, and first looks that stay."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import command_line
import pytest
from asked import put, refusal
from tabled import tabled

from harness import cli
from harness.contracts.estimates import publisher
from harness.contracts.results import Evaluation, Row, RunFacts
from harness.contracts.runs import MeasuredRun, Prediction
from harness.evaluation import evaluate, first_look
from harness.evaluation.evaluate import Selected
from harness.evaluation.first_look import Look
from harness.evidence import dataset, run_text, suite
from harness.report import files, junit, payload, post, publish, screen, verdict, view, view_sources
from harness.score import gate


@pytest.mark.parametrize(("title", "expected"), tabled("names", "publishers"))
def test_publishers(title: str, expected: str) -> None:
    assert publisher(title) == expected


Gate = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Half:
    """Projects half of the measured time."""

    name: str = "simulate"

    def predict(self, run: MeasuredRun) -> Prediction:
        return Prediction(status="ok", step_seconds=0.5 * (run.measured.step_seconds or 1.0))


@pytest.fixture
def runs(project_folder: Path) -> list[MeasuredRun]:
    return list(suite.load(project_folder / "suites" / "tiny.yaml").runs)


def test_a_doubted_run_stands_apart_and_teaches_nothing(runs: list[MeasuredRun]) -> None:
    doubted = replace(runs[0], doubt='"an outlier", its source says')
    far = replace(doubted, measured=replace(doubted.measured, step_seconds=1e3, tgs=1.0))
    made = [evaluate.evaluate([Selected("s", r) for r in (one, *runs[1:])], [Half()]) for one in (doubted, far)]
    assert made[0].rows == made[1].rows
    assert {row.run_id for row in made[0].doubted} == {doubted.id}
    assert doubted.id not in {row.run_id for row in made[0].rows}
    assert made[0].doubted[0].error == pytest.approx(1.0)
    assert {row.doubt for row in made[0].doubted} == {doubted.doubt}
    assert evaluate.evaluate([Selected("s", r) for r in runs[1:]], [Half()]).rows == made[0].rows


def test_a_doubt_takes_a_run_out_of_everything_that_is_judged_or_drawn(runs: list[MeasuredRun]) -> None:
    """What is left is what would be there had the run never been, but for one table, one line and the tail of the rows."""
    doubted = replace(runs[1], doubt='"an outlier", its source says')
    rest = [run for run in runs if run.id != doubted.id]
    limits = {"simulate": dict.fromkeys(gate.THRESHOLDS, 1.0)}
    with_it, without = (
        evaluate.evaluate([Selected("s", run) for run in every], [Half()]) for every in ([doubted, *rest], rest)
    )
    for one, other in zip(*(_said(made, limits) for made in (with_it, without)), strict=True):
        assert one == other
    assert [t.title for t in view.build(with_it).tables if "doubted" in t.title] == [
        "simulate: doubted by their own sources"
    ]
    sound = evaluate.evaluate([Selected("s", run) for run in runs], [Half()])
    assert _said(sound, limits)[1] != _said(without, limits)[1]  # the doubt is what took it out


def _said(made: Evaluation, limits: Gate) -> list[object]:
    """Gates, tables, sentences, the post, the page's own rows, the five figures, and the frame of all plots."""
    report = view.build(made, title="t")
    checks = gate.check("s", made.frame, limits)
    return [
        [str(check) for check in checks], [table for table in report.tables if "doubted" not in table.title],
        report.lines, verdict.verdict(made), post.render(made, "t", (), {}, {}), payload.build(made), made.once.to_csv(),
    ]  # fmt: skip


def test_doubted_rows_are_kept_in_the_files_and_come_back_apart(runs: list[MeasuredRun], tmp_path) -> None:
    doubted = replace(runs[0], doubt="a threshold, it says")
    made = evaluate.evaluate([Selected("s", run) for run in (doubted, *runs[1:])], [Half()])
    saved = files.Saved(evaluation=made, gates={}, provenance={})
    publish.write_rows(tmp_path, saved)
    for back in (files.rows(tmp_path), files.rows(tmp_path / "results.csv")):
        assert {row.run_id for row in back if row.doubt} == {doubted.id}
    again = files.read(tmp_path).evaluation
    assert (again.rows, again.doubted) == (made.rows, made.doubted)
    assert "skipped" in junit.render([], made.every)
    shown = screen.Screen(report=view.build(again), evaluation=again)
    assert any(doubted.id in str(block) for block in screen.blocks(shown))


def test_only_doubted_runs_make_a_report_of_nothing_but_them(runs: list[MeasuredRun], tmp_path, capsys) -> None:
    table = put(tmp_path / "runs.yaml", run_text.to_yaml([replace(runs[0], doubt="a threshold, it says")]))
    assert cli.main(["run", "--runs", str(table), "--out", str(tmp_path / "out"), "--no-plots"]) == 0
    assert f"part of no figure here: {runs[0].id}" in " ".join(capsys.readouterr().out.split())
    assert "a threshold, it says" in (tmp_path / "out" / "report.md").read_text()


def test_a_run_that_was_sound_and_is_doubted_now_is_no_lost_row(runs: list[MeasuredRun], tmp_path, capsys) -> None:
    sound, doubtful = tmp_path / "sound.yaml", tmp_path / "doubtful.yaml"
    measured = [run for run in runs if run.measured.tgs]
    sound.write_text(run_text.to_yaml(measured))
    doubtful.write_text(run_text.to_yaml([replace(measured[0], doubt="a threshold, it says"), *measured[1:]]))
    call = ["run", "--no-plots", "--runs"]
    for table, earlier in ((doubtful, sound), (sound, doubtful)):
        assert cli.main([*call, str(earlier), "--out", str(tmp_path / "a")]) == 0
        assert cli.main([*call, str(table), "--out", str(tmp_path / "b"), "--against", str(tmp_path / "a")]) == 0
        assert "0 lost, 0 broken, 0 removed" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["''", "' '", "7", "[a]"])
def test_a_doubt_is_words(tmp_path, text: str) -> None:
    path = tmp_path / "runs.yaml"
    head = "- {id: a, source: {title: t}, gpu: '', gpus: 0, stack: {framework: ''}, measured: {}, problem: no gpu"
    refusal(dataset.read, put(path, f"{head}, doubt: {text}}}\n"), match="in words|expected text")
    run = dataset.read(put(path, head + ", doubt: 'footnoted \"regression\"'}\n"))[0]
    assert run.doubt == 'footnoted "regression"'
    assert dataset.read(put(path, run_text.to_yaml([run]))) == [run]


def test_rows_of_one_publisher_are_left_out_together(runs: list[MeasuredRun]) -> None:
    titles = ("a/b one.md", "A/b two.md", "c/d", "e/f")
    named = [replace(r, source=replace(r.source, title=title)) for r, title in zip(runs, titles, strict=False)]
    made = evaluate.evaluate([Selected("s", r) for r in named], [Half()])
    seen = made.observed["simulate"]
    assert {o.source for o in seen} == {"a/b", "c/d", "e/f"} & {publisher(r.source.title) for r in named}


def test_a_look_is_made_once(runs: list[MeasuredRun], tmp_path) -> None:
    path = tmp_path / "looks" / "first_look.csv"
    measured = first_look.due(runs, ())
    made = first_look.look(measured[:1], Half(), "r1")
    first_look.append(path, made)
    before = path.read_text()
    assert first_look.read(path)[0].error == pytest.approx(1.0)
    seen = [each.run_id for each in first_look.read(path)]
    assert measured[0].id not in {run.id for run in first_look.due(runs, seen)}
    first_look.append(path, first_look.look(measured[1:], Half(), "r2"))
    assert path.read_text().startswith(before)
    assert [each.run_id for each in first_look.read(path)] == [run.id for run in measured]


def test_an_interval_that_says_nothing_is_neither_in_nor_out(runs: list[MeasuredRun]) -> None:
    (made,) = first_look.look(first_look.due(runs, ())[:1], Half(), "")
    assert replace(made, low=1.0, high=1e9).inside is True
    assert replace(made, low=None).inside is None


def test_the_command_keeps_what_it_saw(runs: list[MeasuredRun], tmp_path) -> None:
    table, out = tmp_path / "runs.yaml", tmp_path / "first.csv"
    table.write_text(run_text.to_yaml(runs))
    call = ["first-look", str(table), "--out", str(out), "--known", str(tmp_path / "none.csv")]
    assert "By source" in command_line.told("harness", *call)
    kept = out.read_bytes()
    assert cli.main(call) == 0
    assert out.read_bytes() == kept
    assert str(put(out, "run_id,error\na,b\n")) in command_line.refused("harness", *call)


# The report on sources: each is held out whole, the first look stays beside today's figures.

Make = Callable[..., Row]


@pytest.fixture
def evaluation(make_row: Make) -> Evaluation:
    """Five sources of six runs, all projected 10 % too fast but for one at 60 %."""
    rows, facts = [], {}
    for s in range(5):
        for i in range(6):
            run = f"r{s}-{i}"
            off = 1.6 if s == 4 else 1.1
            rows.append(make_row(run, 100.0, 100.0 * off, fit="uncalibrated", family=f"f{i}", framework=f"fw{s}"))
            facts[run] = RunFacts(run_id=run, source=f"Owner/Repo{s} file{i}.md @1")
    return Evaluation(rows=tuple(rows), facts=facts)


def held_out(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, rows=tuple(replace(row, fit="heldout") for row in evaluation.rows))


def look(run: str, source: str, error: float, doubt: str = "") -> Look:
    return Look(
        run_id=run, publisher=source, gpu="g", framework="w", family="f", doubt=doubt, measured=100.0,
        projected=100.0 * (1 + error), error=error, expected=100.0, low=90.0, high=110.0,
    )  # fmt: skip


def test_every_source_is_held_out_whole(evaluation: Evaluation) -> None:
    made = view_sources.build(held_out(evaluation), [], "simulate")
    rows = {row[0]: row for row in made.tables[-1].rows}
    assert list(rows) == [f"owner/repo{s}" for s in range(5)]
    assert {row[1] for row in rows.values()} == {"6"}
    odd = float(rows["owner/repo4"][3].removesuffix(" %"))
    assert odd > 40.0
    assert all(float(rows[f"owner/repo{s}"][3].removesuffix(" %")) < odd for s in range(4))
    assert made.lines[0].startswith("By the code of today, which was made with most of them in sight: half of")
    assert "over 5 sources" in made.lines[0]


def test_the_first_look_stands_beside_today(evaluation: Evaluation) -> None:
    looks = [
        look("r0-0", "owner/repo0", 0.5),
        look("r0-1", "owner/repo0", -0.3),
        look("r1-0", "owner/repo1", 9.0, "doubted"),
    ]
    made = view_sources.build(held_out(evaluation), looks, "simulate")
    first = made.tables[0]
    assert [row[:6] for row in first.rows] == [
        (name, "2", "40.0 %", "40.0 %", "+10.0 %", "100 %") for name in ("owner/repo0", "all")
    ]
    assert [row[6] for row in first.rows] == ["2", "2"]
    assert "2 runs of 1 sources were off by 40.0 %" in made.lines[1]


def test_nothing_is_nothing() -> None:
    made = view_sources.build(Evaluation(rows=(), facts={}), [], "simulate")
    assert made.tables == ()
    assert made.lines == ("nothing to compare",)
