"""Runs of one source that do the same work a token must agree on it: step time times TFLOP/s over tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from harness.contracts.runs import MeasuredRun
from harness.evidence import dataset

ROUNDING = 1.06


def contradictions(runs: Iterable[MeasuredRun]) -> list[str]:
    """Sources and ids of runs of the same model on the same samples whose printed figures say different FLOPs a token."""
    counted: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for run in runs:
        said = run.measured
        computed = any(line.startswith(("step_seconds", "tflops")) for line in said.derived)
        if run.problem or run.doubt or computed or not said.step_seconds or not said.tflops_per_gpu:
            continue
        work, recipe = run.workload, run.workload.recipe
        same = (str(run.source), work.model, recipe.seq_length, recipe.recompute_granularity)
        counted[same][run.id] = said.step_seconds * said.tflops_per_gpu * run.gpus / work.tokens_per_step
    return [
        f"{same[0]}: {found}" for same, found in counted.items() if max(found.values()) > ROUNDING * min(found.values())
    ]


def test_sources_agree_with_themselves(root: Path) -> None:
    """Rows that nobody had seen are read after their first look; what contradicts itself there is not doubted yet."""
    files = (root / "measured" / "runs").glob("[!u]*.yaml")
    assert contradictions(run for path in sorted(files) for run in dataset.read(path)) == []


def test_a_step_beside_the_rate_of_another_run_is_found(root: Path) -> None:
    runs = {run.id: run for run in dataset.read(root / "measured" / "runs")}
    pair = [runs[f"dsv2lite-sft-lora-mi355x-{routing}"] for routing in ("balanced", "unbalanced")]
    assert pair[1].doubt
    found = contradictions([replace(run, doubt="") for run in pair])
    assert len(found) == 1
    assert pair[1].id in found[0]
