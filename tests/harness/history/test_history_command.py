"""``harness run --record`` and ``harness history`` as a user runs them."""

import csv
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.history import store
from harness.history.store import Recorded
from harness.report import publish

Versions = Callable[..., tuple[Recorded, ...]]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys, monkeypatch, tmp_path) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(publish, "write_reports", lambda *_: None)  # a history is of rows

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def recorded(tmp_path, of_errors: Versions) -> Path:
    path = tmp_path / "history.sqlite"
    versions = of_errors(
        {"good": 0.02, "bad": 0.1, "gone": 0.1},
        {"good": 0.02, "bad": 0.11, "gone": 0.1},
        {"good": 0.02, "bad": 0.4, "gone": None},
        {"good": 0.02, "bad": 0.41, "gone": None},
    )
    for each in versions:
        store.append(path, each.recording, each.rows, each.facts)
    return path


def test_a_run_is_recorded_and_shown(call: Call, project_folder: Path) -> None:
    for _ in range(2):
        code, _, err = call("run", "suites/tiny.yaml", "--no-plots", "--out", "out", "--record")
        assert (code, err) == (0, "")
    (first, second) = store.read(project_folder / "history.sqlite")
    assert first.rows == second.rows
    assert len(first.rows) == 4 * 2 * 3, "runs and cases × predictors × fits"
    made = first.recording
    assert made.mode == "simulate"
    assert list(made.suites) == ["tiny"]
    assert made.settings == {}
    assert {"numpy", "PyYAML"} < set(made.versions)
    assert str(project_folder) not in json.dumps([made.suites, dict(made.versions), made.subject]), (
        "no path of a machine"
    )
    code, out, _ = call("history")
    assert code == 0
    assert "tiny, simulate" in out
    assert "constant-mfu" not in out
    assert out.count(made.label) == 3, (
        "the same code recorded twice is one version: twice in the headline, once in the table"
    )


def test_other_settings_and_loose_runs_are_series_of_their_own(call: Call, project_folder: Path) -> None:
    call("run", "suites/tiny.yaml", "--no-plots", "--record", "h", "--gpu-clock-mhz", "900")
    call("run", "suites/tiny.yaml", "--no-plots", "--record", "h")
    call("run", "--runs", "measured/runs/tiny.yaml", "--no-plots", "--record", "h")
    _, out, _ = call("history", "h")
    assert [line for line in out.splitlines() if ", simulate" in line] == [
        "tiny, simulate, gpu_clock_mhz=900.0", "tiny, simulate", "tiny.yaml, simulate"
    ]  # fmt: skip
    code, _, err = call("history", "h", "--suite", "tony", "--predictor", "simulated")
    assert code == 2
    assert [line.split(": ")[1] for line in err.splitlines()] == ["--suite", "--predictor"]


def test_the_change_at_which_a_row_broke_is_named(call: Call, recorded: Path) -> None:
    code, out, _ = call("history", recorded)
    assert code == 0
    assert "s, simulate: 2 rows are worse by more than 5 points or lost" in out
    code, out, _ = call("history", recorded, "--broken")
    (bad,) = [line for line in out.splitlines() if line.startswith("bad ")]
    assert [word for word in bad.split() if word not in ("%", "TGS")][:5] == [
        "bad", "+10.0", "+40.0", "+41.0", "300000000",
    ]  # fmt: skip
    assert "2 rows at 300000000 (2025-11-03, change 3)" in out
    code, out, _ = call("history", recorded, "--row", "gone")
    assert "lost at 300000000 (2025-11-03, change 3), behind 200000000" in " ".join(out.split())
    assert "unsupported: no model of it" in out
    assert "It never broke." in call("history", recorded, "--row", "good")[1]
    code, _, err = call("history", recorded, "--row", "goof")
    assert code == 2
    assert "nearest: good" in err


def test_tolerance_and_limit_are_the_users(call: Call, recorded: Path) -> None:
    assert "bad" not in call("history", recorded, "--broken", "--drift-tolerance", "0.5")[1]
    out = call("history", recorded, "--broken", "--drift-tolerance", "0.5", "--limit", "0.2")[1]
    assert "over the limit" in out


def test_json_and_csv_hold_the_figures(call: Call, recorded: Path) -> None:
    document = json.loads(call("history", recorded, "--json")[1])
    assert [r["broken"] for r in document["records"]] == [0, 0, 1, 0]
    assert [r["lost"] for r in document["records"]] == [0, 0, 1, 0]
    assert document["records"][0]["plain"] == pytest.approx((0.02 + 0.1 + 0.1) / 3)
    lines = list(csv.DictReader(io.StringIO(call("history", recorded, "--csv")[1])))
    assert [line["subject"] for line in lines] == [f"change {n}" for n in range(1, 5)]
    broken = list(csv.DictReader(io.StringIO(call("history", recorded, "--broken", "--csv")[1])))
    assert {(b["run_id"], b["kind"], b["subject"], b["version_before"]) for b in broken} == {
        ("bad", "broke", "change 3", "200000000"), ("gone", "lost", "change 3", "200000000")
    }  # fmt: skip
    rows = json.loads(call("history", recorded, "--row", "bad", "--json")[1])["records"]
    assert [r["error"] for r in rows] == pytest.approx([0.1, 0.11, 0.4, 0.41])


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_plot_is_drawn(call: Call, recorded: Path, tmp_path, ending: str) -> None:
    picture = tmp_path / "new" / f"h.{ending}"
    assert call("history", recorded, "--plot", picture)[0] == 0
    assert picture.read_bytes()[:4] == {"png": b"\x89PNG", "svg": b"<?xm", "pdf": b"%PDF"}[ending]


def test_wrong_input_is_one_mistake_each_and_nothing_is_projected(
    call: Call, project_folder: Path, recorded: Path
) -> None:
    code, _, err = call("history", "absent.sqlite")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "absent.sqlite does not exist" in err
    code, _, err = call("history", recorded, "--plot", "h.gif", "--csv", "--json")
    assert (code, len(err.splitlines())) == (2, 2)
    # the store's name was left out: the suite behind the flag is no store, and stays as it is
    suite = project_folder / "suites" / "tiny.yaml"
    before = suite.read_bytes()
    code, out, err = call("run", "--record", "suites/tiny.yaml", "--out", "out")
    assert code == 2
    assert "not a database" in err
    assert suite.read_bytes() == before
    assert (out, (project_folder / "out").exists()) == ("", False)


def test_an_empty_store_says_so(call: Call, recorded: Path) -> None:
    with sqlite3.connect(recorded) as opened:
        opened.execute("DELETE FROM recording")
    code, out, _ = call("history", recorded)
    assert (code, "Nothing is recorded." in out) == (0, True)
    assert call("history", recorded, "--plot", "h.png")[0] == 2
    assert call("history", recorded, "--csv")[1] == ""
