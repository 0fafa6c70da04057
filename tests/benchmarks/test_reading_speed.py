"""Files and start-up beside plain work of the same size in the same run; growth beside twice the size."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from measured_table import best
from workloads import workload

from harness.evidence import dataset
from harness.evidence.ingest.command import load
from harness.evidence.ingest.logs import registry
from projector import project_many
from projector.frameworks import resolve
from projector.hardware import catalogue
from projector.hardware.catalogue import gpu
from projector.memory.plan import plan
from projector.search.branch_and_bound import BranchAndBound
from projector.search.objective import Objective
from projector.search.space import space, with_fields
from projector.search.tree import Tree
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.conftest import ROOT

LINE = (
    " iteration {:8d}/ 2000000 | consumed samples: 128 | elapsed time per iteration (ms): {}.0 | lm loss: 1.0E+00 |\n"
)
UNITS = (
    "a .... : ", "[rank-", "| 1 ", "1,", "\x1b[0;", "memory (MB) | a", "Config param a: 1 ", '{"a":', "a: b ", "|1 \\|",
)  # fmt: skip


def test_a_log_beside_iteration_over_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    head = (ROOT / "tests" / "data" / "logs" / "megatron_b.log").read_text()
    path.write_text(head + "".join(LINE.format(i, 6000 + i % 21) for i in range(5_000, 45_000)))

    def lines() -> int:
        with path.open(errors="replace") as file:
            return sum(1 for _ in file)

    load(path)
    assert best(lambda: load(path)) < 1_000 * best(lines)  # 150 when written; a quadratic step takes minutes


@pytest.mark.parametrize("unit", UNITS)
def test_the_time_of_a_line_grows_with_its_length(unit: str) -> None:
    short, long = (  # 64 times as long: what is quadratic takes 4,096 times as long
        unit * (size // len(unit)) for size in (2**16, 2**22)
    )
    for dialect in registry.LINES:
        one = best(lambda d=dialect: list(d.events([(1, short), (2, "end")])), 5)  # type: ignore[misc]
        long_one = best(lambda d=dialect: list(d.events([(1, long), (2, "end")])), 5)  # type: ignore[misc]
        assert long_one < 600 * one + 0.05, dialect.name


def test_measured_runs_beside_their_yaml() -> None:
    folder = ROOT / "measured" / "runs"

    def plain() -> None:
        for path in folder.glob("*.yaml"):
            yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))

    dataset.read(folder)
    assert best(lambda: dataset.read(folder)) < 3 * best(plain)


def test_a_memory_plan_beside_a_naive_walk_of_its_schedule() -> None:
    recipe = Recipe(
        micro_batch_size=1, global_batch_size=8192, seq_length=4096, pp=16, ep=64, recompute_granularity="full",
        recompute_method="uniform", recompute_num_layers=1, decoder_first_pipeline_num_layers=3,
        decoder_last_pipeline_num_layers=2,
    )  # fmt: skip
    case = resolve(Workload(model=zoo.load("deepseek_v3", mtp_num_layers=0), recipe=recipe, gpus=2048))
    device = gpu("h100_sxm")

    def naive() -> float:
        held = peak = 0.0
        for _ in range(16):
            for action in range(512):
                for part in range(4):
                    held += part * (1.0 if action % 2 else -1.0)
                    peak = max(peak, held)
        return peak

    plan(case, device)
    assert best(lambda: plan(case, device), 5) < 10 * best(naive, 5)


# A suite from new processes: what the second one is spared, beside the first in the same run.


def test_a_suite_beside_itself_the_first_time(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "run", str(ROOT / "suites" / "scaling.yaml"), "--quiet", "--out"]
    environment = {**os.environ, "PROJECTOR_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}

    def run(name: str) -> float:
        words = [*command, str(tmp_path / name), "--no-plots"]
        return best(lambda: subprocess.run(words, env=environment, check=True, capture_output=True), 1)

    first, again = run("first"), run("again")
    assert again < 0.6 * first  # a third when written


# The search beside the same configurations one by one: what bounds and groups save, as ratios.


H100 = catalogue.default_cluster("h100_sxm")
JOBS = {"llama3_70b": (512, 1024, 8192), "deepseek_v3": (2048, 15360, 4096)}


@pytest.mark.parametrize("model", ["llama3_70b", pytest.param("deepseek_v3", marks=pytest.mark.night)])
def test_bounds_are_cheaper_than_projections(benchmark: Any, model: str) -> None:
    gpus, batch, length = JOBS[model]
    made = space(workload(model, gpus, global_batch_size=batch, seq_length=length), H100)
    solver = BranchAndBound(Tree(made), H100, Objective())
    began = time.process_time()
    benchmark.pedantic(solver.run, rounds=1)
    searched = time.process_time() - began
    loads = [with_fields(made.base, hit.fields) for hit in solver.hits]
    began = time.process_time()
    project_many(loads, H100, best=None)
    one = (time.process_time() - began) / len(loads)
    rate = solver.counts.enumerated / searched
    benchmark.extra_info |= {"candidates": solver.counts.enumerated, "per_s": rate, "seconds": searched}
    assert solver.gap == 0
    assert rate * one > 10
