"""Many configurations at once are what they are one by one."""

import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked import refusal
from workloads import workload

from harness.evidence import dataset
from projector import Projection, project, project_many
from projector.errors import InputError, Unsupported
from projector.frameworks.columns import Runs
from projector.hardware import catalogue
from projector.hardware.efficiency import of as efficiency_of
from projector.kernels.settings import DEFAULT
from projector.many import STATUSES, Many
from projector.memo import clear_caches
from projector.memory import columns
from projector.pipeline import names
from projector.step.batch import step_lower_bounds
from projector.step.cycle import Stages, stage_row
from projector.step.priced import priced
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

H100 = catalogue.default_cluster("h100_sxm")
RUNS = Path(__file__).parents[2] / "measured" / "runs"


SWITCHES: tuple[dict[str, Any], ...] = (
    *({},) * 6,
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 3},
    {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
    {"cpu_offloading_num_layers": 2, "pp": 1, "vpp": 1, "recompute_granularity": "none"},
    {"optimizer": "muon"},
    {"precision": "fp8"},
)


def layouts(number: int) -> list[Workload]:
    """Layouts of dense and expert models over all schedules; some do not divide, some do not fit, one has no layers."""
    draw = random.Random(11)
    models = {name: zoo.load(name) for name in ("llama3_8b", "llama3_70b", "qwen3_30b_a3b", "deepseek_v3")}
    found = [workload("deepseek_v3.2", 256, global_batch_size=256, seq_length=2048, document_lengths=(1024, 1024))]
    while len(found) < number:
        name, pp = draw.choice(list(models)), draw.choice((1, 2, 4, 8))
        dense = name.startswith("llama")
        recipe = Recipe(
            micro_batch_size=draw.choice((1, 2)), global_batch_size=draw.choice((128, 256, 2048)),
            seq_length=draw.choice((2048, 4096)), tp=draw.choice((1, 2, 4, 8)), pp=pp,
            vpp=draw.choice((1, 2)) if pp > 1 else 1, cp=draw.choice((1, 2)) if dense else 1,
            ep=1 if dense else draw.choice((8, 16)), sequence_parallel=True,
            pipeline_schedule=draw.choice((None, *names())),
            recompute_granularity=draw.choice(("none", "selective", "full")),
            data_parallel_sharding=draw.choice(("optim", "optim", "optim_grads_params", "no_shard")),
            overlap_grad_reduce=draw.choice((None, False, True)), overlap_param_gather=draw.choice((None, False, True)),
            overlap_moe_expert_parallel_comm=None if dense else draw.choice((None, True)),
            allow_uneven_pipeline_split=True,
        )  # fmt: skip
        framework = draw.choice(("megatron-lm", "megatron-lm", "torchtitan", "maxtext"))
        recipe = replace(recipe, **draw.choice(SWITCHES))
        found.append(Workload(model=models[name], recipe=recipe, gpus=256, framework=framework))
    return found


def tried(load: Workload) -> Projection | Exception:
    try:
        return project(load, H100)
    except (InputError, Unsupported) as error:
        return error


@pytest.fixture(scope="module")
def loads() -> list[Workload]:
    return layouts(200)


@pytest.fixture(scope="module")
def whole(loads: list[Workload]) -> Many:
    return project_many(loads, H100, best=None)


@pytest.fixture(scope="module")
def ones(loads: list[Workload]) -> list[Projection | Exception]:
    return [tried(load) for load in loads]


def test_every_row_is_what_project_says_of_it(loads: list[Workload], whole: Many, ones) -> None:
    many = whole
    assert len(many) == len(loads)
    assert set(many.status) == set(STATUSES)
    compared = 0
    for row, one in enumerate(ones):
        if isinstance(one, Exception):
            assert many.status[row] == ("invalid" if isinstance(one, InputError) else "unsupported")
            assert many.reason[row] == str(one)
            assert np.isnan(many.step_seconds[row])
            continue
        assert many.status[row] == ("ok" if one.memory.fits else "out-of-memory")
        if many.reason[row].startswith("at least"):  # a bound has said so before the order was made
            assert np.isnan(many.memory[row])
            assert float(many.reason[row].split()[2]) <= one.memory.required / 1e9 + 0.1
        else:
            assert many.memory[row] == pytest.approx(one.memory.allocated, rel=1e-9)
        if one.memory.fits:
            compared += 1
            assert many.reason[row] == ""
            assert many.step_seconds[row] == pytest.approx(one.step_seconds, rel=1e-9)
            assert many.tgs[row] == pytest.approx(one.tgs, rel=1e-9)
        else:
            assert "GiB of" in many.reason[row]
    assert compared > 20


