"""The cache on disk: what it gives is what was made, and whatever is wrong with it is made again."""

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asked import ROOT, put, refusal

from harness import disk_cache
from harness.contracts.runs import Measured
from harness.disk_cache import CachedValues
from harness.evidence import dataset, run_text
from projector.io.packed import pack

NUMBERS = CachedValues("kind", list[int])
RUNS = ROOT / "measured" / "runs" / "simumax_a100.yaml"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Callable[[], list[Path]]]:
    monkeypatch.setenv("PROJECTOR_CACHE", str(tmp_path / "cache"))
    disk_cache._folder.cache_clear()
    yield lambda: sorted(p for p in (tmp_path / "cache").rglob("*") if p.is_file())
    disk_cache._folder.cache_clear()


def test_what_is_kept_is_given_back(folder: Callable[[], list[Path]]) -> None:
    shelf = CachedValues("kind", dict[str, tuple[int, float]])
    assert shelf.recall("content") is None
    shelf.keep("content", {"a": (1, 2.5)})
    assert shelf.recall("content") == {"a": (1, 2.5)}
    assert shelf.recall("other") is None
    assert CachedValues("other", dict[str, tuple[int, float]]).recall("content") is None
    assert len(folder()) == 1


def test_a_value_of_another_type_is_as_if_absent(folder: Callable[[], list[Path]]) -> None:
    NUMBERS.keep("content", [1, 2])
    for other in (list[str], list[bool], dict[str, int], tuple[int, ...], Measured, bytes, int):
        kind: Any = other
        found = CachedValues("kind", kind).recall("content")
        assert found is None or found == (1, 2), "a tuple is text as a list is"
    wrong: Any = CachedValues("kind", list[str])
    wrong.keep("mine", [1, 2])
    wrong.keep("mine", Measured())
    wrong.keep("mine", lambda: None)
    assert len(folder()) == 1


def test_a_damaged_or_torn_value_is_none(folder: Callable[[], list[Path]]) -> None:
    NUMBERS.keep("content", list(range(100)))
    (file,) = folder()
    whole = file.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:50] + b"X" + whole[51:], b"x" * 200):
        file.write_bytes(damaged)
        assert NUMBERS.recall("content") is None
    file.write_bytes(whole)
    assert NUMBERS.recall("content") == list(range(100))


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path, monkeypatch, folder: Callable[[], list[Path]]) -> None:
    monkeypatch.setenv("PROJECTOR_CACHE", str(put(tmp_path / "file", "") / "below"))
    disk_cache._folder.cache_clear()
    NUMBERS.keep("content", [1])
    assert NUMBERS.recall("content") is None


def test_it_is_switched_off(monkeypatch, folder: Callable[[], list[Path]]) -> None:
    monkeypatch.setenv("PROJECTOR_CACHE", "off")
    disk_cache._folder.cache_clear()
    NUMBERS.keep("content", [1])
    assert NUMBERS.recall("content") is None
    assert folder() == []


def test_other_code_keeps_other_values_and_old_ones_go(monkeypatch, folder: Callable[[], list[Path]]) -> None:
    for number in range(7):
        monkeypatch.setattr(disk_cache, "code_hash", lambda n=number: f"{n:064x}"[::-1])
        disk_cache._folder.cache_clear()
        assert NUMBERS.recall("content") is None
        NUMBERS.keep("content", [number])
        os.utime(folder()[0].parent, (number, number))
        assert NUMBERS.recall("content") == [number]
    assert len({file.parent for file in folder()}) <= disk_cache._VERSIONS


def test_folders_that_it_did_not_make_stay(tmp_path, monkeypatch, folder: Callable[[], list[Path]]) -> None:
    """``PROJECTOR_CACHE=$HOME`` is no leave to clear it."""
    mine = [tmp_path / "cache" / name for name in ("photos", "letters", "a" * 24, f"{'a' * 24}-cpython-312")]
    for each in mine:
        each.mkdir(parents=True)
        os.utime(each, (0, 0))
    for number in range(7):
        monkeypatch.setattr(disk_cache, "code_hash", lambda n=number: f"{n:064x}"[::-1])
        disk_cache._folder.cache_clear()
        NUMBERS.keep("content", [number])
    assert len({file.parent for file in folder()}) == disk_cache._VERSIONS
    assert all(each.is_dir() for each in mine)


