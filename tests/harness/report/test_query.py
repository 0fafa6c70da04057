"""Tables that users ask for: what they show, whatever they are grouped by, and how a wrong word is refused."""

import json
import re
from itertools import cycle
from pathlib import Path

import command_line
import pytest
import yaml
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.cli import main
from harness.contracts import frame
from harness.contracts.results import Evaluation, RunFacts
from harness.evidence import shelf
from harness.report import files, query, spec
from harness.report.spec import GROUPS, METRICS, Spec, table
from harness.report.table import Column, Report, Table
from harness.report.terminal import document
from harness.score import accuracy
from projector import cli
from projector.io.files import read_yaml
from tests.harness import plain_rows


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    rows, facts = [], {}
    for i in range(24):
        run = f"r{i:02d}"
        values = {
            "gpu": ("a100", "b200")[i % 2], "family": ("f", "g", "")[i % 3], "gpus": 8 << (i % 4), "group": f"g{i // 6}",
            "interval_low": 90.0, "interval_high": 115.0, "memory_error": 0.01 * i,
        }  # fmt: skip
        for predictor, off in (("simulate", 1.0 + 0.01 * i), ("constant-mfu", 1.5)):
            for fit in ("uncalibrated", "heldout"):
                projected = None if i == 23 else 100.0 * off
                rows.append(plain_rows.row(run, 100.0 + i, projected, predictor=predictor, fit=fit, **values))
        facts[run] = RunFacts(run_id=run, source="one @1, a", differs={"tp": str(1 << (i % 3)), "numa": run}, arch="x")
    return Evaluation(rows=tuple(rows), facts=facts)


@pytest.fixture
def results(evaluation: Evaluation, tmp_path) -> Path:
    saved = files.Saved(evaluation=evaluation, gates={}, provenance={})
    (tmp_path / "results.json").write_text(files.json_text(saved), encoding="utf-8")
    return tmp_path


def test_every_metric_and_every_group_is_shown(evaluation: Evaluation) -> None:
    groups = (*GROUPS, "numa")
    asked = {*zip(METRICS, cycle(groups), strict=False), *zip(cycle(METRICS), groups, strict=False)}
    for name, group in sorted(asked):
        made = query.ask(evaluation, group, name, [])
        assert made.rows
        assert all(len(line) == len(made.columns) == 2 for line in made.rows)


@given(groups=st.lists(st.sampled_from(["gpu", "family", "gpus", "tp", "group"]), min_size=1, max_size=3, unique=True))
def test_groups_split_the_rows_and_lose_none(evaluation: Evaluation, groups: list[str]) -> None:
    made = query.ask(evaluation, ",".join(groups), "rows,compared", [])
    assert sum(int(line[-2]) for line in made.rows) == 24
    assert sum(int(line[-1]) for line in made.rows) == 23
    assert len({line[:-2] for line in made.rows}) == len(made.rows)


def test_a_table_says_what_the_figures_of_its_rows_are(evaluation: Evaluation) -> None:
    made = query.ask(evaluation, "gpu", "compared,mape,worst_row", ["gpus>=16", "tp=1,4"])
    rows = frame.part(evaluation.once, predictor="simulate", fit="heldout", gpu="b200")
    chosen = rows[(rows["gpus"] >= 16) & frame.configured(rows, "tp").isin(["1", "4"])]
    s = accuracy.summarise(chosen)
    assert {line[0]: line[1:] for line in made.rows}["b200"] == (
        str(s.compared), f"{100 * s.macro_mape:.1f} %", s.worst_id,
    )  # fmt: skip


def test_figures_of_several_predictors_are_never_one_figure(evaluation: Evaluation) -> None:
    assert {line[0] for line in query.ask(evaluation, "gpu", "mape", []).rows} == {"a100", "b200"}
    both = query.ask(evaluation, "gpu", "mape", ["predictor=*"])
    assert [column.title for column in both.columns] == ["predictor", "GPU", "held out"]
    assert len(both.rows) == 4


def test_lines_without_a_figure_are_named_below(evaluation: Evaluation) -> None:
    spec = Spec(title="{predictor}", by=("run_id",), metrics=("compared", "bias??:b"), needs="compared")
    made = table(evaluation.once, spec, "simulate")
    assert (made.title, len(made.rows), made.note) == ("simulate", 23, "Nothing to compare (rows): r23 (1).")
    assert (made.columns[2].title, made.columns[2].minor) == ("b", 2)


WRONG = tabled("refusals", "query")


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_word_names_the_nearest(results: Path, case: str, capsys) -> None:
    words, expected = WRONG[case]
    assert main(["report", str(results), *words]) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert said.out == ""
    assert [path.name for path in results.iterdir()] == ["results.json"], "nothing is written"


def test_all_wrong_words_at_once(results: Path) -> None:
    words = ["--by", "gpuu,familly", "--metric", "mapee,tua", "--where", "x=1", "gpu=z", "gpus<y", "--format", "q"]
    assert len(command_line.refused("harness", "report", results, *words).strip().splitlines()) == 8


