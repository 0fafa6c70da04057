"""``projector memory``: components of every rank, and a verdict with its margin."""

from __future__ import annotations

import pytest
from cli_command import DEEPSEEK, MIXTRAL, ON_MI355X, projector


def test_every_rank_and_its_components():
    done = projector("memory", "--config", DEEPSEEK, "--json")
    assert (done.code, done.err) == (0, "")
    memory = done.document["memory"]
    assert [rank["rank"] for rank in memory["ranks"]] == list(range(16))
    for rank in memory["ranks"]:
        assert sum(rank["components"].values()) == pytest.approx(rank["allocated"], rel=1e-12)
        assert rank["allocated"] < rank["reserved"] < rank["device"]
    assert memory["device"] == pytest.approx(max(rank["device"] for rank in memory["ranks"]))
    assert memory["margin"] == pytest.approx(memory["usable"] - memory["required"])
    assert (memory["status"], memory["fits"]) == ("fits", True)


def test_table_and_verdict():
    done = projector("memory", *ON_MI355X)
    assert done.code == 0
    lines = [line for line in done.out.splitlines() if line.split() and line.split()[0].isdigit()]
    rows = [line.split() for line in lines if "│" not in line]
    assert len([line for line in lines if "│" in line]) == 4
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    for row in rows:
        *sizes, allocated, _, _, _ = map(float, row[2:-1]) if _is_number(row[-1]) else (*map(float, row[2:-1]), 0.0)
        assert sum(sizes) == pytest.approx(allocated, abs=0.06)
    assert "\nFits: " in done.out
    assert "GiB to spare" in done.out


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "memory.svg"
    assert projector("memory", *ON_MI355X, "--draw", str(path), "--width", "60").code == 0
    assert path.read_text().lstrip().startswith("<?xml")


def test_a_picture_of_another_kind_is_refused(tmp_path):
    (line,) = projector("memory", *ON_MI355X, "--draw", str(tmp_path / "memory.bmp")).refused()
    assert "one of .png, .svg, .pdf" in line


def _is_number(text: str) -> bool:
    return text.replace(".", "").isdigit()


def test_too_big_is_told_with_exit_0():
    done = projector("memory", "--config", MIXTRAL, "--gpu-arch", "a100_sxm_40gb", "--gpus", "32")
    assert done.code == 0
    assert "Does not fit: " in done.out


def test_same_memory_as_performance():
    flags = (*ON_MI355X, "--micro-batch-size", "1", "--json")
    assert projector("memory", *flags).document["memory"] == projector("performance", *flags).document["memory"]


def test_all_schedules_belong_to_performance():
    (line,) = projector("memory", *ON_MI355X, "--pipeline-schedule-algorithm", "all").refused()
    assert "performance compares" in line