class _Command:
    """What runs a command when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.made}",)


def _sealed(data: bytes) -> bytes:
    return hashlib.sha256(data).digest() + data


def test_a_planted_pickle_runs_nothing(tmp_path, folder: Callable[[], list[Path]]) -> None:
    """The attack of old: a file that the user owns, with a seal that holds, in the place of a value or linked from there."""
    NUMBERS.keep("content", [1])
    (file,) = folder()
    made = tmp_path / "made"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        planted = _sealed(pickle.dumps(_Command(made), protocol))
        file.write_bytes(planted)
        assert NUMBERS.recall("content") is None
        assert dataset._SHELF.recall("content") is None
    assert not made.exists()
    assert pickle.loads(planted[32:]) == 0, "it would have"
    assert made.exists()


def test_links_and_what_is_no_file_are_refused(tmp_path, folder: Callable[[], list[Path]]) -> None:
    NUMBERS.keep("content", [1])
    (file,) = folder()
    elsewhere = put(tmp_path / "elsewhere", _sealed(pack([2], list[int])))
    file.unlink()
    file.symlink_to(elsewhere)
    assert NUMBERS.recall("content") is None
    NUMBERS.keep("content", [3])
    assert elsewhere.read_bytes() == _sealed(pack([2], list[int])), "nothing is written through a link"
    assert NUMBERS.recall("content") == [3]
    for odd in (os.mkfifo, os.mkdir):
        file.unlink()
        odd(file)
        assert NUMBERS.recall("content") is None
        file.rmdir() if file.is_dir() else None
        NUMBERS.keep("content", [4])
        assert NUMBERS.recall("content") == [4]


def test_a_folder_that_is_a_link_or_open_to_others_is_refused(tmp_path, folder: Callable[[], list[Path]]) -> None:
    NUMBERS.keep("content", [1])
    own = folder()[0].parent
    assert own.stat().st_mode & 0o777 == 0o700
    for mode in (0o755, 0o770, 0o711, 0o702):
        own.chmod(mode)
        assert NUMBERS.recall("content") is None
        NUMBERS.keep("other", [1])
    own.chmod(0o700)
    assert NUMBERS.recall("content") == [1]
    assert NUMBERS.recall("other") is None
    own.rename(tmp_path / "moved")
    own.symlink_to(tmp_path / "moved")
    assert NUMBERS.recall("content") is None
    NUMBERS.keep("other", [1])
    assert len(list((tmp_path / "moved").iterdir())) == 1


def test_what_somebody_else_owns_is_refused(monkeypatch, folder: Callable[[], list[Path]]) -> None:
    NUMBERS.keep("content", [1])
    monkeypatch.setattr(os, "getuid", lambda: os.stat("/").st_uid + 4711)
    assert NUMBERS.recall("content") is None
    NUMBERS.keep("other", [1])
    assert len(folder()) == 1


def test_too_much_of_one_version_is_thinned(monkeypatch, folder: Callable[[], list[Path]]) -> None:
    for number in range(6):
        NUMBERS.keep(str(number), [0] * 500)
        os.utime(folder()[0].parent / NUMBERS._file(str(number)), (number, number))
    disk_cache._thin(folder()[0].parent)
    assert len(folder()) == 6
    monkeypatch.setattr(disk_cache, "_MOST_BYTES", 5_000)
    disk_cache._thin(folder()[0].parent)
    assert [NUMBERS.recall(str(n)) is None for n in range(6)] == [True] * 3 + [False] * 3


def test_another_version_of_a_library_keeps_values_of_its_own(monkeypatch, folder: Callable[[], list[Path]]) -> None:
    NUMBERS.keep("content", [1])
    monkeypatch.setattr(disk_cache, "version_of", lambda library: f"{library} of tomorrow")
    disk_cache._folder.cache_clear()
    assert NUMBERS.recall("content") is None
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("PROJECTOR_CACHE")
    monkeypatch.setattr(Path, "expanduser", _no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    disk_cache._folder.cache_clear()
    NUMBERS.keep("content", [1])
    assert NUMBERS.recall("content") is None


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
    tmp_path, folder: Callable[[], list[Path]]
) -> None:
    text = RUNS.read_text()
    wrong = put(tmp_path / "wrong.yaml", text.replace("gpus: ", "gpus: x", 1))
    for _ in range(2):
        refusal(dataset.read, wrong, match=r"wrong\.yaml", kind=ValueError)
    gpu = (ROOT / "projector" / "hardware" / "gpus" / "a100_pcie_80gb.yaml").read_text()
    (tmp_path / "own.yaml").write_text(gpu)
    mine = tmp_path / "mine"
    put(mine / "runs.yaml", text.replace("gpu: a100_pcie_80gb", "gpu: ../own.yaml"))
    dataset.read(mine)
    assert folder() == []


def test_two_processes_that_write_at_once(tmp_path) -> None:
    code = (
        "from harness.disk_cache import CachedValues\n"
        "shelf = CachedValues('k', list[int])\n"
        "for i in range(200):\n"
        "    shelf.keep(str(i % 5), [i % 5] * 1000)\n"
        "    found = shelf.recall(str(i % 5))\n"
        "    assert found == [i % 5] * 1000, found\n"
    )
    environment = {**os.environ, "PROJECTOR_CACHE": str(tmp_path / "c"), "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    files = [p for p in (tmp_path / "c").rglob("*") if p.is_file()]
    assert len(files) == 5, "no temporary file is left"