def test_the_formats_hold_the_same_figures(results: Path) -> None:
    def said(*words: str) -> str:
        return command_line.told("harness", "report", results, "--by", "gpu", "--metric", "compared,mape", *words)

    as_json = json.loads(said("--json"))["tables"][0]["rows"]
    assert said("--format", "csv").splitlines()[1:] == [",".join(row.values()) for row in as_json]
    for text in (said("--format", "md"), said(), said("--format", "tex").replace("\\,\\%", " %").replace("\\_", "_")):
        assert all(cell in text for row in as_json for cell in row.values())


def test_a_formula_in_a_name_stays_text(evaluation: Evaluation) -> None:
    rows = tuple(r.__class__(**{**r.to_mapping(), "gpu": "=cmd()"}) for r in evaluation.rows)
    made = query.ask(Evaluation(rows=rows, facts=evaluation.facts), "gpu", "mape", [])
    assert query.FORMATS["csv"](made).splitlines()[1].startswith("'=cmd()")


def _damaged(text: str) -> dict[str, bytes]:
    document = json.loads(text)
    older, newer = (json.dumps({**document, "schema_version": version}).encode() for version in (0, 99))
    return {
        "half-written": text[: len(text) // 2].encode(), "older": older, "newer": newer,
        "no version": text.replace("schema_version", "version").encode(),
        "foreign": b'{"accuracy": 0.93, "epochs": 3}',
        "a column too many": json.dumps({**document, "rows": [{**document["rows"][0], "colour": 1}]}).encode(),
        "a column too few": json.dumps({**document, "rows": [{"run_id": "a"}]}).encode(),
    }  # fmt: skip


@pytest.mark.parametrize("kind", _damaged('{"schema_version": 1, "rows": [{}]}'))
def test_results_of_another_kind_are_one_clear_error(results: Path, kind: str, capsys) -> None:
    path = results / "results.json"
    path.write_bytes(_damaged(path.read_text("utf-8"))[kind])
    assert main(["report", str(results), "--by", "gpu"]) == 2
    said = capsys.readouterr()
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert str(path) in said.err
    assert "Traceback" not in said.err
    if kind in ("older", "newer", "no version"):
        assert "schema_version: found" in said.err


def test_no_facts_for_a_run_is_refused(evaluation: Evaluation) -> None:
    refusal(frame.of, evaluation.rows, {}, kind=KeyError)
    refusal(query.ask, evaluation, "no such column", "", [])


def assert_is_column(said: dict[str, object]) -> None:
    assert ("text" in said) + ("figure" in said) + ("cells" in said) == 1
    assert set(said) <= {"text", "figure", "of", "as", "help", "minor", "when", "cells"}
    assert all(isinstance(said.get(key, ""), str) for key in ("text", "figure", "cells"))  # a bare on is true in YAML


def test_the_tables_of_the_projectors_commands_are_columns_and_each_is_shown() -> None:
    folder = Path(cli.__file__).parent
    said = read_yaml(folder / "tables.yaml")
    for each in (column for made in said.values() for column in made["columns"]):
        assert_is_column(each)
    code = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    assert all(f'"{name}"' in code for name in said)


def test_what_the_file_of_tables_says_is_read_and_what_is_asked_for_is_there() -> None:
    said = shelf.data("report/tables.yaml")
    columns = [*said["metrics"].values(), *(each for made in said["tables"].values() for each in made["columns"])]
    for each in columns:
        assert_is_column(each)
    code = "\n".join(path.read_text(encoding="utf-8") for path in Path(spec.__file__).parents[1].rglob("*.py"))
    assert set(re.findall(r'tabled\(\s*"(\w+)"', code)) == set(said["tables"])
    named = set(re.findall(r'SPECS\["(\w+)"\]', code)) | {"assumed", *(name for name in said["specs"] if "by_" in name)}
    assert named == set(said["specs"])


def test_a_title_that_stands_twice_loses_no_value() -> None:
    columns = (Column("", numeric=False), Column("rows"), Column("rows"))
    report = Report(title="r", tables=(Table(title="t", columns=columns, rows=(("a", "1", "2"),)),))
    (made,) = document(report, "c")["tables"]
    assert made["rows"] == [{"": "a", "rows": "1", "rows (2)": "2"}]


def test_the_file_of_tables_is_yaml_for_every_reader(every: int) -> None:
    """The loader in Python is stricter than that in C, and stands in where there is no library."""
    text = (Path(spec.__file__).parent / "tables.yaml").read_text(encoding="utf-8")
    pieces = re.split(r"(?m)^(?=\w)", text)[1:]
    known = shelf.data("report/tables.yaml")
    for piece in pieces[::every]:
        ((name, read),) = yaml.load(piece, yaml.SafeLoader).items()
        assert read == known[name]
