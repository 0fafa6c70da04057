"""What W&B and TensorBoard keep of a run is read as its log: exports as the two write them."""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from asked import put, refusal
from command_line import run
from tabled import tabled

from harness.evidence.ingest.command import ingest
from harness.evidence.ingest.dialects import read_log
from harness.evidence.ingest.logs import history as histories
from harness.evidence.ingest.logs import registry
from harness.evidence.offered import measured

SECONDS = 30.0
SCRIPT = Path(__file__).parents[2] / "jobs" / "train.sh"
HISTORY = ["", "_step", "_runtime", "_timestamp", "lm loss", "iteration-time"]


def csv_of(path: Path, header: list[str], rows: Iterable[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def history(folder: Path) -> Path:
    """``run.history().to_csv()`` of W&B's API."""
    rows = ([i, i, 31.5 * i + 0.5, 1.7e9 + 31.5 * i + 0.2, 2.0, SECONDS] for i in range(15))
    return csv_of(folder / "history.csv", HISTORY, rows)


def chart(folder: Path, runs: tuple[str, ...] = ("dazzling - sun-1",)) -> Path:
    """A chart of W&B's page, exported."""
    names = [f"{run} - iteration-time{bound}" for run in runs for bound in ("", "__MIN", "__MAX")]
    rows = ([i, *([SECONDS] * len(names))] for i in range(15))
    return csv_of(folder / "chart.csv", ["Step", *names], rows)


def events(folder: Path, tags: dict[str, float]) -> Path:
    """A folder as ``torch.utils.tensorboard.SummaryWriter`` fills it."""
    pytest.importorskip("tbparse", reason="tbparse is not installed (extra tensorboard)")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder / "tb"))
    for i in range(1, 16):
        for tag, value in tags.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            step = i * 256 if tag.endswith("vs samples") else i
            writer.add_event(Event(wall_time=1.7e9 + SECONDS * i, step=step, summary=summary))
    writer.close()
    return folder / "tb"


@pytest.mark.parametrize(("name", "seconds"), tabled("readers", "log_exports_times"))
def test_a_time_of_a_step_is_known_by_its_words_and_its_unit(tmp_path: Path, name: str, seconds: float | None) -> None:
    """Not without a unit, of an evaluation, or averaged over records; a table of runs has its own columns."""
    path = put(tmp_path / "a.csv", f"step,loss,{name}\n" + "".join(f"{i},2.5,500\n" for i in range(1, 12)))
    assert registry.is_document(path.read_text()) == (seconds is not None)
    if seconds is not None:
        assert ingest([path]).logs[0].run.measured.step_seconds == seconds
    assert not registry.is_document(f"step,GPUs,{name}\n1,8,500\n")


def test_a_history_that_tabs_separate_is_the_same_history(tmp_path: Path) -> None:
    rows = ("step,loss,iteration-time", *(f"{i},2.5,0.5" for i in range(1, 12)))
    for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
        (log,) = ingest([put(tmp_path / name, "".join(row.replace(",", separator) + "\n" for row in rows))]).logs
        assert (log.dialect, log.run.measured.step_seconds) == ("history", 0.5)


@pytest.mark.parametrize("made", [history, chart, lambda folder: events(folder, {"iteration-time": SECONDS})])
def test_an_export_tells_the_step_and_the_configuration_beside_it_the_run(made, tmp_path: Path) -> None:
    path = made(tmp_path)
    (log,) = ingest([path]).logs
    assert (log.dialect, log.row.status, log.run.measured.step_seconds) == ("history", "incomplete", SECONDS)
    found, left = measured(path, "h100", 8, None, SCRIPT)
    assert [(loaded.recipe.tp, seconds) for _, loaded, seconds in found] == [(2, SECONDS)]
    assert not left
    refusal(measured, path, "h100", 8, None, match="--anchor --config FILE")


def test_an_anchor_without_a_configuration_is_the_run_of_config(tmp_path: Path) -> None:
    asked = ("performance", "--config", str(SCRIPT), "--gpu", "h100", "--gpus", "8", "--anchor", str(history(tmp_path)))
    assert f"Expected: {SECONDS:.3f} s a step" in run("projector", *asked).stdout


def test_seconds_between_records_are_the_step_where_no_scalar_is(tmp_path: Path) -> None:
    (log,) = ingest([events(tmp_path, {"train/loss": 2.0, "lm loss vs samples": 2.0})]).logs
    assert not log.row.doubts
    assert log.run.measured.step_seconds == pytest.approx(SECONDS)
    (file,) = (tmp_path / "tb").iterdir()
    assert ingest([file]).logs[0].run.measured.step_seconds == pytest.approx(SECONDS)


def test_a_chart_of_several_runs_is_none_of_one(tmp_path: Path) -> None:
    refusal(ingest, [chart(tmp_path, ("a", "b"))], match="exported alone")


def test_an_event_file_that_nothing_reads_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tbparse", None)
    path = put(tmp_path / "events.out.tfevents.1.host", b"H\0\0\0")
    refusal(ingest, [path], match=r"pip install 'projector-harness\[tensorboard\]'")


def test_an_event_file_without_scalars_is_refused(tmp_path: Path) -> None:
    refusal(ingest, [events(tmp_path, {})], match="no scalars")


BY_WORDS = [("step_time_ms", 0.001), ("perf/step_time_seconds", 1.0), ("tokens_per_gpu_per_sec", 0.0)]


@pytest.mark.parametrize(
    ("name", "unit"),
    [*((name, 1.0) for name in histories._SECONDS), *((name, 0.0) for name in histories._RATE), *BY_WORDS],
)
@pytest.mark.parametrize("chart", ["", "my run - "])
def test_every_column_that_tells_a_step_is_read_alone(tmp_path: Path, name: str, unit: float, chart: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(f'"Step","{chart}{name}"\n' + "".join(f'"{i}","{1500.5 + i % 2}"\n' for i in range(20)))
    (log,) = read_log(path, incomplete=True).logs
    measured = log.run.measured.step_seconds if unit else log.run.measured.tgs
    assert measured == pytest.approx(1501 * (unit or 1.0), rel=1e-3)
