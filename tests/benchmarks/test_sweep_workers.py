"""A sweep on 1, 2 and 4 Dask workers of one machine: points a second and the speed-up."""

import os
import time
from pathlib import Path
from typing import Any

import measured_table
import pytest
import yaml
from asked import put

from projector.search.sweep import grid, run, store

distributed = pytest.importorskip("distributed", reason="Dask is not installed (the extra: sweep)")
WORKERS = (1, 2, 4)


def _grid(folder: Path, length: int, batches: int) -> grid.Grid:
    sizes = {"tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "micro_batch_size": [1, 2, 4, 8], "vpp": [1, 2, 4]}
    more = {"global_batch_size": [128 * i for i in range(1, batches + 1)], "recompute_granularity": ["none", "full"]}
    recipe = {**sizes, **more, "seq_length": length, "data_parallel_sharding": ["no_shard", "optim"]}
    file = folder / f"{length}.yaml"
    system = {"model": "llama3.1_8b", "system": ["h100", "mi300x"], "gpus": [64, 128]}
    return grid.read(put(file, yaml.safe_dump({"sweep": 1, **system, "recipe": recipe})))


def _seconds(made: grid.Grid, address: str, out: Path) -> float:
    kept, began = store.opened(out), time.perf_counter()
    assert run.run(made, kept, scheduler=address) == len(made)
    kept.close()
    return time.perf_counter() - began


def test_the_speed_up_of_workers(benchmark: Any, tmp_path: Path) -> None:
    load = os.getloadavg()[0]
    warm, made = _grid(tmp_path, 4096, 1), _grid(tmp_path, 8192, 6)

    def measured() -> dict[int, float]:
        found = {}
        for number in WORKERS:
            options = {"n_workers": number, "threads_per_worker": 1, "dashboard_address": None}
            with distributed.LocalCluster(**options, local_directory=str(tmp_path)) as cluster:
                _seconds(
                    warm, cluster.scheduler_address, tmp_path / f"warm-{number}.jsonl"
                )  # every worker has imported
                found[number] = _seconds(made, cluster.scheduler_address, tmp_path / f"{number}.jsonl")
        return found

    seconds = benchmark.pedantic(measured, rounds=1)
    one, cores = seconds[WORKERS[0]], os.cpu_count() or 1
    rows = [(f"{n}", f"{s:.1f}", f"{len(made) / s:,.0f}", f"{one / s:.2f}") for n, s in seconds.items()]
    measured_table.write(
        "dask.md",
        "A sweep on Dask workers",
        ("workers", "seconds", "points/s", "speed-up"),
        rows,
        (
            f"{len(made):,} points of Llama 3.1 8B, one thread a worker, scheduler and workers on one machine: "
            f"{measured_table.machine()}. More workers than cores gain nothing, and scheduler and writing share them: a "
            f"speed-up beyond {cores} is not real here, and shows what else the machine was doing meanwhile.",
            f"Load average of the machine before it began: {load:.1f}. What else runs takes from the speed-up.",
            "Made by `pytest -m slow tests/benchmarks/test_sweep_workers.py`.",
        ),
    )
    benchmark.extra_info |= {f"{n} workers, points/s": len(made) / s for n, s in seconds.items()}
    rows_of = [sorted((tmp_path / f"{n}.jsonl").read_text().splitlines()) for n in WORKERS]
    assert all(each == rows_of[0] for each in rows_of)
