"""Two sets of laws on one space: each optimum is best by its own laws, no regret is a gain, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.evaluation.regret import compared, in_domains
from projector.hardware import catalogue
from projector.workload import zoo
from tests.workloads import workload

SMALL = ["regret", "--model", "gpt3_6.7b", "--gpu", "h100", "--gpus", "16", "--gbs", "32"]


@pytest.mark.parametrize("strategy", ["1d", "2d", "2d-seqp"])
def test_no_optimum_is_beaten_by_its_own_laws(strategy: str) -> None:
    model = replace(zoo.load("gpt3_6.7b"), num_layers=8)
    base = workload(model, 8, "analytic", global_batch_size=16, seq_length=2048)
    for cluster, ranks in zip(in_domains(catalogue.cluster("h100"), [4, 8]), (4, 8), strict=True):
        found = compared(strategy, base, cluster)
        assert found.its is not None
        assert found.ours is not None
        assert found.regret_of_ours >= 0
        assert found.regret_of_its >= 0
        assert max(found.fitting) <= found.tried
        assert found.domain == ranks


def test_a_rack_is_filled_evenly() -> None:
    """64 of 72 for a power of two, 512 of 576: what does not divide the run is in no group's domain."""
    base = workload("megatron_1t", 1024, "analytic", global_batch_size=1024, seq_length=2048)
    found = [compared("1d", base, cluster) for cluster in in_domains(catalogue.cluster("b200"), [64, 72, 576])]
    assert [each.domain for each in found] == [64, 64, 512]
    assert all(each.ours is not None and each.its is not None for each in found)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "regret.md"
    assert main([*SMALL, "--domains", "4,8", "--json", "--out", str(out)]) == 0
    table = json.loads(capsys.readouterr().out)["tables"][0]
    assert len(table["rows"]) == 4
    assert "Optima under each other" in out.read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--strategies", "3d"], "1d, 2d, 2d-seqp"),
        (["--domains", "8,x"], "whole numbers"),
        (["--domains", "0"], "1 or more GPUs"),
        (["--model", "mixtral_8x7b"], "equal heads"),
        (["--gpus", "0"], "1 or more"),
        (["--gpus", "7", "--gbs", "3"], "can divide"),
    ],
)
def test_bad_input(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *flags]) == 2
    assert words in capsys.readouterr().err
