"""Speed of the pipeline evaluator, as ratios against a naive event loop timed in the same run."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest

from projector import pipeline
from projector.pipeline.compiler import compile_schedule

PP, M = 16, 64
NAIVE = Path(__file__).resolve().parents[1] / "projector" / "pipeline" / "naive_pipeline.py"


def naive():
    spec = importlib.util.spec_from_file_location("naive_pipeline_of_benchmarks", NAIVE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.simulate


def best(work, repeats=5):
    """Seconds of the fastest of ``repeats`` runs: the one least disturbed by whatever else the machine does."""
    durations = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begin)
    return min(durations)


@pytest.fixture(scope="module")
def case():
    compiled = pipeline.compile("zb_h1", PP, 1, M)
    assert compiled.size == 3 * PP * M
    vectors = np.random.default_rng(0).random((3, 1000, PP)) + 0.5
    simulate = naive()
    one = [vector[0].tolist() for vector in vectors]
    slow = best(lambda: simulate(compiled.schedule, *one))
    pipeline.evaluate(compiled, *one)
    return compiled, vectors, one, slow


def test_one_evaluation(case):
    compiled, _, one, slow = case
    fast = best(lambda: pipeline.evaluate(compiled, *one).makespan, 20)
    assert slow / fast > 5, f"{slow * 1e3:.2f} ms naive, {fast * 1e3:.3f} ms"  # about 15 when written


def test_one_evaluation_with_messages(case):
    compiled, _, one, slow = case
    fast = best(lambda: pipeline.evaluate(compiled, *one, 0.01).makespan, 20)
    assert slow / fast > 3, f"{slow * 1e3:.2f} ms naive, {fast * 1e3:.3f} ms"  # about 9 when written


def test_a_batch(case):
    compiled, vectors, _, slow = case
    each = best(lambda: pipeline.evaluate(compiled, *vectors).makespan, 3) / vectors.shape[1]
    assert slow / each > 100, f"{slow * 1e3:.2f} ms naive, {each * 1e6:.1f} us each"  # about 500 when written


def test_generation_and_compilation(case):
    _, _, _, slow = case
    build = best(lambda: compile_schedule(pipeline.build("zb_h1", PP, 1, M)))
    assert slow / build > 0.7, f"{slow * 1e3:.2f} ms naive, {build * 1e3:.2f} ms"  # about 2.5 when written


def test_replay_of_memory(case):
    compiled, _, one, slow = case
    fast = best(lambda: pipeline.peak(compiled, *one), 20)
    assert slow / fast > 10, f"{slow * 1e3:.2f} ms naive, {fast * 1e6:.0f} us"  # about 35 when written


@pytest.mark.benchmark(group="pipeline")
def test_evaluate_benchmark(benchmark, case):
    compiled, _, one, _ = case
    benchmark(lambda: pipeline.evaluate(compiled, *one).makespan)


@pytest.mark.benchmark(group="pipeline")
def test_compile_benchmark(benchmark):
    benchmark(lambda: compile_schedule(pipeline.build("interleaved", PP, 4, M)))


def test_partial_groups_cost_no_search():
    whole = best(lambda: compile_schedule(pipeline.build("interleaved", 8, 8, 48)))
    partial = best(lambda: compile_schedule(pipeline.build("interleaved", 8, 8, 49)))
    assert partial < 6 * whole, f"{partial * 1e3:.1f} ms against {whole * 1e3:.1f} ms"  # about 2.5 when written
