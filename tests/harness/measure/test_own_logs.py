"""The checked-in logs of our own trainings: each alone is a complete measured run."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from harness.evidence.ingest.command import load
from harness.measure import spec


def logs(root: Path) -> list[Path]:
    return sorted((root / "measured" / "logs").glob("*.log.gz"))


def text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def test_every_log_is_a_whole_run(root: Path) -> None:
    found = [load(path).logs[0] for path in logs(root)]
    for path in logs(root):
        losses = [float(word) for word in re.findall(r"lm loss: ([0-9.E+-]+)", text(path))]
        assert losses[-1] < losses[0] - 0.5
    assert {read.run.model.family for read in found if read.run.model} >= {"gpt", "llama", "qwen", "deepseek"}
    for read in found:
        assert (read.run.gpu, read.run.problem, read.run.assumed) == ("cpu", "", ())
        assert read.run.stack.framework == "pytorch"
        assert read.record.steps >= 50
        assert (read.run.measured.rel_std or 1) < 0.05


def test_they_are_the_trainings_of_the_example(root: Path) -> None:
    plan = spec.read(root / "examples" / "measure" / "logs.yaml")
    jobs = {each.id: each for each in plan.jobs}
    paths = logs(root)
    assert {path.name.removesuffix(".log.gz") for path in paths} == set(jobs)
    for path in paths:
        (run,) = load(path).runs
        job = jobs[path.name.removesuffix(".log.gz")]
        assert run.workload == job.workload
        assert text(path).count("] iteration ") == job.steps


@pytest.mark.parametrize("word", ["/tmp", "/home", "/root", "localhost", "hostname"])
def test_they_tell_nothing_of_the_machine(root: Path, word: str) -> None:
    for path in logs(root):
        assert word not in text(path)


def test_repetitions_at_another_speed_are_one_run(root: Path, tmp_path: Path) -> None:
    """A noisy machine makes a repetition slower; its own arguments say that it is the same run."""
    once = text(logs(root)[0])
    slower = re.sub(r"(elapsed time per iteration \(ms\): )([\d.]+)", lambda m: f"{m[1]}{1.5 * float(m[2]):.3f}", once)
    assert slower != once
    twice = tmp_path / "twice.log"
    twice.write_text(once.rstrip("\n") + "\n" + slower, encoding="utf-8")
    assert len(load(twice).runs) == 1
