"""Suites: what a good one selects, and every mistake of a bad one at once."""

from pathlib import Path

import command_line
import pytest
from asked import ROOT, put, refusal
from tabled import tabled

from harness.evidence import shelf, suite


def problems(folder: Path, text: str) -> list[str]:
    caught = refusal(suite.load, put(folder / "suites" / "tiny.yaml", text))
    return [str(p) for p in caught.problems]


def loaded(folder: Path, text: str) -> suite.Suite:
    return suite.load(put(folder / "suites" / "tiny.yaml", text))


def ids(made: suite.Suite) -> list[str]:
    return [run.id for run in made.runs]


def test_a_good_suite(project_folder: Path) -> None:
    made = suite.load(project_folder / "suites" / "tiny.yaml")
    assert ids(made) == ["llama-tp1", "llama-tp4", "mixtral-ep8", "what-if"]
    case = made.runs[-1]
    assert (case.gpu, case.gpus, case.measured.tgs) == ("mi355x", 16, None)
    assert made.gate == {"simulate": {"coverage": 1.0, "mape": 10.0}}
    assert [p.name for p in made.inputs] == ["tiny.yaml", "tiny.yaml"]


@pytest.mark.parametrize(("entry", "expected"), tabled("readers", "suite_selections"))
def test_selection(project_folder: Path, entry: str, expected: tuple[str, ...]) -> None:
    assert ids(loaded(project_folder, f"suite: s\nselect: [{entry}]\n")) == list(expected)


def test_a_row_that_two_entries_match_is_selected_once(project_folder: Path) -> None:
    made = loaded(project_folder, "suite: s\nselect: [{id: llama-tp4}, {runs: tiny}]\n")
    assert ids(made) == ["llama-tp4", "llama-tp1", "mixtral-ep8"]


def test_all_mistakes_at_once(project_folder: Path) -> None:
    wrong = tabled("refusals", "suite_of_mistakes")
    found = problems(project_folder, wrong["text"])
    for piece in wrong["said"]:
        assert piece in "\n".join(found)
    assert all(line.startswith(str(project_folder / "suites" / "tiny.yaml")) for line in found)


MOE = "mixtral_8x7b"


def case(recipe: str, gpus: int = 8, model: str = "llama3_8b") -> str:
    return f"suite: s\ncases:\n  - {{id: a, model: {model}, gpu: h100_sxm, gpus: {gpus}, recipe: {{{recipe}}}}}\n"


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        *tabled("refusals", "suites"),
        (case("tp: 3, micro_batch_size: 1, global_batch_size: 8, seq_length: 4096", 24), "cases[0].recipe.tp"),
        (case("ep: 3, micro_batch_size: 1, global_batch_size: 12, seq_length: 4096", 12, MOE), "cases[0].recipe.ep"),
        (case("micro_batch_size: 1, global_batch_size: 8, seq_length: 0"), "cases[0].recipe.seq_length"),
        (case("tp: 8, micro_batch_size: 1, global_batch_size: 8, seq_length: 4096", 12), "cases[0]."),
        (
            case("micro_batch_size: 1, global_batch_size: 8, seq_length: 4096").replace("id: a", "id: llama-tp1")
            + "select: [{runs: tiny}]\n",
            "cases[0].id: found 'llama-tp1'",
        ),
    ],
)
def test_broken_files(project_folder: Path, text: str, piece: str) -> None:
    assert any(piece in line for line in problems(project_folder, text))


def test_a_number_out_of_range_is_named_beside_an_unknown_key(project_folder: Path) -> None:
    """What stops the reading of a case must not hide its other mistakes."""
    recipe = "recipe: {micro_batch_sise: 1, micro_batch_size: -1, global_batch_size: 8, seq_length: 4096, tp: 0}"
    case = f"{{id: c, model: {{base: llama3_8b, num_layers: 0}}, gpu: b200, gpus: 8, {recipe}}}"
    found = "\n".join(problems(project_folder, f"suite: s\ncases: [{case}]\n"))
    for key in ("micro_batch_sise: found 1", "micro_batch_size: found -1", "tp: found 0", "num_layers: found 0"):
        assert found.count(key) == 1


def test_a_missing_suite_and_a_missing_folder(tmp_path) -> None:
    refusal(suite.load, tmp_path / "suites" / "none.yaml", match="does not exist")
    (tmp_path / "s.yaml").write_text("suite: s\nselect: [{gpu: mi300x}]\n")
    refusal(suite.load, tmp_path / "s.yaml", match="a folder of measured runs")


def test_mistakes_of_measured_runs_are_reported_too(project_folder: Path) -> None:
    runs = project_folder / "measured" / "runs" / "tiny.yaml"
    runs.write_text(runs.read_text().replace("gpus: 8", "gpuss: 8").replace("tp: 4", "tp: four"))
    found = problems(project_folder, "suite: s\nselect: [{runs: tiny}]\n")
    assert sum("gpuss" in line for line in found) == 3
    assert any("four" in line for line in found)


def test_several_suites_report_together_and_need_names_of_their_own(project_folder: Path) -> None:
    folder = project_folder / "suites"
    (folder / "twin.yaml").write_text((folder / "tiny.yaml").read_text())
    refusal(suite.load_all, [folder / "tiny.yaml", folder / "twin.yaml"], match="no other suite")
    (folder / "twin.yaml").write_text("suite: [")
    assert len(refusal(suite.load_all, [folder / "twin.yaml", folder / "missing.yaml"]).problems) == 2


# The project's own suites by name, wherever the command is called.


def test_a_bare_name_is_a_suite_of_the_project(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shelf.suite(Path("scaling")) == ROOT / "suites" / "scaling.yaml"
    assert shelf.folder("measured/runs") == ROOT / "measured" / "runs"
    monkeypatch.chdir(ROOT)
    assert shelf.suite(Path("scaling")) == Path("suites/scaling.yaml")
    assert shelf.folder("measured/runs") == Path("measured/runs")


def test_the_users_own_suite_comes_first(project_folder: Path, monkeypatch) -> None:
    inside = project_folder / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert shelf.suite(Path("tiny")) == project_folder.resolve() / "suites" / "tiny.yaml"
    for path in (Path("tiny.yaml"), Path("suites/tiny"), Path("./x/tiny")):
        assert shelf.suite(path) == path
    (inside / "tiny").write_text("suite: other")
    assert shelf.suite(Path("tiny")) == Path("tiny")
    refusal(shelf.suite, Path("tony"), match="nearest: tiny")


def test_a_suite_by_name_through_the_command(project_folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(project_folder)
    assert command_line.document("harness", "run", "tiny", "--no-plots")["title"] == "A tiny suite"
    assert len(command_line.refused("harness", "run", "tony", "tinny", "--no-plots").splitlines()) == 2
