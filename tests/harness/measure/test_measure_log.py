"""The log that a training writes: ingested, it gives back the whole configuration and the times that were taken."""

import gzip
import re
from pathlib import Path

import pytest
from asked import put
from hypothesis import given
from hypothesis import strategies as st
from measure_jobs import LLAMA, QWEN, job
from tabled import tabled

from harness.evidence.ingest.command import load
from harness.measure import log, spec
from harness.measure.cores import used, waited
from harness.measure.log import TrainedStep, kept
from harness.measure.spec import Job

FACTS = {"trainer_device": "cpu", "trainer_version": "torch 2.9.0", "threads_per_process": 1}
SPLITS = [
    *((tabled("trainings", name), *how) for name, *how in tabled("workloads", "trained_splits")),
    ({**LLAMA, "position_embedding_type": "alibi"}, {"tp": 2}, 2),
]


def made(model: dict, recipe: dict, gpus: int, steps: int = 20) -> Job:
    plan, problems = spec.parse([job("x", model, gpus, steps, **recipe)], "f")
    assert not problems
    return plan.jobs[0]


def written(path: Path, one: Job, seconds: list[float], starts: int = 1) -> Path:
    text = [*log.head(one, FACTS), *log.body(one, steps(seconds))]
    log.save(path, text * starts)
    return path


def steps(seconds: list[float], waited: float = 0.0) -> list[TrainedStep]:
    return [TrainedStep(i, 1.7e9 + i, each, waited, 6.0 / i, 1.0) for i, each in enumerate(seconds, 1)]


@pytest.mark.parametrize(("model", "recipe", "gpus"), SPLITS)
def test_a_log_alone_is_a_whole_measured_run(tmp_path, model: dict, recipe: dict, gpus: int) -> None:
    one = made(model, recipe, gpus)
    (run,) = load(written(tmp_path / "x.log", one, [0.1] * 20)).runs
    assert run.model == one.workload.model
    assert run.recipe == one.workload.recipe
    assert run.workload == one.workload
    assert (run.gpu, run.problem, run.assumed) == ("cpu", "", ())
    assert (run.stack.framework, run.stack.version) == ("pytorch", "torch 2.9.0")
    assert run.measured.step_seconds == pytest.approx(0.1)
    assert run.measured.tgs == pytest.approx(4 * 32 / 0.1 / gpus)


@given(seconds=st.lists(st.floats(1e-3, 100.0), min_size=3, max_size=30))
def test_times_survive_the_log(tmp_path_factory, seconds: list[float]) -> None:
    path = written(tmp_path_factory.mktemp("log") / "x.log", made(LLAMA, {}, 1, len(seconds)), seconds)
    (read,) = load(path).logs
    assert read.record.value == pytest.approx(seconds, abs=6e-7)
    assert read.record.loss == pytest.approx([6.0 / i for i in range(1, len(seconds) + 1)], rel=1e-5)


def test_repetitions_are_starts_of_one_run(tmp_path) -> None:
    seconds = [9.0, 9.0, 9.0, 9.0, 9.0, *([0.2] * 10)]
    (read,) = load(written(tmp_path / "x.log", made(LLAMA, {}, 1, 15), seconds, starts=3)).logs
    assert sorted(set(read.record.segment.tolist())) == [0, 1, 2]
    assert read.run.measured.samples == 30
    assert read.run.measured.step_seconds == pytest.approx(0.2)


def test_memory_of_a_device(tmp_path) -> None:
    one = made(LLAMA, {}, 1)
    path = written(tmp_path / "x.log", one, [0.1] * 5)
    used = {"allocated": 2.0**30, "max allocated": 2.0**31, "reserved": 2.0**31, "max reserved": 3 * 2.0**30}
    (run,) = load(put(path, path.read_text() + log.memory(used) + "\n")).runs
    assert (run.measured.peak_memory_gib, run.measured.memory_kind) == (pytest.approx(3.0), "reserved")


def test_a_gpu_is_found_by_its_title(tmp_path) -> None:
    one = made(LLAMA, {}, 1)
    facts = {**FACTS, "trainer_device": "NVIDIA H100 80GB HBM3"}
    log.save(tmp_path / "x.log", [*log.head(one, facts), *log.body(one, steps([0.1] * 3))])
    (run,) = load(tmp_path / "x.log").runs
    assert run.gpu == "h100_sxm"


def test_nothing_of_the_machine_is_in_a_log(tmp_path) -> None:
    import getpass
    import socket

    text = written(tmp_path / "x.log", made(QWEN, {"ep": 2}, 2), [0.1] * 3).read_text()
    for word in (socket.gethostname(), str(tmp_path), f" {getpass.getuser()} ", str(Path(__file__).parents[3])):
        assert word not in text


def test_steps_that_others_disturbed_do_not_count(tmp_path) -> None:
    one = made(LLAMA, {}, 1)
    quiet, crowded = steps([0.1] * 12), steps([0.3] * 20, waited=0.2)[12:]
    log.save(tmp_path / "x.log", [*log.head(one, FACTS), *log.body(one, [*quiet, *crowded])])
    (read,) = load(tmp_path / "x.log").logs
    assert read.record.steps == 12
    assert read.run.measured.step_seconds == pytest.approx(0.1)
    assert (tmp_path / "x.log").read_text().count("200.000 of 300.000 ms without a core") == 8


@given(st.lists(st.floats(0.0, 1.0), max_size=60))
def test_the_least_disturbed_third_is_kept(shares: list[float]) -> None:
    good = kept(shares)
    assert len(good) == len(shares)
    assert sum(good[1:]) >= (len(shares) - 1) / 3  # a log of the first step alone has no steady step
    assert all(counts for share, counts in zip(shares, good, strict=True) if share <= 0.05)
    inside = [share for share, counts in zip(shares, good, strict=True) if counts]
    outside = [share for share, counts in zip(shares, good, strict=True) if not counts]
    assert not inside or not outside or max(inside) < min(outside)


def test_what_waited_and_ran_only_grows() -> None:
    for seconds in (waited, used):
        assert 0.0 <= seconds() <= seconds()


# The checked-in logs of our own trainings: each alone is a complete measured run.


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


def test_repetitions_at_another_speed_are_one_run(root: Path, tmp_path) -> None:
    """A noisy machine makes a repetition slower; its own arguments say that it is the same run."""
    once = text(logs(root)[0])
    slower = re.sub(r"(elapsed time per iteration \(ms\): )([\d.]+)", lambda m: f"{m[1]}{1.5 * float(m[2]):.3f}", once)
    assert slower != once
    assert len(load(put(tmp_path / "twice.log", once.rstrip("\n") + "\n" + slower)).runs) == 1
