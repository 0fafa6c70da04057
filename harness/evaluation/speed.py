"""Measures how long the project's own work takes on this machine: one warm projection, a cold suite, an import. Wall
times, each the median of a few repetitions; whoever reads them must know that they change from run to run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from projector.dataclass import dataclass

if TYPE_CHECKING:
    from projector.workload.workload import Workload

#: Packages that `import projector` must not load.
HEAVY = ("torch", "scipy", "matplotlib", "pandas")

PROJECTIONS, STARTS = 21, 3

IMPORT = f"""
import json, sys, time
began = time.perf_counter()
import projector
bare = time.perf_counter() - began
from projector import project
whole = time.perf_counter() - began
print(json.dumps([bare, whole, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of the project's own work. ``projection``: the same DeepSeek-V3 PP16 workload again; ``fresh_projection``:
    another sequence length each time, so that no kernel time is remembered; ``suite``: ``harness run`` of the file
    ``suite_name`` in mode simulate, from the start of the process to its end, with nothing remembered on disk;
    ``suite_again``: the same in the next process; ``import_bare``: ``import projector``; ``import_all``: with the
    projection behind it; ``heavy``: the packages of :data:`HEAVY` that the import loaded."""

    projection: float
    fresh_projection: float
    suite: float
    suite_again: float
    suite_name: str
    import_bare: float
    import_all: float
    heavy: tuple[str, ...]


def measure(suite: Path) -> Speed:
    """Measures projections, suites and imports, in about half a minute. ``suite``: an existing suite file."""
    imports = [json.loads(_python("-c", IMPORT)) for _ in range(STARTS)]
    projection, fresh = _projections()
    suites = [_twice(suite) for _ in range(STARTS)]
    return Speed(
        projection=projection,
        fresh_projection=fresh,
        suite=statistics.median(first for first, _ in suites),
        suite_again=statistics.median(again for _, again in suites),
        suite_name=suite.stem,
        import_bare=statistics.median(bare for bare, _, _ in imports),
        import_all=statistics.median(whole for _, whole, _ in imports),
        heavy=tuple(imports[0][2]),
    )


def _python(*arguments: str, **environment: str) -> str:
    """Returns the standard output of a new interpreter that finds this very package, wherever it is installed."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path, **environment}
    )
    return done.stdout


def _twice(suite: Path) -> tuple[float, float]:
    """Returns the seconds of a suite with nothing remembered on disk, and of the same suite again."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "harness", "run", str(suite), "--mode", "simulate", "--out", folder, "--no-plots", "--no-gate")
        first, again = (
            _seconds(lambda: _python(*words, PROJECTOR_CACHE=os.path.join(folder, "cache"))) for _ in range(2)
        )
    return first, again


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _projections() -> tuple[float, float]:
    from projector import project
    from projector.hardware import catalogue

    cluster = catalogue.default_cluster("h100_sxm")

    def seconds(workloads: Sequence[Workload]) -> float:
        return statistics.median([_seconds(lambda w=w: project(w, cluster)) for w in workloads])  # type: ignore[misc]

    known = _deepseek_v3(4096)
    project(known, cluster)
    return seconds([known] * PROJECTIONS), seconds([_deepseek_v3(4096 + 128 * i) for i in range(1, PROJECTIONS)])


def _deepseek_v3(seq_length: int) -> Workload:
    """Returns the published job's shape: 1,024 GPUs, 16 pipeline ranks, 64-way expert parallelism, 128 micro-batches."""
    from projector.workload import zoo
    from projector.workload.recipe import Recipe
    from projector.workload.workload import Workload

    recipe = Recipe(
        pp=16,
        ep=64,
        pipeline_model_parallel_layout="Et*4|(t*4|)*14tmL",
        micro_batch_size=1,
        global_batch_size=8192,
        seq_length=seq_length,
        precision="fp8",
        fp8_recipe="blockwise",
        data_parallel_sharding="optim",
        moe_token_dispatcher_type="flex",
        moe_flex_dispatcher_backend="deepep",
    )
    return Workload(model=zoo.load("deepseek_v3"), recipe=recipe, gpus=1024)
