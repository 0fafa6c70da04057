"""``performance --explore``, ``--sub-target-nodes`` and ``--enable-zero-bubble``."""

from __future__ import annotations

import json

import pytest

from projector.cli import run

CASE = """
model: llama3_8b
cluster: mi355x
gpus: 16
framework: primus
recipe: {micro_batch_size: 1, global_batch_size: 64, seq_length: 4096, pp: 4, data_parallel_sharding: optim}
"""


def test_the_walk_is_shown_and_written(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["performance", "--config", case, "--explore"]) == 0
    out = capsys.readouterr().out
    assert "Exploration" in out
    assert "Together:" in out
    assert run(["performance", "--config", case, "--explore", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["exploration"]
    assert {step["category"] for step in found["steps"]} >= {"parallelism", "pipeline schedule", "batch"}
    assert any(step["kept"] for step in found["steps"])


def test_scaling_from_fewer_hosts(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["performance", "--config", case, "--sub-target-nodes", "1", "--json"]) == 0
    scaling = json.loads(capsys.readouterr().out)["scaling"]
    assert scaling["nodes"] == 1
    assert 0.5 < scaling["efficiency"] < 1.1  # sharded state shrinks with more ranks


def test_zero_bubble_is_faster_and_leaves_a_named_schedule_alone(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(*flags: str) -> float:
        assert run(["performance", "--config", case, "--json", *flags]) == 0
        document = json.loads(capsys.readouterr().out)
        return float(document["projections"]["simulate"]["step_seconds"])

    plain, split = seconds(), seconds("--enable-zero-bubble")
    assert split < plain
    assert seconds("--enable-zero-bubble", "--pipeline-schedule-algorithm", "1f1b") == pytest.approx(plain)
