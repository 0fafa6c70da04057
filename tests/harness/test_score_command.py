"""``harness score`` and ``harness suites``, and logs that ``projector.expect`` takes."""

import dataclasses
import gzip
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml
from asked import ROOT, put, refusal, says

import projector as pj
from harness.evaluation.judge import judged
from harness.evidence.ingest.context import Context, read_context
from harness.report import github, view_score
from harness.score.run_verdict import RunVerdict
from tests.harness.compare.logs_made import LOGS, write_log

CPU = ROOT / "measured" / "logs" / "cpu_gpt.log.gz"


def one(path: Path, gpu: str | None = "mi300x") -> RunVerdict:
    (found,), problems = judged([path], read_context(None, gpu))
    assert not problems
    return found


def slowed(path: Path) -> Path:
    """Writes the log of the CPU with steps three times as long."""
    text = gzip.decompress(CPU.read_bytes()).decode()
    path.write_text(re.sub(r"(per iteration \(ms\): )([\d.]+)", lambda m: f"{m[1]}{3 * float(m[2]):.3f}", text))
    return path


def logged(tmp_path, seconds: float, *, timers: bool = False) -> RunVerdict:
    return one(write_log(tmp_path / "train.log", [seconds] * 40, timers=timers))


@pytest.fixture(scope="module")
def usual(tmp_path_factory) -> RunVerdict:
    return logged(tmp_path_factory.mktemp("usual"), 20.0)


def test_verdicts_follow_the_interval(usual: RunVerdict, tmp_path) -> None:
    low, high = usual.found.low, usual.found.high
    seconds = {"fast": 0.98 * low, "normal": math.sqrt(low * high), "slow": 1.02 * high}
    assert {word: logged(tmp_path, each).verdict for word, each in seconds.items()} == {word: word for word in seconds}


def test_the_causes_explain_the_whole_gap(usual: RunVerdict) -> None:
    assert math.prod(usual.causes.values()) == pytest.approx(usual.ratio, rel=1e-9)
    assert list(usual.causes) == list(usual.found.parts)
    assert usual.seconds == pytest.approx(20.0, rel=1e-4)


def test_timers_are_compared_part_by_part(usual: RunVerdict, tmp_path) -> None:
    assert usual.spans == ()
    timed = logged(tmp_path, 41.0, timers=True)
    passes, optimizer = timed.spans
    assert (passes.measured, optimizer.measured) == (pytest.approx(32.8, rel=1e-3), pytest.approx(4.1, rel=1e-3))
    scale = timed.found.middle / timed.made.step_seconds
    assert optimizer.expected == pytest.approx(scale * timed.made.breakdown["optimizer_s"])
    assert usual.gap is None
    text = view_score.verdict(timed)
    assert re.match(r"Slow: 41\.00 s a step measured, [\d.]+ s expected", text)
    slow = logged(tmp_path, 80.0, timers=True)
    assert slow.gap.name == "forward and backward passes"
    assert "because of the forward and backward passes: 64.00 s measured" in view_score.verdict(slow)


def test_a_log_without_arguments_takes_them_from_the_script(tmp_path) -> None:
    lines = write_log(tmp_path / "whole.log", [30.0] * 20, batch=256).read_text().splitlines()
    steps = [line[line.index("iteration") :] for line in lines if "elapsed time per iteration" in line]
    steps = [re.sub(r"hip mem.*?\| rank.*?\| ", "", line) for line in steps]
    bare = put(tmp_path / "bare.log", "\n".join(steps) + "\n")
    more = ("--config", ROOT / "tests/jobs/train.sh", "--gpu", "h100", "--gpus", 8)
    says(command_line.told("harness", "score", bare, *map(str, more)), "bare: ", "By part")
    script = (ROOT / "tests/jobs/train.sh").read_text().partition("\n")[2]
    told = put(tmp_path / "told.sh", f"#!/bin/bash\n# projector: cluster=p5.48xlarge gpus=8\n{script}")
    assert (read_context(told).gpu, read_context(told, "b200").cluster) == ("h100_sxm", "")
    says(command_line.told("harness", "score", bare, "--config", str(told)), "bare: ", "By part")
    alone = command_line.run("harness", "score", bare)
    assert alone.returncode == 1
    assert "gpu (--gpu NAME); gpus (--gpus N)" in alone.stdout
    other = command_line.run("harness", "score", bare, *map(str, more), "--framework", "nothing")
    assert (other.returncode, "--framework: " in other.stderr) == (2, True)


