"""The whole projection: a bubble, launches, what is inferred of a run and what is not, a light import."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from projector.hardware import catalogue
from projector.projection import project
from tests.workloads import sharded as workload

H100 = catalogue.default_cluster("h100_sxm")


def test_a_pipeline_has_its_bubble() -> None:
    """Four equal stages and m micro-batches wait (pp − 1)/(m + pp − 1) of the makespan, up to the ends' extra work."""
    p = project(workload("llama3_70b", gpus=32, tp=8, pp=4, global_batch_size=16, sequence_parallel=True), H100)
    assert p.breakdown["bubble_s"] / p.step_seconds == pytest.approx(3 / 19, abs=0.05)
    interleaved = project(
        workload("llama3_70b", gpus=32, tp=8, pp=4, vpp=5, global_batch_size=16, sequence_parallel=True), H100
    )
    assert interleaved.breakdown["bubble_s"] < p.breakdown["bubble_s"] / 2


def test_small_micro_batches_of_experts_are_bound_by_the_host() -> None:
    # the copy of a mask to the device is no launch
    graphed = {"cuda_graph_scope": ("full_iteration",), "create_attention_mask_in_dataloader": False}
    case = {"gpus": 8, "ep": 8, "seq_length": 512, "moe_token_dispatcher_type": "alltoall"}
    eager, graphs = (project(workload("qwen3_30b_a3b", **case, **more), H100) for more in ({}, graphed))
    assert eager.breakdown["host_s"] > 0.2 * eager.step_seconds
    assert graphs.breakdown["host_s"] == pytest.approx(0.0, abs=1e-9)
    assert graphs.step_seconds < eager.step_seconds


def test_a_plan_runs_as_it_stands() -> None:
    """What nobody stated is the framework's default: a configuration that does not fit is said not to."""
    load = workload("llama3_70b", gpus=64, tp=4, pp=2, seq_length=8192, recompute_granularity=None)
    p = project(load, H100)
    assert p.resolved.workload.recipe.recompute_granularity == "none"
    assert not p.memory.fits
    assert not any("recompute" in item for item in p.assumed)


@pytest.mark.parametrize(("beyond", "inferred"), [(-0.1, False), (0.5, False), (0.95, False), (1.05, True)])
def test_less_than_the_error_of_the_memory_model_says_nothing_of_recompute(beyond: float, inferred: bool) -> None:
    """A run whose plan is too large by ``beyond`` times the tolerance."""
    load = workload("llama3_70b", gpus=64, tp=4, pp=2, seq_length=8192, recompute_granularity=None)
    need = project(load, H100).memory
    usable = need.required / math.exp(beyond * need.tolerance)
    cluster = replace(H100, gpu=replace(H100.gpu, usable_memory_bytes=usable, memory_bytes=1.1 * usable))
    p = project(load, cluster, published=True)
    said = [item for item in p.assumed if "recompute" in item]
    assert p.resolved.workload.recipe.recompute_granularity == ("full" if inferred else "none")
    assert any("does not fit without" in item for item in said) == inferred
    assert any("of the memory model" in item for item in said) == (0 < beyond < 1)


def test_the_import_is_light() -> None:
    code = (
        "import sys, projector; heavy = {'torch', 'scipy', 'matplotlib', 'pandas', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy; from projector import project;"
        "heavy = {'torch', 'scipy', 'matplotlib', 'pandas'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_command_reads_no_reader_of_files_that_it_is_not_given() -> None:
    code = (
        "import sys; from projector.__main__ import main;"
        "assert main('performance --model llama3.1_8b --gpu h100 --gpus 8 --tp 2 --mbs 1 --gbs 64'.split()) == 0;"
        "idle = {'tempfile', 'html', 'numpy.ma', 'projector.intake.detect'} & set(sys.modules);"
        "assert not idle, idle"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
