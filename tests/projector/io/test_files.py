"""Files of users: what is no regular file is refused at once, what is written is whole or not there."""

import errno
import io
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from asked import put, refusal

from projector.errors import InputError
from projector.io import csv_file, files
from projector.io.files import read_text, read_yaml, write_figure, write_whole
from tests.conftest import ROOT


def test_text_of_several_encodings(tmp_path) -> None:
    path = tmp_path / "f"
    for data in ("a: é\r\n".encode(), "a: é\n".encode("utf-8-sig"), "a: é\n".encode("utf-16")):
        assert read_text(put(path, data)) == "a: é\n"
    path.write_bytes(b"# Universit\xe9\na: 1\n")
    assert read_yaml(path) == {"a": 1}


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "missing", "name", "zero"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "name":
        path = tmp_path / ("n" * 5_000)
    elif kind == "zero":
        path = Path("nul\0byte")
    caught = refusal(read_text, path, "a suite")
    assert ("does not exist" if kind == "missing" else "a suite") in str(caught)
    assert len(str(caught)) < 700


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path) -> None:
    path = put(tmp_path / "f", "a: 1")
    path.chmod(0)
    refusal(read_text, path, match="no permission")


def test_a_file_that_is_too_large(tmp_path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(files.MOST_BYTES + 1)
    refusal(read_text, path, match="at most 64 MiB")


def test_writing(tmp_path) -> None:
    path = tmp_path / "new" / "folder" / "é" / "f.txt"
    write_whole(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o600)
    write_whole(path, b"2")
    assert path.read_bytes() == b"2"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    write_whole(link, "3")
    assert link.is_symlink()
    assert path.read_text() == "3"
    assert list(path.parent.iterdir()) == [path]


def test_devices_stay_devices() -> None:
    write_whole("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


SCRIPT = """
import resource, sys
from projector.io.files import write_whole
from projector.io.guard import guarded
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
def command():
    write_whole(sys.argv[1], "n" * (1 << 20))
    return 0
sys.exit(guarded(command))
"""


def test_a_limit_that_the_system_sets_is_one_line_and_exit_2(tmp_path) -> None:
    target = put(tmp_path / "x", "old")
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(target)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"{target}: found 'File too large'")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "old"


KILLED = """
import sys, time
from projector.io import files
from projector.io.guard import guarded
def slow(*_):
    print("writing", flush=True)
    time.sleep(60)
files.os.replace = slow
sys.exit(guarded(lambda: files.write_whole(sys.argv[1], "new") or 0))
"""


def test_a_kill_leaves_nothing(tmp_path) -> None:
    target = put(tmp_path / "x", "old")
    with subprocess.Popen([sys.executable, "-c", KILLED, str(target)], cwd=ROOT, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"writing\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 143
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "old"


def test_a_figure_is_written_whole(tmp_path) -> None:
    class Figure:
        def savefig(self, stream: io.BytesIO, format: str, dpi: int) -> None:
            stream.write(f"{format} {dpi}".encode())
            if format == "pdf":
                raise OSError(errno.ENOSPC, "No space left on device")

    write_figure(tmp_path / "f.PNG", Figure())
    refusal(write_figure, tmp_path / "f.pdf", Figure(), match="No space", kind=OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["f.PNG"]


# CSV files come back as they were written; what is none is one mistake that names the file.


def test_what_was_written_is_read_back(tmp_path) -> None:
    path = tmp_path / "table.csv"
    rows = [["1", 'a "word", and\nanother line'], ["", "é"]]
    columns, found = csv_file.read(put(path, csv_file.text(("a", "b"), *rows)), "a table")
    assert columns == ("a", "b")
    assert [list(row.values()) for row in found] == rows


def test_nothing_is_an_empty_cell_and_an_empty_file_has_no_columns(tmp_path) -> None:
    assert csv_file.text(("a", "b"), (None, 0)) == "a,b\n,0\n"
    assert csv_file.read(put(tmp_path / "empty.csv", ""), "a table") == ((), [])


def test_a_file_that_no_csv_reader_takes_is_one_mistake(tmp_path) -> None:
    path = put(tmp_path / "long.csv", f"a,b\n{'x' * 200_000},1\n")
    with pytest.raises(InputError, match=r"long\.csv: found 'field larger than field limit .*', expected a table"):
        csv_file.read(path, "a table")


@pytest.mark.parametrize("stated", ["[a, 'b c', 8]", "[a,\n  'b c', 8]  # two lines", "\n- a\n- b c\n- 8"])
def test_a_list_of_a_file_is_read_alone_or_with_all_of_it(tmp_path, stated):
    path = put(tmp_path / "file.yaml", f"title: aliases [x]\naliases: {stated}\nother: {{aliases: [no]}}\n")
    assert files.listed_in(path, "aliases") == ("a", "b c", "8")
    assert files.listed_in(path, "absent") == ()
