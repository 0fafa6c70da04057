"""Where logs come from: compressed, cut, on standard input, in foreign encodings, and what is no text at all."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from asked import put, refusal

from harness.evidence.ingest.command import load
from harness.evidence.ingest.logs.source import open_source
from projector.errors import NO_FILE, InputError

LOG = Path(__file__).resolve().parents[2] / "data" / "logs" / "megatron_e.log"


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_packed_logs(tmp_path: Path, suffix: str, pack) -> None:  # type: ignore[no-untyped-def]
    run = load(put(tmp_path / f"megatron_e.log.{suffix}", pack(LOG.read_bytes()))).runs[0]
    assert run.id == "megatron_e"
    assert run.measured == load(LOG).runs[0].measured


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_log_that_was_cut_gives_what_came_before(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    lines = b"".join(LOG.read_bytes() + b"%032d\n" % (i * 2654435761 % 10**31) for i in range(100))
    data = pack(lines)
    row = load(put(tmp_path / "cut.log", data[: int(len(data) * 0.9)])).rows[0]
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
    path = put(tmp_path / "megatron_e.log", LOG.read_text().replace("\n", "\r\n").encode(encoding))
    assert load(path).runs[0].measured == load(LOG).runs[0].measured


@pytest.mark.parametrize(
    "line", ["0: ", "loss: 2.5", "iter 5 | loss 2", "step: 3", "gpu0: 40 GB", "1|25|Loss: 1.5", "s:1/9"]
)
def test_a_line_of_its_own_is_no_prefix(tmp_path: Path, line: str) -> None:
    assert list(open_source(put(tmp_path / "a.log", f"{line}\n")).lines()) == [(1, f"{line}\n")]


def test_holes_between_what_several_nodes_write_are_no_binary_data(tmp_path: Path) -> None:
    path = tmp_path / "megatron_e.log"
    data = LOG.read_bytes()
    path.write_bytes(data[:1000] + b"\0" * len(data) + data[1000:])
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
        (gzip.compress(bytes(range(99)), mtime=0)[:14], "compressed data that ends before any text"),
    ],
)
def test_what_is_no_log_is_named(tmp_path: Path, data: bytes, found: str) -> None:
    assert [problem.found for problem in refusal(load, put(tmp_path / "x.log", data)).problems] == [found]


def test_missing_folders_and_unknown_texts(tmp_path: Path) -> None:
    for path, found in ((tmp_path / "no.log", NO_FILE), (tmp_path, "a folder")):
        caught = refusal(load, path)
        assert caught.problems[0].found == found
    caught = refusal(load, put(tmp_path / "x.log", "\n\nhello there\n"), match="known log dialect")
    assert caught.problems[0].found == "no line of a known trainer"


def test_lines_of_any_length_are_read_in_pieces(tmp_path: Path) -> None:
    lines = [line for _, line in open_source(put(tmp_path / "long.log", "x" * 3_000_000 + "\nlast\n")).lines()]
    assert max(map(len, lines)) <= 2**20
    assert lines[-1] == "last\n"


def test_nothing_in_a_log_is_executed(tmp_path: Path) -> None:
    """Values that a careless reader would evaluate stay texts."""
    mark = tmp_path / "executed"
    evil = f"__import__('pathlib').Path('{mark}').touch()"
    text = LOG.read_text().replace("optimizer ....", f"data_impl .... {evil}\n  optimizer ....", 1)
    yaml_evil = f"!!python/object/apply:os.system ['touch {mark}']"
    path = put(tmp_path / "x.log", text.replace(" adam\n", f" {yaml_evil}\n", 1))
    with suppress(InputError):
        load(path)
    assert not mark.exists()


def test_a_gigabyte_of_zeros_in_a_small_file_is_refused_at_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("harness.evidence.ingest.logs.source._MOST_HOLE", 1 << 20)
    path = tmp_path / "train.log.gz"
    with gzip.open(path, "wb") as packed:
        packed.write(bytes(1 << 19) + b"what a rotation left: 512 KiB of zeros\n")
    assert "rotation" in open_source(path).head()
    with gzip.open(path, "wb") as packed:
        packed.write(bytes(1 << 24) + b"nobody looks here\n")
    refusal(open_source, path, match="found 'zeros'")


# Logs are streamed: the peak memory of a process does not grow with the log.

MEMORY_LOG = Path(__file__).resolve().parents[2] / "data" / "logs" / "megatron_b.log"
LARGEST = 300.0  # MB of memory, whatever the log's size
SCRIPT = """
import json, pathlib, resource, sys
from harness.evidence.ingest.command import load
(run,) = load(sys.argv[1]).runs
status = pathlib.Path("/proc/self/status")  # ru_maxrss would hold what the parent was before exec
if status.exists():
    peak = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
print(json.dumps([peak, run.measured.step_seconds, run.measured.samples]))
"""


def write_log(path: Path, megabytes: float) -> int:
    """A log of that size with the arguments of the small one; how many steps it has."""
    head, _, rest = MEMORY_LOG.read_text().partition("end of arguments")
    mark, _, body = rest.partition("\n")
    line = body.splitlines()[-1]
    number = line.partition("iteration ")[2][:8]
    wanted, written, step = megabytes * 1e6, 0, 0
    with path.open("w") as file:
        written += file.write(f"{head}end of arguments{mark}\n")
        while written < wanted:
            step += 1
            written += file.write(
                line.replace(number, f"{step:8d}", 1).replace("6000.0", f"{5990 + step % 21}.0") + "\n"
            )
    return step


def measured(path: Path) -> tuple[float, float, int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True)
    peak, step, samples = json.loads(done.stdout)
    return peak, step, samples


def test_memory_grows_with_the_steps_only(tmp_path: Path) -> None:
    """35 bytes a step: a gigabyte of iteration lines has some two million."""
    small, large = tmp_path / "small.log", tmp_path / "large.log"
    write_log(small, 1)
    steps = write_log(large, 15)
    before, _, _ = measured(small)
    after, seconds, samples = measured(large)
    assert seconds == pytest.approx(6.0, rel=1e-3)
    assert samples == steps - 5
    assert after < LARGEST
    assert (after - before) * 1e6 / steps < 200  # bytes a step, with the working copies of the steady state