def test_the_best_are_whole_projections_in_order(loads: list[Workload]) -> None:
    many = project_many(loads[:80], H100, best=5)
    assert [row for row, _ in many.best] == list(many.ranking[:5])
    speeds = [made.tgs for _, made in many.best]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] == pytest.approx(np.nanmax(many.tgs), rel=1e-9)


def test_no_step_is_shorter_than_its_bound(loads: list[Workload], ones) -> None:
    """By the bound that leaves rows out: of dense models and of experts, under every schedule."""
    efficiency, met, share = efficiency_of(H100.gpu), set(), []
    for load, one in zip(loads, ones, strict=True):
        if isinstance(one, Exception):
            continue
        made = priced(one.resolved, H100, efficiency, "simulate", DEFAULT)
        stages = Stages(*np.array([stage_row(time) for time in made.times]).T)
        least = step_lower_bounds(
            Runs.of([one.resolved]), {0: np.array([stages.forward, stages.inputs, stages.weight])}
        )
        share.append(float(least[0]) / one.step_seconds)
        met.add((load.model.moe is None, one.timeline.compiled.schedule.name))
    assert max(share) <= 1 + 1e-12
    assert np.median(share) > 0.8  # it says something
    assert {name for _, name in met} == set(names())
    assert {dense for dense, _ in met} == {False, True}


