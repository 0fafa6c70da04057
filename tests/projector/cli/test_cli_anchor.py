"""``performance --anchor``: what a measured run says of another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from projector.cli import run

CASE = """\
model: llama3.1_8b
cluster: h100_sxm
gpus: 16
framework: megatron-lm
recipe: {tp: 2, micro_batch_size: 1, global_batch_size: 64, seq_length: 4096, data_parallel_sharding: optim}
"""


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run(["performance", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def step(document: dict) -> float:
    return document["projections"]["simulate"]["step_seconds"]


def test_an_anchor_alone_gives_back_its_own_step(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "--anchor", case, "--anchor-step", "3.5")["anchor"]
    assert (found["ratio"], found["expected_step_seconds"], found["changed"]) == (1.0, 3.5, [])
    assert found["expected_tgs"] == pytest.approx(64 * 4096 / 16 / 3.5)


def test_flags_change_the_target_and_not_the_anchor(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the file is named once or twice, and as two projections have it."""
    before = step(said(capsys, "--config", case))
    flags = ("--tp", "4", "--pp", "2", "--gpu", "b200", "--global-batch-size", "128")
    after = step(said(capsys, "--config", case, *flags))
    once = said(capsys, "--anchor", case, "--anchor-step", "3.5", *flags)
    twice = said(capsys, "--anchor", case, "--anchor-step", "3.5", "--config", case, *flags)
    assert once["anchor"] == twice["anchor"]
    found = once["anchor"]
    assert found["projected_step_seconds"] == before
    assert found["ratio"] == pytest.approx(after / before)
    assert found["expected_step_seconds"] == pytest.approx(3.5 * after / before)
    assert found["changed"] == ["GPU", "batch", "pp", "tp"]
    assert 0 < found["interval"]["low"] < found["expected_step_seconds"] < found["interval"]["high"]


def test_another_model_is_a_change_of_the_model(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "--anchor", case, "--anchor-step", "3.5", "--config", case, "--model", "qwen3_8b")
    assert found["anchor"]["changed"] == ["model"]


def test_what_the_file_leaves_open_the_flags_say_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "open.yaml"
    path.write_text("".join(line for line in CASE.splitlines(True) if not line.startswith(("cluster", "gpus"))))
    flags = ("--anchor", str(path), "--anchor-step", "3.5", "--gpu", "h200", "--gpus", "32")
    assert said(capsys, *flags)["anchor"]["ratio"] == 1.0


def test_the_best_of_all_schedules_is_a_change_of_the_schedule(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--pp", "2", "--pipeline-schedule-algorithm", "all")
    found = said(capsys, "--anchor", case, "--anchor-step", "3.5", *flags)["anchor"]
    assert found["changed"] == ["pp", "schedule"]


def test_the_lines_name_measured_ratio_and_interval(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["performance", "--anchor", case, "--anchor-step", "3.5"]) == 0
    out = capsys.readouterr().out
    assert "From the anchor: 3.500 s measured × 1.0000 = 3.500 s" in out
    assert "90 % interval" in out
    assert "changed: nothing" in out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--anchor", "CASE"), "no --anchor-step"),
        (("--config", "CASE", "--anchor-step", "3"), "no --anchor"),
        (("--anchor", "CASE", "--anchor-step", "0"), "--anchor-step"),
        (("--anchor", "CASE", "--anchor-step", "nan"), "--anchor-step"),
        (("--anchor", "nowhere.yaml", "--anchor-step", "3"), "nowhere.yaml"),
        (("--config", "CASE", "--anchor", "nowhere.yaml", "--anchor-step", "3"), "nowhere.yaml"),
        (
            ("--anchor", "CASE", "--anchor-step", "3", "--profiling-mode", "benchmark", "--load-benchmark", "x"),
            "--load-benchmark",
        ),
    ],
)
def test_half_an_anchor_is_refused(
    case: str, words: tuple[str, ...], found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run(["performance", *(case if word == "CASE" else word for word in words)])
    except SystemExit as stopped:
        code = int(str(stopped.code))
    assert code == 2
    assert found in capsys.readouterr().err
