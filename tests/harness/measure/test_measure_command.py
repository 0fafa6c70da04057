"""``harness measure`` as a user runs it: a training of three steps, its log, its run; and what goes wrong."""

import re
import subprocess
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import command_line
import pytest
import yaml
from asked import put, says
from measure_jobs import LLAMA, job
from tabled import tabled

from harness.cli import main
from harness.evidence import dataset
from harness.evidence.ingest.command import load
from harness.trace.account import account
from harness.trace.reader import read
from harness.trace.steps import chosen, steps
from harness.trace.study import as_kernels

pytest.importorskip("torch")


def spec_file(folder: Path, *jobs: dict, **words: object) -> Path:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({"measure": {"device": "cpu", "threads": 1, **words, "runs": list(jobs)}}))
    return path


def test_measure_log_ingest(tmp_path) -> None:
    path = spec_file(tmp_path, {**job("tiny", steps=3), "group": "g"})
    done = command_line.run("harness", "measure", path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    says(done.stdout, "tiny", "written to")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["runs.yaml", "tiny.log"]
    (run,) = dataset.read(tmp_path / "out" / "runs.yaml")
    (read,) = load(tmp_path / "out" / "tiny.log").logs
    assert run.workload == read.run.workload
    assert run.measured == read.run.measured
    assert run.group == "g"
    assert run.gpu == "cpu"
    assert 1 <= read.record.steps <= 3  # the rest were disturbed
    assert all(0 < loss < 20 for loss in read.record.loss)  # that it falls is held over more steps
    assert (run.measured.step_seconds or 0) > 0


@pytest.mark.parametrize(("flags", "found"), tabled("refusals", "measure_command"))
def test_wrong_flags(tmp_path, capsys, flags: tuple[str, ...], found: str) -> None:
    import torch

    if "cuda" in flags and torch.cuda.is_available():
        pytest.skip("a GPU is there")
    code = main(["measure", str(spec_file(tmp_path, job("tiny"))), "--out", str(tmp_path / "out"), *flags])
    assert code == 2
    assert found in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_more_processes_than_cores(tmp_path, capsys) -> None:
    many = {
        **job("many", {**LLAMA, "num_layers": 4}, 4096),
        "recipe": {**job("x")["recipe"], "global_batch_size": 4096},
    }
    assert main(["measure", str(spec_file(tmp_path, many)), "--out", str(tmp_path / "out")]) == 2
    assert "many: gpus" in capsys.readouterr().err


def test_ranks_of_a_launcher_do_not_start_ranks_each(tmp_path, capsys, monkeypatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "3"), ("MASTER_ADDR", "a")):
        monkeypatch.setenv(name, value)
    assert main(["measure", str(spec_file(tmp_path, job("tiny"))), "--out", str(tmp_path / "out")]) == 2
    assert "8 ranks of torchrun" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    suite = put(tmp_path / "s.yaml", yaml.safe_dump({"suite": "s", "measure": [job("tiny")]}))
    for command in (["measure", str(suite)], ["run", str(suite)]):
        (line,) = command_line.refused("harness", *command, "--out", tmp_path / "out").splitlines()
        assert "projector-harness[benchmark]" in line
    assert not (tmp_path / "out").exists()


def test_a_training_that_fails_says_why(tmp_path) -> None:
    huge = job("huge", {**LLAMA, "vocab_size": 90_000_000, "hidden_size": 8192, "kv_channels": 64})
    assert "rank 0" in command_line.refused("harness", "measure", spec_file(tmp_path, huge), "--out", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.log"))


def test_torch_is_imported_only_when_called() -> None:
    code = "import sys, harness.cli, harness.evidence.suite, harness.measure.suite_trainings; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "False", done.stderr


def test_command_lines_of_tprimat(tmp_path) -> None:
    """A model of the file, split by a strategy, thrice with a rest between."""
    path, out = spec_file(tmp_path, job("llama", steps=3), job("qwen", steps=3)), tmp_path / "out"
    words = ("--model", "llama", "--parallel", "minimal_communication", "--runs", "3", "--cooldown", "2")
    assert main(["measure", str(path), *words, "--output-dir", str(out)]) == 0
    assert [file.stem for file in out.glob("*.log")] == ["llama-minimal_communication"]
    log = (out / "llama-minimal_communication.log").read_text()
    stamps = [datetime.fromisoformat(text) for text in re.findall(r"\[([^]]*)\] iteration +[13]/", log)]
    assert len(stamps) == 6
    rests = [after - before for before, after in pairwise(stamps)][1::2]
    assert all(rest.total_seconds() >= 2 for rest in rests)


def test_variables_of_tprimat_stand_for_flags(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "named"))
    monkeypatch.setenv("PARALLEL", "minimal_communication")
    path = spec_file(tmp_path, job("tiny", steps=3))
    assert main(["measure", str(path)]) == 0
    assert (tmp_path / "named" / "tiny-minimal_communication.log").exists()
    monkeypatch.setenv("PARALLEL", "-j4")  # GNU parallel's
    assert main(["measure", str(path), "--out", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "tiny.log").exists()


def test_a_training_can_be_traced_and_its_trace_adds_up(tmp_path) -> None:
    """The closed loop of a trace: kinds and idle time never exceed the steps that the profiler marked, and sum to the one
    that was disturbed least within 2 % (another program may stop a step before its first kernel or behind its last)."""
    path = spec_file(tmp_path, job("tiny", steps=30), profile={"wait": 1, "active": 3, "with_stack": True})
    assert main(["measure", str(path), "--out", str(tmp_path / "out")]) == 0
    trace = as_kernels(read(tmp_path / "out" / "tiny.rank0.trace.json.gz"))
    found = steps(trace)
    assert len(found) == 3
    shares = []
    for step in found:
        assert step.whole
        made = account(chosen(trace, step.number))
        shares.append((sum(entry.exposed for entry in made.entries) + made.idle) / step.host_seconds)
        assert {"GEMM", "attention", "optimizer"} <= {entry.kind for entry in made.entries}
    assert all(share <= 1.02 for share in shares)
    assert max(shares) >= 0.98
