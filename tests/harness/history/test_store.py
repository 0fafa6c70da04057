"""The store: what is written is read back, whoever writes beside it, and whenever the writer is killed."""

import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from asked import ROOT, put, refusal

from harness.contracts.results import SCHEMA_VERSION, RunFacts
from harness.history import store
from harness.history.store import Recorded, Recording
from projector.errors import InputError

Versions = Callable[..., tuple[Recorded, ...]]

WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
sys.path.insert(0, {root!r})
from harness.contracts.results import Row, RunFacts
from harness.history import store
from tests.harness.history.conftest import recording_of
path, name, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def row(i, n):
    return Row(run_id=f"{{name}}-{{i}}", suite="s", group="", gpu="g", gpus=8, model="m", family="f", precision="bf16",
               framework="w", predictor="simulate", fit="heldout", status="ok", error=n / 1000, reason="x" * 200)
for n in range(times):
    rows = [row(i, n) for i in range({rows})]
    facts = {{r.run_id: RunFacts(run_id=r.run_id) for r in rows}}
    store.append(path, replace(recording_of(1), subject=f"{{name}} {{n}}"), rows, facts)
    print(n, flush=True)
"""


def writer(path: Path, name: str, times: int, rows: int = 300) -> subprocess.Popen[str]:
    code = WRITER.format(root=str(ROOT), rows=rows)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), name, str(times)], stdout=subprocess.PIPE, text=True
    )


def test_what_is_written_is_read_back(tmp_path, of_errors: Versions) -> None:
    path = tmp_path / "new" / "history.sqlite"
    facts = {"a": RunFacts(run_id="a", assumed=("x", "y"), differs={"tp": "2"}, switches=("version",), rel_std=0.1)}
    for each in of_errors({"a": 0.1}, {"a": 0.2}, {"a": None}):
        store.append(path, each.recording, each.rows, facts)
    found = store.read(path)
    assert [(r.recording, r.rows) for r in found] == [
        (r.recording, r.rows) for r in of_errors({"a": 0.1}, {"a": 0.2}, {"a": None})
    ]
    assert all(each.facts == facts for each in found)
    assert store.read(path, fit="shipped")[0].rows == ()
    assert store.read(path, fit="heldout")[1].rows == found[1].rows
    assert list(path.parent.iterdir()) == [path], "one file, nothing beside it"


def test_the_same_rows_are_kept_once(tmp_path, of_errors: Versions) -> None:
    path = tmp_path / "h"
    for each in of_errors(*({"a": 0.1, "b": 0.2} for _ in range(5))):
        store.append(path, each.recording, [replace(r, seconds_to_project=time.time()) for r in each.rows], each.facts)
    with sqlite3.connect(path) as opened:
        assert opened.execute("SELECT count(*) FROM item").fetchone() == (4,), "two rows, the facts of two runs"
        told = opened.execute(
            "SELECT recording, run_id, fit, error FROM recorded_row ORDER BY recording, run_id"
        ).fetchall()
    assert [(n, name, fit) for n, name, fit, _ in told] == [(i + 1, n, "heldout") for i in range(5) for n in "ab"]
    assert [len(each.rows) for each in store.read(path)] == [2] * 5


def test_writers_at_once_lose_nothing(tmp_path) -> None:
    path = tmp_path / "h.sqlite"
    writers = [writer(path, name, 12) for name in "abc"]
    assert [w.wait(120) for w in writers] == [0, 0, 0]
    found = store.read(path)
    assert sorted(each.recording.subject for each in found) == sorted(f"{n} {i}" for n in "abc" for i in range(12))
    assert all(len(each.rows) == len(each.facts) == 300 for each in found)
    assert all({r.run_id[0] for r in each.rows} == {each.recording.subject[0]} for each in found)


def test_a_killed_writer_leaves_whole_recordings(tmp_path) -> None:
    """What a writer said was written is there after SIGKILL, whole, and the next writer goes on."""
    path, chance, told = tmp_path / "h.sqlite", random.Random(7), 0
    for attempt in range(5):
        process = writer(path, f"k{attempt}", 10_000, rows=400)
        for _ in range(attempt % 3):  # a busy machine starts late: at least these are written
            process.stdout.readline()
            told += 1
        time.sleep(chance.random() * 0.15)
        os.kill(process.pid, signal.SIGKILL)
        told += len(process.stdout.read().splitlines())
        process.wait()
        if path.exists() and path.stat().st_size:
            store.check(path)
            found = store.read(path)
            assert len(found) in range(told, told + attempt + 2), (
                "each kill may hide one that was written and not yet told"
            )
            assert all(len(each.rows) == 400 for each in found)
    assert told > 2
    assert writer(path, "z", 1).wait(60) == 0


def mistake_of(path: Path, *, check: bool = True) -> str:
    read = refusal(store.read, path)
    if check:
        refusal(store.check, path)
    assert len(read.problems) == 1
    return str(read)


def test_what_is_no_store_is_refused_and_left_alone(tmp_path, recording: Callable[..., Recording]) -> None:
    text = put(tmp_path / "suite.yaml", "suite: moe\n" * 100)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as opened:
        opened.execute("CREATE TABLE mine (x)")
    for path, words in ((text, "not a database"), (other, "a database of another program"), (tmp_path, "a folder")):
        before = path.read_bytes() if path.is_file() else b""
        assert words in mistake_of(path)
        refusal(store.append, path, recording(1), (), {})
        assert not path.is_file() or path.read_bytes() == before
    refusal(store.read, tmp_path / "absent", match="does not exist")
    refusal(store.check, text / "h.sqlite", match="is no folder")


def test_a_newer_store_and_newer_rows_are_refused_by_version(tmp_path, of_errors: Versions) -> None:
    path = tmp_path / "h"
    (one,) = of_errors({"a": 0.1})
    store.append(path, one.recording, one.rows, one.facts)
    with sqlite3.connect(path) as opened:
        (body,) = opened.execute("SELECT body FROM recording").fetchone()
        newer = body.replace(f'"row_schema":{SCHEMA_VERSION}', '"row_schema":99')
        opened.execute("UPDATE recording SET body = ?, hash = ?", (newer, hashlib.sha256(newer.encode()).hexdigest()))
    refusal(store.read, path, match="rows of schema 99")
    with sqlite3.connect(path) as opened:
        opened.execute(f"PRAGMA user_version = {store.VERSION + 1}")
    assert f"version {store.VERSION + 1}" in mistake_of(path)
    refusal(store.append, path, one.recording, one.rows, one.facts, match="a newer harness wrote this store")


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_store_is_one_mistake_or_what_was_written(tmp_path, of_errors: Versions, seed: int) -> None:
    path = tmp_path / "h"
    written = of_errors(*({f"run-{i}": 0.1 * k for i in range(30)} for k in range(4)))
    for each in written:
        store.append(path, each.recording, each.rows, each.facts)
    chance, data = random.Random(seed), bytearray(path.read_bytes())
    if seed % 4 == 0:
        data = data[: chance.randrange(100, len(data))]
    else:
        for _ in range(chance.choice((1, 8, 200))):
            data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(bytes(data))
    found: object = None
    with suppress(InputError):
        found = [(r.recording, r.rows) for r in store.read(path)]
    if found is None:
        assert str(path) in mistake_of(path, check=False)
    else:
        assert found == [(r.recording, r.rows) for r in written]


def test_a_store_that_another_process_holds_is_one_mistake(tmp_path, of_errors: Versions, monkeypatch) -> None:
    path = tmp_path / "h"
    (one,) = of_errors({"a": 0.1})
    store.append(path, one.recording, one.rows, one.facts)
    monkeypatch.setattr(store, "_WAIT", 0.1)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    refusal(store.append, path, one.recording, one.rows, one.facts, match="no other process holds")
    holder.close()
    store.append(path, one.recording, one.rows, one.facts)
    assert len(store.read(path)) == 2