def test_the_collector_rests_for_a_batch_and_never_longer(loads: list[Workload], monkeypatch) -> None:
    seen = []

    def given() -> Iterator[Workload]:
        for load in loads[:3]:
            seen.append(gc.isenabled())
            yield load

    project_many(given(), H100, best=1)
    monkeypatch.setattr("projector.many.settle_many", lambda *_, **__: 1 // 0)
    refusal(project_many, loads[:1], H100, kind=ZeroDivisionError)
    monkeypatch.undo()
    assert gc.isenabled()
    assert all(seen)
    gc.disable()
    try:
        project_many(loads[:1], H100)
        assert not gc.isenabled()  # whose process it is decides
    finally:
        gc.enable()


def test_what_a_sweep_forgets_is_free_at_once(loads: list[Workload]) -> None:
    """Nothing of it refers to itself, so that a long sweep needs no search for circles."""
    project_many(loads[:20], H100, best=5)  # what is imported or read at a first call is not the sweep's
    clear_caches()
    gc.collect()
    gc.disable()
    try:
        project_many(loads[:20], H100, best=5)
        clear_caches()
        assert gc.collect() < 100  # 1,800 with a circle in each layer problem
    finally:
        gc.enable()


def test_order_and_company_change_nothing(loads: list[Workload]) -> None:
    few = loads[:60]
    there, back = project_many(few, H100, best=None), project_many(few[::-1], H100, best=None)
    assert back.status[::-1] == there.status
    assert np.allclose(back.step_seconds[::-1], there.step_seconds, rtol=1e-12, equal_nan=True)


def test_a_layer_is_built_once_for_all_layouts_that_take_its_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group of runs is begun, and split when half of it is built, where sizes say so before; layouts that recompute
    other modules share a group."""
    begun, done, model = list[int](), list[int](), zoo.load("llama3_8b")
    made = [
        Workload(model=model, gpus=64, recipe=Recipe(
            micro_batch_size=micro, global_batch_size=256, seq_length=4096, tp=tp, cp=cp, pp=pp, sequence_parallel=True,
            recompute_granularity=recompute))
        for tp in (1, 2, 4) for cp in (1, 2, 4) for micro in (1, 2) for pp in (1, 2)
        for recompute in ("none", "selective", "full")
    ]  # fmt: skip

    def folded(*given: Any) -> Any:
        begun.append(1)
        found = build(*given)
        done.append(1)
        return found

    build = columns._folded
    monkeypatch.setattr(columns, "_folded", folded)
    assert "ok" in project_many(made, H100).status
    assert len(begun) == len(done) <= 2 * 2 * 3  # tp alone or not, alone or in a pipeline, cp


@pytest.mark.skipif(not RUNS.is_dir(), reason="no measured runs in this checkout")
def test_layouts_of_measured_runs_are_in_company_what_they_are_alone(every: int) -> None:
    """Of all frameworks, in one call: what stands beside a layout changes nothing."""
    draw, loads, compared = random.Random(0), list[Workload](), 0
    for run in [run for run in dataset.read(RUNS) if not run.problem][:: max(1, every // 4)]:
        recipe = run.workload.recipe
        for _ in range(2):
            names = [name for name in ("tp", "cp", "ep", "pp", "vpp", "micro_batch_size") if draw.random() < 0.4]
            sizes = {name: max(1, getattr(recipe, name) * 2 // draw.choice((1, 4))) for name in names}
            loads.append(replace(run.workload, recipe=replace(recipe, **sizes)))
    many = project_many(loads, H100, best=None)
    for row, load in enumerate(loads):
        one = tried(load)
        if isinstance(one, Exception):
            assert many.reason[row] == str(one)
            continue
        assert np.isnan(many.memory[row]) or many.memory[row] == pytest.approx(one.memory.allocated, rel=1e-9), load
        if one.memory.fits:
            compared += 1
            assert many.step_seconds[row] == pytest.approx(one.step_seconds, rel=1e-11), load
    assert compared > 50


@pytest.mark.parametrize("schedule", [None, "zb_h1"])
def test_what_a_pipeline_does_is_asked_of_runs_that_have_one(schedule: str | None) -> None:
    """Of a run without stages its recipe says nothing: neither that messages run beside compute nor when weight gradients
    are computed."""
    recipe = Recipe(micro_batch_size=1, global_batch_size=256, seq_length=4096, tp=4, sequence_parallel=True)
    alone = replace(recipe, pipeline_schedule=schedule, overlap_p2p_comm=False)
    staged = [replace(recipe, pp=2, vpp=1), replace(recipe, pp=2, vpp=4), replace(recipe, pp=4, vpp=2)]
    model = zoo.load("llama3_8b")
    loads = [Workload(model=model, recipe=each, gpus=64) for each in (alone, *staged)]
    for order in (loads, loads[::-1]):
        found = project_many(order, H100, best=None)
        assert found.step_seconds == pytest.approx([project(load, H100).step_seconds for load in order], rel=1e-12)


@pytest.mark.parametrize("pairs", [
    [{"decoder_first_pipeline_num_layers": n, "pp": 4} for n in (2, 5, 8)],
    [{"num_distributed_optimizer_instances": n} for n in (1, 2, 4)],
    [{"recompute_granularity": "full", "recompute_num_layers": 3, "pp": pp} for pp in (1, 2, 4)],
    [{"data_parallel_sharding": "optim_grads_params", "fsdp_reshard_after_forward": True, "pp": pp} for pp in (1, 2)],
])  # fmt: skip
@pytest.mark.parametrize("framework", ["megatron-lm", "torchtitan"])
def test_layouts_that_differ_in_one_field_alone_are_told_apart(pairs: list[dict[str, Any]], framework: str) -> None:
    """Which layers a stage holds, among which ranks states are shared out, what is decided by whether there are stages."""
    given = {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096, "allow_uneven_pipeline_split": True}
    model = zoo.load("llama3_8b")
    loads = [Workload(model=model, recipe=Recipe(**given, **each), gpus=64, framework=framework) for each in pairs]
    found = project_many(loads, H100, best=None)
    for row, load in enumerate(loads):
        clear_caches()
        one = tried(load)
        if isinstance(one, Exception):
            assert found.reason[row] == str(one)
        elif one.memory.fits:
            assert found.step_seconds[row] == pytest.approx(one.step_seconds, rel=1e-12)
            assert found.memory[row] == pytest.approx(one.memory.allocated, rel=1e-12)


def test_values_of_another_type_spoil_no_other_row(loads: list[Workload]) -> None:
    right = next(load for load in loads if isinstance(one := tried(load), Projection) and one.memory.fits)
    values: tuple[Any, ...] = (0, -1, 2.0, True, "4", None, 10**9, [1])
    wrong = [replace(right, gpus=gpus) for gpus in values]
    for name in ("tp", "seq_length", "global_batch_size"):
        wrong += [replace(right, recipe=replace(right.recipe, **{name: value})) for value in values]
    found = project_many([right, *wrong, right], H100)
    assert found.status == ("ok", *["invalid"] * len(wrong), "ok")
    assert [str(tried(load)) for load in wrong] == list(found.reason[1:-1])


def test_nothing_in_is_nothing_out() -> None:
    many = project_many([], H100)
    assert len(many) == 0
    assert many.best == ()


def test_what_is_wrong_with_the_cluster_is_said_once(loads: list[Workload]) -> None:
    refusal(project_many, loads, replace(H100, gpus_per_node=0), match="gpus_per_node")
    refusal(project_many, loads, H100, mode="guess", match="mode")
    refusal(project_many, loads, H100, mode="benchmark", match="simulate")
