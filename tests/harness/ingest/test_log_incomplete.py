"""A log without its whole configuration: what it is worth, what is missing, and what completes it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from asked import LOGS, put, refusal, says

from harness.__main__ import main
from harness.contracts.runs import Measured, MeasuredRun
from harness.evidence.dataset import read
from harness.evidence.ingest.command import ingest, load
from harness.evidence.ingest.context import read_context
from harness.evidence.ingest.dialects import _beyond
from harness.evidence.ingest.logs.partial import Reading
from harness.evidence.ingest.logs.settings import Stated

NEMO = LOGS / "nemo2.log"  # step times, memory and the batch of its lines; no arguments


def test_its_figures_come_out_with_what_is_missing_and_the_flag_that_says_it(capsys) -> None:
    assert main(["ingest", str(NEMO)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"nemo2 ({NEMO}): incomplete"
    assert lines[1].startswith("  read: step 6 s (median of ")
    says(lines[1], "peak memory 65.969 GiB (allocated)", "loss ")
    says(lines[2], "micro_batch_size", "(--recipe FILE)")
    assert "gpu, gpus" not in lines[2]
    assert "gpu (--gpu NAME)" in lines[2]
    assert "1 row: 0 usable, 1 incomplete, 0 refused" in lines


def test_a_half_row_is_written_with_its_problem_and_read_again(tmp_path: Path) -> None:
    out = tmp_path / "runs.yaml"
    assert main(["ingest", str(NEMO), "--out", str(out), "--no-plot"]) == 1
    (run,) = read(out)
    assert run.problem.startswith("not stated: model, ")
    assert (run.model, run.recipe, run.measured.step_seconds) == (None, None, 6.0)
    results = tmp_path / "results"
    assert main(["run", "--runs", str(out), "--no-gate", "--out", str(results), "--no-plots"]) == 0
    assert "not stated: model" in (results / "results.csv").read_text()


def test_a_run_and_a_suite_still_ask_for_the_whole_configuration() -> None:
    refusal(load, NEMO, match=r"the configuration beside it: --recipe FILE")


def test_a_rate_without_a_batch_is_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "titan.log"
    lines = [line for line in (LOGS / "torchtitan.log").read_text().splitlines() if "tps" in line]
    report = ingest([put(path, "\n".join(lines) + "\n")])
    (run,), (row,) = report.runs, report.rows
    assert run.measured.step_seconds is None
    assert run.measured.tgs == pytest.approx(5461, rel=1e-3)
    assert not any(text.startswith("step ") for text in row.read)
    assert row.status == "incomplete"


def test_a_log_without_steps_is_still_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "start.log"
    path.write_text("[default0]:using world size: 8, data-parallel size: 4\nsetting tensor-model-parallel size to 2\n")
    assert main(["ingest", str(path)]) == 2
    assert capsys.readouterr().out == ""


def test_one_bad_log_does_not_discard_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, out = tmp_path / "bad.log", tmp_path / "runs.yaml"
    bad.write_bytes(bytes(range(256)) * 40)
    good = str(LOGS / "megatron_e.log")
    assert main(["ingest", str(bad), good, str(tmp_path / "no.csv"), "--gpu", "mi300x", "--out", str(out)]) == 2
    said = capsys.readouterr()
    named = [line.removesuffix(" does not exist").partition(": ")[0] for line in said.err.splitlines()]
    assert named == [str(bad), str(tmp_path / "no.csv")]
    assert "1 row: 1 usable, 0 refused" in said.out
    assert [run.id for run in read(out)] == ["megatron_e"]


def test_logs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = []
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "train.log")
        paths[-1].write_text((LOGS / "megatron_e.log").read_text())
    report = ingest([*paths, paths[0]], said=read_context(None, "mi300x"))
    assert [run.id for run in report.runs] == ["before-train", "after-train"]
    assert [row.id for row in report.rows] == ["before-train", "after-train"]
    assert report.problems == ()


def test_a_half_row_of_a_known_model_goes_through_the_physical_check() -> None:
    """An MLPerf log names its benchmark: the micro-batch that it leaves out is not needed to see an impossible step."""
    (run,) = ingest([NEMO]).runs
    slow, fast = (_scaled(run, factor) for factor in (1.0, 1e-3))
    assert _beyond(slow, _reading(slow)) == ()
    (said,) = _beyond(fast, _reading(fast))
    assert "of the nvfp4 peak of the fastest GPU known" in said
    (named,) = _beyond(replace(fast, gpu="a100_sxm_80gb"), _reading(fast))
    assert "of the bf16 peak of a100_sxm_80gb" in named


def _scaled(run: MeasuredRun, factor: float) -> MeasuredRun:
    figures = Measured(step_seconds=4.0 * factor, tgs=4096.0 / factor)
    return replace(run, gpu="", gpus=64, model_name="llama3_8b", measured=figures)


def _reading(run: MeasuredRun) -> Reading:
    stated = Stated(model_name="llama3_8b", gpu="", gpus=64, global_batch_size=128, seq_length=8192)
    figures = run.measured
    return Reading(
        stated=stated, scale=1.0, step_seconds=figures.step_seconds, tgs=figures.tgs, samples_per_s=None,
        tokens_per_step=128 * 8192,
    )  # fmt: skip


def test_a_foreign_file_is_not_echoed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = put(tmp_path / "passwords", "daemon:x:0:0:nobody\n")
    suite = put(tmp_path / "s.yaml", f"suite: s\nselect: [{{log: {secret}}}]\n")
    for command in (["ingest", str(secret)], ["run", str(suite)], ["compare", str(secret), str(secret)]):
        assert main(command) == 2
        said = capsys.readouterr()
        assert "daemon" not in said.out + said.err
        assert "no line of a known trainer" in said.err


def test_a_pipe_is_read_and_one_that_nobody_writes_to_is_refused(tmp_path: Path, monkeypatch) -> None:
    idle = tmp_path / "idle"
    os.mkfifo(idle)
    monkeypatch.setattr("harness.evidence.ingest.logs.source._PATIENCE", 10)
    refusal(load, idle, match="a pipe that nobody writes to")
    reader, writer = os.pipe()
    try:
        os.write(writer, (LOGS / "megatron_e.log").read_bytes()[:60_000])
        os.close(writer)
        (run,) = load(f"/dev/fd/{reader}", said=read_context(None, "mi300x")).runs
    finally:
        os.close(reader)
    assert run.measured.step_seconds == load(LOGS / "megatron_e.log").runs[0].measured.step_seconds
