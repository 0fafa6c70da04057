"""The search is exact: the winner of brute force, no bound above a time, nothing proposed that would be refused."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asked import refusal

from projector import project, project_many
from projector.cli.inputs import read_case
from projector.cli.options import selection
from projector.cli.parser import parse
from projector.cli.start_files import write
from projector.errors import InputError
from projector.hardware import catalogue
from projector.intake import detect
from projector.kernels.settings import DEFAULT
from projector.search import bounds
from projector.search.bounds import BlockBounds, Query
from projector.search.branch_and_bound import BranchAndBound
from projector.search.found import Limits, _front, search
from projector.search.nodes import Candidate, Node
from projector.search.objective import Objective
from projector.search.space import space, with_fields
from projector.search.tree import Tree
from projector.search.unfit import _nearest, unfit
from tests.searched import H100, SEEDS, base, brute, every_layout, small


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_are_those_of_brute_force(seed: int) -> None:
    made, cluster = small(seed)
    every, many = brute(seed)
    solver = BranchAndBound(Tree(made), cluster, Objective(), top=3)
    solver.run()
    groups: dict[Any, float] = {}
    for fields, tgs in zip(every, many.tgs.tolist(), strict=True):
        if tgs == tgs:
            key = solver._group(fields)
            groups[key] = max(groups.get(key, 0.0), tgs)
    wanted = sorted(groups.values(), reverse=True)[:3]
    assert [1 / hit.value for hit in solver.leaders[:3]] == pytest.approx(wanted, rel=1e-9)
    assert solver.counts.enumerated == len(every)
    assert solver.counts.projected <= sum(status == "ok" for status in many.status)
    assert solver.gap == 0


@pytest.mark.parametrize("seed", [*SEEDS, None])
def test_weights_with_one_key_need_the_same(seed: int | None) -> None:
    """A part of a space takes what another found: each node alone, with each of its options once a step. Workspaces and
    buffers beside weights differ by little, which a search forgives (``BETTER``)."""
    few = {"tp": (1, 2), "pp": (1, 2), "cp": (1,), "micro_batch_size": (1, 2), "recompute_granularity": ("none",)}
    few_batches = base("llama3_8b", 16, "pytorch", batch=16)  # gradients stay whole between several alone
    made, cluster = (space(few_batches, H100, only=few), H100) if seed is None else small(seed)
    solver, shares = BranchAndBound(Tree(made), cluster, Objective()), dict[Any, list[float]]()
    nodes = [
        Node(branch.shape, branch.pipe, ((layer, (step,)),))
        for branch in solver.tree.branches()
        for layer, steps in zip(branch.layers, branch.step_options, strict=True)
        for step in steps
    ]
    loads = [solver._first_workload(node) for node in nodes]
    for node, share in zip(nodes, bounds.weights(loads, cluster), strict=True):
        assert isinstance(share, float)
        shares.setdefault(solver._weight_key(node), []).append(share)
    assert 1 < len(shares) < len(nodes)
    assert all(max(alike) <= 1.01 * min(alike) for alike in shares.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_above_what_it_bounds(seed: int) -> None:
    """Seconds and bytes: without recompute, and with what reduces gradients least beside compute."""
    made, cluster = small(seed)
    every, many = brute(seed)
    chosen = [i for i in range(0, len(every), 5) if not np.isnan(many.step_seconds[i])]
    loads = [with_fields(made.base, every[i]) for i in chosen]
    bare = {"recompute_granularity": "none", "recompute_method": None, "recompute_num_layers": None}
    bare |= {"recompute_modules": None, "overlap_grad_reduce": False, "overlap_param_gather": False}
    least = [with_fields(load, bare) for load in loads]
    seconds = np.maximum(*(bounds.seconds(each, cluster, BranchAndBound.settings) for each in (least, loads)))
    assert (seconds <= many.step_seconds[chosen] * (1 + 1e-12)).all()
    needs, shares = bounds.needs(loads, cluster), bounds.weights(least, cluster)
    for needed, share, memory in zip(needs, shares, many.memory[chosen], strict=True):
        assert not isinstance(needed, str)
        assert needed.allocated == pytest.approx(memory, rel=1e-9)
        assert not isinstance(share, str)
        assert share <= needed.share * (1 + 1e-12)


@pytest.mark.parametrize("seed", SEEDS[2:8])
def test_blocks_of_one_pipeline_bound_all_others(seed: int) -> None:
    """What is known of the blocks of a family, whoever asked for them, is never above the priced stages of any of its
    pipelines, and near them."""
    made, cluster = small(seed)
    tree, asked = Tree(made), list[Query]()
    for branch in tree.branches():
        for layer, once in list(zip(branch.layers, branch.step_options, strict=True))[::3]:
            load = with_fields(made.base, tree.fields(branch.shape, branch.pipe, layer, once[0]))
            asked.append((branch.pipe, layer, layer, load))
    one_by_one, together = BlockBounds(cluster, {}), BlockBounds(cluster, {})
    together.price(asked, BranchAndBound.settings)
    least = together.bounds(asked)
    exact = bounds.seconds([load for *_, load in asked], cluster, BranchAndBound.settings)
    shares = [one / other for one, other in zip(least, exact, strict=True) if one is not None]
    assert len(shares) > len(asked) / 2
    assert max(shares) <= 1 + 1e-12
    assert np.mean(shares) > 0.6
    for each, found in zip(asked, least, strict=True):
        if one_by_one.bounds([each]) == [None]:
            one_by_one.price([each], BranchAndBound.settings)
        assert one_by_one.bounds([each]) == [found and pytest.approx(found, rel=1e-12)]


def test_more_memory_more_time_and_the_limits() -> None:
    made, cluster = small(22)
    whole = search(made, cluster, Objective(), Limits(top=3))
    tight = search(made, cluster, Objective(), Limits(top=3, margin=0.3), explained=False)
    assert whole.best[0].projection.tgs >= (tight.best[0].projection.tgs if tight.best else 0)
    usable = 0.7 * cluster.gpu.usable_memory_bytes
    assert all(each.projection.memory.required <= usable for each in tight.best)
    assert all(one.seconds < other.seconds for one, other in zip(whole.front, whole.front[1:], strict=False))
    assert all(one.memory > other.memory for one, other in zip(whole.front, whole.front[1:], strict=False))
    assert whole.best[0].alike
    assert {each.resource for each in whole.binding} >= {"compute", "memory bandwidth", "memory capacity", "host"}
    assert all(each.gain >= -1e-9 for each in whole.binding)


def test_the_safest_bet_is_the_fastest_at_the_slow_end() -> None:
    made, cluster = small(22)
    found = search(made, cluster, Objective(), Limits(top=5), explained=False)
    assert found.surest(lambda each: 1.3 * each.projection.step_seconds) is found.best[0]
    wide = {found.best[0].projection.tgs: 2.0}
    slow = lambda each: wide.get(each.projection.tgs, 1.1) * each.projection.step_seconds  # noqa: E731
    assert found.surest(slow) is next(each for each in found.best if each.projection.tgs not in wide)


def test_what_is_on_the_front_is_beaten_by_nothing_in_time_money_and_memory() -> None:
    load = base("llama3_8b", 16, "megatron-lm")
    hits = [
        Candidate({"gpus": gpus}, 0.0, seconds, memory)
        for gpus in (8, 16)
        for seconds in (1.0, 1.5, 2.5)
        for memory in (1.0, 2.0)
    ]
    front = _front(hits, load)
    cost = lambda hit: (hit.seconds, hit.seconds * hit.fields["gpus"], hit.memory)  # noqa: E731
    beaten = lambda hit: any(all(a <= b for a, b in zip(cost(o), cost(hit), strict=True)) for o in hits if o is not hit)  # noqa: E731
    assert set(map(id, front)) == {id(hit) for hit in hits if not beaten(hit)}


def test_a_search_that_is_stopped_says_how_far_off_it_can_be() -> None:
    made, cluster = small(7)
    whole = search(made, cluster, Objective(), Limits(top=1), explained=False)
    few = search(made, cluster, Objective(), Limits(top=1, projections=1), explained=False)
    assert few.counts.projected <= whole.counts.projected
    assert few.best[0].value * (1 - few.gap) <= whole.best[0].value * (1 + 1e-12)
    soon = search(made, cluster, Objective(), Limits(seconds=1e-9), explained=False)
    assert soon.gap is None
    assert soon.best[0].projection.memory.order == 0
    assert soon.best[0].value * (1 - soon.most) <= whole.best[0].value <= soon.best[0].value * (1 + 1e-12)
    long = search(made, cluster, Objective(), Limits(top=1, seconds=600), explained=False)
    assert (long.gap, long.best[0].fields) == (0, whole.best[0].fields)


@pytest.mark.parametrize("name", ["step", "memory", "energy"])
def test_an_objective_is_as_small_as_it_can_be(name: str) -> None:
    made, cluster = small(22)
    every, many = brute(22)
    objective = Objective(name=name, watts=700.0)
    found = search(made, cluster, objective, Limits(top=1), explained=False)
    values = [
        objective.value(with_fields(made.base, fields), seconds, memory)
        for fields, seconds, memory in zip(every, many.step_seconds.tolist(), many.memory.tolist(), strict=True)
        if seconds == seconds
    ]
    least = min(each.value for each in (found.best[0], found.close) if each is not None)
    assert least == pytest.approx(min(values), rel=1e-9)


def test_an_empty_space_says_what_empties_it() -> None:
    made = space(base("llama3_8b", 8), H100, only={"tp": (3,)})
    refusal(search, made, H100, Objective(), Limits(), match="combinations")
    with pytest.raises(InputError, match="some layout of 1000 GPUs, such as 1000"):
        search(space(base("llama3_8b", 1000, batch=1024), H100), H100, Objective(), Limits())
    refusal(space, base("llama3_8b", 8), H100, only={"moe_router_dtype": ("fp32",)}, match="searched")


def test_what_no_model_covers_is_not_called_out_of_memory() -> None:
    found = search(space(base("gemma2_9b", 8, "maxtext"), H100), H100, Objective(), Limits(top=1))
    assert found.counts.unsupported == found.counts.enumerated > 0
    assert found.counts.out_of_memory == 0
    assert {each.expected for each in unfit(found, H100, 0.0, DEFAULT).problems} == {"soft caps on attention scores"}


def test_a_space_that_memory_empties_names_the_nearest_and_what_would_fit() -> None:
    """The nearest, against every configuration of the space."""
    held = {"tp": (4, 8), "pp": (1,), "cp": (1,), "micro_batch_size": (1,), "recompute_granularity": ("none",)}
    made = space(base("llama3_70b", 8), H100, only=held)
    found = search(made, H100, Objective(), Limits())
    assert not found.best
    assert found.gap == 0
    said = str(unfit(found, H100, 0.0, DEFAULT))
    tree = Tree(made)
    leaves = [
        with_fields(made.base, tree.fields(each.shape, each.pipe, layer, once[0]))
        for each in tree.branches()
        for layer, once in zip(each.layers, each.step_options, strict=True)
    ]
    least = min(
        (each for each in bounds.needs(leaves, H100) if not isinstance(each, str)), key=lambda need: need.required
    )
    assert least.share > 1
    assert f"{found.counts.enumerated:,} combinations" in said
    assert f"{least.required / 2**30:.1f} GiB, {(least.required - least.usable) / 2**30:.1f} GiB too much" in said
    assert "in host memory" in said


def test_a_tree_says_of_its_sizes_whether_a_step_has_several_micro_batches() -> None:
    start = base("llama3.1_8b", 8, batch=8)
    tree = Tree(space(start, H100))
    assert list(tree.branches())
    several = [with_fields(start, shape).num_microbatches > 1 for shape in tree.shapes]
    assert tree.accumulates == several
    assert {*several} == {True, False}


@pytest.mark.parametrize(
    ("model", "framework", "points"),
    [("deepseek_v3_16b", "megatron-lm", 1), ("llama3.1_8b", "primus", 1), ("deepseek_v3_16b", "torchtitan", 1)]
    + [
        pytest.param(model, framework, 5, marks=pytest.mark.night)
        for model in ("llama3.1_8b", "deepseek_v3_16b")
        for framework in ("megatron-lm", "primus", "torchtitan")
    ],
)
def test_what_is_written_reads_back(points: int, framework: str, model: str, tmp_path) -> None:
    """The files of each framework, at points of the whole space, offload and numbers among them: the writer holds that
    each is the same projection."""
    options = parse(selection(), ["--model", model, "--gpu", "b200", "--gpus", "32", "--framework", framework])
    asked = read_case(options)
    names = {"megatron-lm": "megatron.yaml", "primus": "primus.yaml", "torchtitan": "torchtitan.toml"}
    b200 = catalogue.default_cluster("b200")
    made = space(
        base(model, 32, framework),
        b200,
        only={"recompute_num_layers": (None, 2), "micro_batch_size": (1, 2), "tp": (1, 4), "pp": (1, 4), "vpp": (1,)},
        vary={"precision": (), "offload": ()},
    )
    draw, tree = random.Random(framework + model), Tree(made)
    branches = list(tree.branches())
    for i in range(points):
        branch = draw.choice(branches)
        at = draw.randrange(len(branch.layers))
        fields = tree.fields(branch.shape, branch.pipe, branch.layers[at], draw.choice(branch.step_options[at]))
        load = with_fields(made.base, fields)
        files = [str(tmp_path / str(i) / name) for name in ("case.yaml", names[framework])]
        assert list(map(str, write(files, asked, load, options))) == files
        read = detect.load(files[0]).workload()
        assert (read.recipe, read.gpus, read.framework) == (load.recipe, load.gpus, load.framework)


@pytest.mark.parametrize("gib", [40.0, 60.0, 79.1])
def test_what_fits_stands_before_what_is_too_close_to_tell(gib: float) -> None:
    cluster = replace(H100, gpu=replace(H100.gpu, usable_memory_bytes=gib * 2**30))
    start = base("llama3.1_8b", 8)
    made = space(start, cluster, only={"tp": (1, 2), "cp": (1,), "pp": (1,), "recompute_granularity": ("none",)})
    found = search(made, cluster, Objective(), Limits(top=4), explained=False)
    orders = [each.projection.memory.order for each in found.best]
    assert orders == sorted(orders)
    every = [with_fields(made.base, fields) for fields in every_layout(Tree(made))]
    many = project_many(every, cluster, best=None)
    fast = sorted((-many.tgs[i], i) for i in range(len(many)) if many.status[i] == "ok")
    plans = (project(every[i], cluster) for _, i in fast)
    clear = next((each for each in plans if each.memory.order == 0), None)
    assert clear is None or found.best[0].projection.tgs == pytest.approx(clear.tgs, rel=1e-9)
    if found.close is not None:
        assert found.close.projection.memory.order == 1
        assert found.close.projection.tgs == pytest.approx(-fast[0][0], rel=1e-9)
        assert found.close.projection.tgs > found.best[0].projection.tgs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stated", "field", "kinds"),
    [
        (("llama3_70b", 256, 512, 8192), "data_parallel_sharding", ("optim", "optim_grads_params")),
        (("qwen3_30b_a3b", 16, 256, 4096), "recompute_granularity", ("none",)),
    ],
)
def test_more_to_choose_from_never_hides_a_layout_that_one_kind_finds(
    stated: tuple[str, int, int, int], field: str, kinds: tuple[str, ...]
) -> None:
    """Good layouts of FSDP and of ZeRO-1, with and without recompute, are no neighbours: each kind is looked for from a
    start of its own."""
    here, (model, gpus, batch, length) = catalogue.cluster("h100_sxm"), stated

    def best(**fix: tuple[object, ...]) -> float:
        made = space(base(model, gpus, batch=batch, seq_length=length), here, only=fix)
        return search(made, here, Objective(), Limits(seconds=4), explained=False).best[0].projection.tgs

    every = best()
    for kind in kinds:
        assert every >= best(**{field: (kind,)}) * (1 - 1e-9)


def test_something_is_found_soon_whatever_kinds_of_sharding_are_asked_for() -> None:
    here, stated = catalogue.cluster("h100_sxm"), base("llama3.1_8b", 16, "deepspeed", seq_length=8192)
    for levels in (("no_shard", "optim_grads"), ("optim",), ("optim", "optim_grads_params")):
        made = space(stated, here, only={"data_parallel_sharding": levels})
        found = search(made, here, Objective(), Limits(seconds=0.1), explained=False)
        assert found.best[0].fields["data_parallel_sharding"] in levels


def test_the_nearest_is_looked_for_where_most_ranks_share_weights(monkeypatch) -> None:
    few = {"micro_batch_size": (1,), "recompute_granularity": ("full",), "data_parallel_sharding": ("no_shard",)}
    made = space(base("llama3_70b", 16), H100, only=few)
    whole = _nearest(made, H100)
    monkeypatch.setattr("projector.search.unfit._WEIGHED", 16)
    part = _nearest(made, H100)
    assert whole
    assert part
    assert part.looked
    assert whole.need.share <= part.need.share < 1.3 * whole.need.share
