"""The cache on disk: what it gives is what was made, and whatever is wrong with it is made again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.evidence import dataset, run_text
from projector.io import kept

ROOT = Path(__file__).resolve().parents[3]
RUNS = ROOT / "measured" / "runs" / "simumax_a100.yaml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Path]]]:
    monkeypatch.setenv("PROJECTOR_CACHE", str(tmp_path / "cache"))
    kept._folder.cache_clear()
    yield lambda: sorted(p for p in (tmp_path / "cache").rglob("*") if p.is_file())
    kept._folder.cache_clear()


def test_what_is_kept_is_given_back(folder: Callable[[], list[Path]]) -> None:
    assert kept.recall("kind", "content") is None
    kept.keep("kind", "content", {"a": (1, 2.5)})
    assert kept.recall("kind", "content") == {"a": (1, 2.5)}
    assert kept.recall("kind", "other") is None
    assert kept.recall("other", "content") is None
    assert len(folder()) == 1


def test_a_damaged_or_torn_value_is_none(folder: Callable[[], list[Path]]) -> None:
    kept.keep("kind", "content", list(range(100)))
    (file,) = folder()
    whole = file.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:50] + b"X" + whole[51:], b"x" * 200):
        file.write_bytes(damaged)
        assert kept.recall("kind", "content") is None
    file.write_bytes(whole)
    assert kept.recall("kind", "content") == list(range(100))


def test_a_folder_that_cannot_be_written_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Callable[[], list[Path]]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PROJECTOR_CACHE", str(tmp_path / "file" / "below"))
    kept._folder.cache_clear()
    kept.keep("kind", "content", 1)
    assert kept.recall("kind", "content") is None


def test_it_is_switched_off(monkeypatch: pytest.MonkeyPatch, folder: Callable[[], list[Path]]) -> None:
    monkeypatch.setenv("PROJECTOR_CACHE", "off")
    kept._folder.cache_clear()
    kept.keep("kind", "content", 1)
    assert kept.recall("kind", "content") is None
    assert folder() == []


def test_other_code_keeps_other_values_and_old_ones_go(
    monkeypatch: pytest.MonkeyPatch, folder: Callable[[], list[Path]]
) -> None:
    for number in range(7):
        monkeypatch.setattr(kept, "code_hash", lambda n=number: f"{n:064x}"[::-1])
        kept._folder.cache_clear()
        assert kept.recall("kind", "content") is None
        kept.keep("kind", "content", number)
        os.utime(folder()[0].parent, (number, number))
        assert kept.recall("kind", "content") == number
    assert len({file.parent for file in folder()}) <= kept._VERSIONS


def test_too_much_of_one_version_is_thinned(monkeypatch: pytest.MonkeyPatch, folder: Callable[[], list[Path]]) -> None:
    for number in range(6):
        kept.keep("kind", str(number), bytes(1000))
        os.utime(kept._file(folder()[0].parent, "kind", str(number)), (number, number))
    kept._thin(folder()[0].parent)
    assert len(folder()) == 6
    monkeypatch.setattr(kept, "_MOST_BYTES", 5_000)
    kept._thin(folder()[0].parent)
    assert [kept.recall("kind", str(n)) is None for n in range(6)] == [True] * 3 + [False] * 3


def test_another_version_of_a_library_keeps_values_of_its_own(
    monkeypatch: pytest.MonkeyPatch, folder: Callable[[], list[Path]]
) -> None:
    kept.keep("kind", "content", 1)
    monkeypatch.setattr(kept, "_version", lambda library: f"{library} of tomorrow")
    kept._folder.cache_clear()
    assert kept.recall("kind", "content") is None
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("PROJECTOR_CACHE")
    monkeypatch.setattr(Path, "expanduser", _no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    kept._folder.cache_clear()
    kept.keep("kind", "content", 1)
    assert kept.recall("kind", "content") is None


def _no_home(_: Path) -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_measured_runs_are_the_same_from_the_cache(folder: Callable[[], list[Path]]) -> None:
    first = dataset.read(RUNS)
    assert len(folder()) == 1
    assert dataset.read(RUNS) == first
    again = dataset.remembered(RUNS.read_text())
    assert again == first
    assert run_text.to_yaml(again) == run_text.to_yaml(first)


def test_runs_with_mistakes_or_hardware_of_their_own_are_read_each_time(
    tmp_path: Path, folder: Callable[[], list[Path]]
) -> None:
    text = RUNS.read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("gpus: ", "gpus: x", 1))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"wrong\.yaml"):
            dataset.read(wrong)
    gpu = (ROOT / "projector" / "hardware" / "gpus" / "a100_pcie_80gb.yaml").read_text()
    (tmp_path / "own.yaml").write_text(gpu)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "runs.yaml").write_text(text.replace("gpu: a100_pcie_80gb", "gpu: ../own.yaml"))
    dataset.read(mine)
    assert folder() == []


def test_two_processes_that_write_at_once(tmp_path: Path) -> None:
    code = (
        "from projector.io import kept\n"
        "for i in range(200):\n"
        "    kept.keep('k', str(i % 5), [i % 5] * 1000)\n"
        "    found = kept.recall('k', str(i % 5))\n"
        "    assert found == [i % 5] * 1000, found\n"
    )
    environment = {**os.environ, "PROJECTOR_CACHE": str(tmp_path / "c"), "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    files = [p for p in (tmp_path / "c").rglob("*") if p.is_file()]
    assert len(files) == 5, "no temporary file is left"