def test_the_command_as_a_gate(tmp_path) -> None:
    badge, out = tmp_path / "badge.json", tmp_path / "score.md"
    words = ("score", slowed(tmp_path / "slow.log"), "--gate", "--badge", badge, "--out", out, "--json")
    done = command_line.run("harness", *words)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    (run,) = document["runs"]
    assert run["verdict"] == "slow"
    assert run["measured_step_seconds"] > run["expected"]["high"]
    assert json.loads(badge.read_text())["message"] == f"slow × {run['ratio']:.2f}"
    assert "| compute |" in out.read_text()
    assert command_line.run("harness", *words[:2]).returncode == 0


def test_many_logs_stand_side_by_side(tmp_path) -> None:
    text = gzip.decompress(CPU.read_bytes())
    (tmp_path / "again.log").write_bytes(text)
    bad = put(tmp_path / "bad.log", "nothing of a step\n")
    done = command_line.run("harness", "score", CPU, tmp_path / "again.log", bad)
    assert done.returncode == 2
    assert "bad.log" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("cpu_gpt  ", "again  "))]
    assert [row[1:4] for row in rows] == [rows[0][1:4]] * 2


def test_suites_are_listed() -> None:
    out = command_line.told("harness", "suites")
    for path in (ROOT / "suites").glob("*.yaml"):
        assert re.search(rf"^{path.stem} ", out, re.MULTILINE)


def test_expect_takes_a_log(tmp_path) -> None:
    made = one(CPU, None).made
    assert made is not None
    told = pj.expect(made, runs=str(CPU))
    (run,), _ = judged([CPU], Context())
    assert told.middle == pytest.approx(run.seconds, rel=1e-9)
    assert told.middle != pytest.approx(pj.expect(made).middle, rel=0.1)
    assert pj.expect(made, runs=[CPU, (made, run.seconds)]) == told  # one run that is told twice
    refusal(pj.expect, made, runs=tmp_path / "nothing.log", match=r"nothing\.log")


def test_a_log_of_no_gpu_is_of_the_projections(tmp_path) -> None:
    lines = (LOGS / "megatron_c.log").read_text()
    assert one(LOGS / "megatron_c.log", "mi300x").made is not None, lines[:200]
    made = one(write_log(tmp_path / "a.log", [20.0] * 30)).made
    assert made is not None
    assert pj.expect(made, tmp_path / "a.log").middle == pytest.approx(20.0, rel=1e-2)


def action() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return made


def test_the_action_scores_logs_and_writes_the_comment(tmp_path) -> None:
    (score,) = [step for step in action()["runs"]["steps"] if step.get("name") == "Score"]
    bin = tmp_path / "temp" / "projector" / "bin"
    bin.mkdir(parents=True)
    (bin / "python").symlink_to(sys.executable)
    (tmp_path / "logs").mkdir()
    for name in ("one", "two"):
        slowed(tmp_path / "logs" / f"{name}.log")
    words = {"LOGS": "logs/*.log", "GATE": "true", "OUT": "out", "CONFIG": "", "GPU": "", "GPUS": ""}
    summary = tmp_path / "summary.md"
    more = {"RUNNER_TEMP": str(tmp_path / "temp"), "PYTHONPATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(summary)}
    how = {"cwd": tmp_path, "env": {**os.environ, **words, **more}, "capture_output": True, "text": True}
    done = subprocess.run(["sh", "-e", "-c", score["run"]], check=False, **how)
    assert done.returncode == 1, done.stderr  # the gate: both are slow
    body = (tmp_path / "out" / "comment.md").read_text()
    assert body.startswith(github.MARK + "\n")
    assert len([line for line in body.splitlines() if line.startswith(("| one | slow", "| two | slow"))]) == 2
    says(body, "expected (90 %", summary.read_text().strip())
    assert json.loads((tmp_path / "out" / "badge.json").read_text())["color"] == "red"
    (posted,) = [step["run"] for step in action()["runs"]["steps"] if step.get("name") == "Comment"]
    assert f'startswith("{github.MARK}")' in posted


def test_a_comment_is_cut_to_what_github_takes_and_calls_nobody(usual: RunVerdict) -> None:
    report = view_score.build([dataclasses.replace(usual, name=f"@run{i}" * 20) for i in range(900)])
    body = github.comment(report)
    assert len(body.encode()) <= github.MOST_COMMENT
    assert "@run" not in body


def test_the_workflow_of_another_repository_uses_what_the_action_takes() -> None:
    workflow = yaml.safe_load((ROOT / "examples/ci/other-repository.yml").read_text(encoding="utf-8"))
    (step,) = [each for each in workflow["jobs"]["speed"]["steps"] if each.get("id") == "speed"]
    assert step["with"].keys() <= action()["inputs"].keys()
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == action()["inputs"].keys()
