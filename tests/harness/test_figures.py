"""The figures to report: right values, goals judged, reports written, README kept in step."""

import csv
import re
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import command_line
import pytest
from asked import ROOT

from harness.evaluation.evaluate import Evaluation
from harness.evaluation.speed import Speed
from harness.report import view_figures
from harness.report.table import Table

SPEED = Speed(
    projection=0.005, fresh_projection=0.009, suite=6.0, suite_again=2.0, suite_name="moe", import_bare=0.01,
    import_all=0.2, heavy=("pandas",),
)  # fmt: skip


@pytest.fixture
def evaluation(make_row, facts_for) -> Evaluation:
    rows = [
        make_row(name, measured, projected, fit=fit, predictor=predictor, gpu=gpu, memory_error=memory)
        for name, gpu, measured, simulated, constant, memory in (
            ("a", "h100_sxm", 100, 104, 150, 0.02),
            ("b", "h100_sxm", 100, 90, 150, -0.20),
            ("c", "mi355x", 100, 130, 101, None),
            ("d", "mi250", 100, None, None, None),
        )
        for predictor, projected in (("simulate", simulated), ("constant-mfu", constant))
        for fit in ("uncalibrated", "calibrated", "heldout")
    ]
    facts = facts_for(*rows)
    facts["a"] = replace(facts["a"], source="SimuMax results, github MooreThreads/SimuMax", memory_kind="allocated")
    facts["b"] = replace(facts["b"], source="someone/else @1: table", memory_kind="device")
    return Evaluation(rows=tuple(rows), facts=facts)


def table(evaluation: Evaluation, title: str) -> Table:
    return next(t for t in view_figures.build(evaluation, SPEED).tables if t.title == title)


def test_the_summary_judges_its_goals(evaluation: Evaluation) -> None:
    rows = [row[1:] for row in table(evaluation, "In short").rows]
    assert rows == [
        ("75.0 % (3 of 4 rows)", "≥ 90 %", "no"),
        ("18.5 % (14.7 % plain)", "", ""),
        ("18.5 % (14.7 % plain)", "≤ 15 %", "no"),
        ("1 of 2", "all", "no"),
        ("– (1 groups)", "", ""),  # all measured alike: no order to find
        ("–", "85 % to 95 %", "no"),  # too few families to learn an interval from
        ("2.00 % (1 rows)", "≤ 5 %", "yes"),
        ("20.0 % (1 rows)", "", ""),
    ]


def test_what_cannot_be_compared_is_named_below_the_table(evaluation: Evaluation) -> None:
    by_gpu = table(evaluation, "By GPU")
    assert [row[0] for row in by_gpu.rows] == ["h100_sxm", "mi355x"]
    assert [row[-1] for row in by_gpu.rows] == ["50.0 %", "1.0 %"]
    assert by_gpu.note.endswith("Nothing to compare (rows): mi250 (1).")


def test_memory_by_the_project_that_measured_it(evaluation: Evaluation) -> None:
    rows = [(row[0], row[1], row[4], row[5]) for row in table(evaluation, "Memory").rows]
    assert rows == [
        ("moorethreads/simumax", "allocated", "2.0 %", "+2.0 %"),
        ("someone/else", "device", "20.0 %", "-20.0 %"),
    ]


def test_speed_stands_apart_and_can_be_left_out(evaluation: Evaluation) -> None:
    met = [row[3] for row in table(evaluation, "Speed").rows]
    assert met == ["yes", "", "no", "yes", "yes", "", "no"]
    assert "Speed" not in [t.title for t in view_figures.build(evaluation).tables]


def harness(*arguments: str, cwd: Path) -> command_line.Done:
    return command_line.run("harness", *arguments, cwd=cwd, env={"COLUMNS": "100"})


def test_the_command_writes_reports_that_repeat(project_folder: Path) -> None:
    texts = []
    for out in ("one", "two"):
        done = harness("figures", "--no-speed", "--out", out, cwd=project_folder)
        assert done.returncode == 0, done.stderr
        assert max(map(len, done.stdout.splitlines())) <= 100
        texts.append({p.name: p.read_bytes() for p in (project_folder / out).iterdir()})
    assert texts[0] == texts[1]
    assert {"figures.md", "accuracy.md", "accuracy.html", "results.csv"} < set(texts[0])
    rows = list(csv.DictReader(texts[0]["results.csv"].decode().splitlines()))
    assert {row["fit"] for row in rows} == {"uncalibrated", "heldout"}
    assert {row["seconds_to_project"] for row in rows} == {""}


def test_wrong_input_is_refused_at_once(project_folder: Path) -> None:
    done = harness("figures", "--measured", "nowhere", "--suite", "none.yaml", "--out", "o", cwd=project_folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert not (project_folder / "o").exists()


@pytest.fixture(scope="module")
def update_readme() -> ModuleType:
    spec = spec_from_file_location("update_readme", ROOT / "tools" / "update_readme.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_of_the_readme(update_readme: ModuleType) -> None:
    text = "# T\n\n## In short\n\n| a |\n\n## Memory\n\n| m |\n\n## Speed\n\n| s |\n"
    assert update_readme.figures(text) == "### In short\n\n| a |"
    old = "x\n<!-- figures:begin -->\nold\n<!-- figures:end -->\ny\n"
    new = update_readme.replaced(old, "figures", "new")
    assert new == "x\n<!-- figures:begin -->\nnew\n<!-- figures:end -->\ny\n"
    with pytest.raises(SystemExit, match="output:begin"):
        update_readme.replaced(old, "output", "new")


def test_one_screen_is_shown_whole(update_readme: ModuleType) -> None:
    text = "\n".join(f"line {i}" for i in range(25)) + "\n"
    assert update_readme.excerpt(text) == f"```text\n{text}```"


def test_the_readme_is_short_and_has_its_parts() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 270  # three answers as they are printed among them
    first = "\n".join(text.splitlines()[:150])
    for word in ("**The projector**", "**The harness**", "runs compared", "./run "):
        assert word in first, "the first screens say what it is, how to start, how good it is"
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (ROOT / target).exists(), target


def test_an_excerpt_is_cut_and_keeps_the_gate(update_readme: ModuleType) -> None:
    blocks = [
        "T\nline",
        *(f"t{i}\nh\n-\n" + "\n".join("row  1" for _ in range(20)) for i in range(6)),
        "Gate (held out)\nPASS",
    ]
    made = update_readme.excerpt("\n\n".join(blocks))
    assert made.startswith("```text\nT\nline\n\nt0")
    assert made.endswith("\n\nGate (held out)\nPASS\n```")
    assert made.count("row  1\n") == update_readme.TABLES * update_readme.ROWS
    assert "t4" not in made
