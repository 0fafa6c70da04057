"""Other searchers beside ours, one question, one run, one core: candidates a second.

Checkouts by path: ``PEERS=DIR`` with ``calculon``, ``simumax``, ``transformer-perf-estimates`` and ``llm-analysis`` in it,
and ``PEER_PYTHON`` where they need an interpreter of their own (transformer-perf-estimates: pandas 2). A tool that is
not there is skipped, with its reason in the table.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measured_table
import pytest
from peer_drivers import BATCH, GPUS, LENGTH, TOOLS
from workloads import workload

from projector.hardware import catalogue
from projector.search.found import Limits, search
from projector.search.objective import Objective
from projector.search.space import space

SECONDS = 20
SPACES = {
    "calculon": "tp, pp, vpp, micro-batch, recompute, sharding, overlaps, collectives, networks",
    "simumax": "tp, pp, micro-batch, recompute",
    "transformer-perf-estimates": "tp, pp, micro-batch, placement",
    "llm-analysis": "tp, pp, micro-batch, recompute (it has no search: a loop)",
    "projector": "tp, pp, vpp, cp, micro-batch, schedule, layout, recompute, sharding, overlaps, sequence parallelism",
}


def _peer(name: str, folder: Path) -> dict[str, Any] | str:
    """What it answers, or why not."""
    checkout = Path(os.environ.get("PEERS", "")) / name
    if not os.environ.get("PEERS") or not checkout.is_dir():
        return "no checkout"
    driver = str(Path(__file__).with_name("peer_drivers.py"))
    python = os.environ.get("PEER_PYTHON", sys.executable)
    words = [python, "-W", "ignore", driver, name, str(checkout.resolve()), str(SECONDS)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=30 * SECONDS)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def _ours() -> dict[str, Any]:
    cluster = catalogue.default_cluster("a100_sxm_80gb")
    made = space(workload("gpt3_175b", GPUS, global_batch_size=BATCH, seq_length=LENGTH), cluster)
    began = time.process_time()
    found = search(made, cluster, Objective(), Limits(top=1), explained=False)
    seconds = time.process_time() - began
    fields = found.best[0].fields
    best = {"tp": fields["tp"], "pp": fields["pp"], "mbs": fields["micro_batch_size"]}
    counts = {"candidates": found.counts.enumerated, "projected": found.counts.projected}
    return {**counts, "seconds": seconds, "best": best, "gap": found.gap}


def test_searchers_side_by_side(benchmark: Any, tmp_path: Path) -> None:
    ours = benchmark.pedantic(_ours, rounds=1)
    answers: dict[str, dict[str, Any] | str] = {name: _peer(name, tmp_path) for name in TOOLS}
    answers["projector"] = ours
    rows, rates = [], {}
    for name, said in answers.items():
        if isinstance(said, str):
            rows.append((name, SPACES[name], "–", "–", "–", said))
            continue
        rates[name] = said["candidates"] / said["seconds"]
        best = said["best"]
        winner = f"tp {best['tp']}, pp {best['pp']}, mbs {best['mbs']}" if best else f"stopped after {SECONDS} s"
        figures = f"{said['candidates']:,}", f"{said['seconds']:.1f}", f"{rates[name]:,.0f}"
        rows.append((name, SPACES[name], *figures, winner))
    measured_table.write(
        "searches.md",
        "Searchers side by side",
        ("tool", "its space", "candidates", "CPU seconds", "candidates/s", "its winner, by its own laws"),
        rows,
        (
            f"GPT-3 175B, sequence {LENGTH:,}, {GPUS} A100 80 GB in hosts of 8, global batch {BATCH}; one run, a core each: "
            f"{measured_table.machine()}. Each tool by its own laws in its own space; SimuMax ships PCIe servers only: it "
            "has these.",
            "A candidate is one whose time was computed, or which was refused or bounded away; of ours "
            f"{ours['projected']:,} were projected with schedule, memory and topology, and nothing better was left out.",
            "Made by `PEERS=DIR pytest -m slow tests/benchmarks/test_peer_searches.py`.",
        ),
    )
    benchmark.extra_info |= {f"{name} candidates/s": rate for name, rate in rates.items()}
    assert ours["gap"] == 0
    if len(rates) == 1:
        pytest.skip("no checkout of another searcher: PEERS=DIR")
    assert rates["projector"] > max(rate for name, rate in rates.items() if name != "projector")
