"""Where logs come from: compressed, cut, on standard input, in foreign encodings, and what is no text at all."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

from harness.evidence.ingest.command import load
from harness.evidence.ingest.logs.source import open_source, plain
from projector.errors import InputError

LOG = Path(__file__).resolve().parents[2] / "data" / "logs" / "megatron_e.log"


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_packed_logs(tmp_path: Path, suffix: str, pack) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / f"megatron_e.log.{suffix}"
    path.write_bytes(pack(LOG.read_bytes()))
    run = load(path).runs[0]
    assert run.id == "megatron_e"
    assert run.measured == load(LOG).runs[0].measured


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_log_that_was_cut_gives_what_came_before(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    lines = b"".join(LOG.read_bytes() + b"%032d\n" % (i * 2654435761 % 10**31) for i in range(400))
    data = pack(lines)
    path = tmp_path / "cut.log"
    path.write_bytes(data[: int(len(data) * 0.9)])
    row = load(path).rows[0]
    assert any("ends early" in doubt for doubt in row.doubts)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(gzip.compress(LOG.read_bytes()))

    monkeypatch.setattr("sys.stdin", Stdin())
    run = load("-").runs[0]
    assert (run.id, run.source.title) == ("stdin", "standard input")
    assert run.measured == load(LOG).runs[0].measured


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_foreign_encodings_and_line_ends(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "megatron_e.log"
    path.write_bytes(LOG.read_text().replace("\n", "\r\n").encode(encoding))
    assert load(path).runs[0].measured == load(LOG).runs[0].measured


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"\n \n\0\0", "an empty file"),
        (bytes(range(256)) * 40, "binary data"),
        (b"PK\x03\x04" + b"a" * 100, "a zip archive"),
        (b"\x28\xb5\x2f\xfd" + b"a" * 100, "zstandard data"),
        (pickle.dumps({"a": 1}, protocol=4), "a pickle"),
    ],
)
def test_what_is_no_log_is_named(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        load(path)
    assert [problem.found for problem in caught.value.problems] == [found]


def test_missing_folders_and_unknown_texts(tmp_path: Path) -> None:
    for path, found in ((tmp_path / "no.log", "nothing"), (tmp_path, "a folder")):
        with pytest.raises(InputError) as caught:
            load(path)
        assert caught.value.problems[0].found == found
    unknown = tmp_path / "x.log"
    unknown.write_text("\n\nhello there\n")
    with pytest.raises(InputError, match="known log dialect") as caught:
        load(unknown)
    assert caught.value.problems[0].found == "no line of a known trainer"


def test_escape_sequences_go() -> None:
    assert plain("\x1b[1;32mstep:\x1b[0m \x1b[38;2;1;2;3m5\x1b[39m\x1b]0;title\x07 x") == "step: 5 x"


def test_lines_of_any_length_are_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text("x" * 3_000_000 + "\nlast\n")
    lines = [line for _, line in open_source(path).lines()]
    assert max(map(len, lines)) <= 2**20
    assert lines[-1] == "last\n"


def test_nothing_in_a_log_is_executed(tmp_path: Path) -> None:
    """Values that a careless reader would evaluate stay texts."""
    mark = tmp_path / "executed"
    evil = f"__import__('pathlib').Path('{mark}').touch()"
    text = LOG.read_text().replace("optimizer ....", f"data_impl .... {evil}\n  optimizer ....", 1)
    yaml_evil = f"!!python/object/apply:os.system ['touch {mark}']"
    path = tmp_path / "x.log"
    path.write_text(text.replace(" adam\n", f" {yaml_evil}\n", 1))
    with suppress(InputError):
        load(path)
    assert not mark.exists()
