"""Which groups lie inside a fast domain: the default order as a special case, shapes of groups, bounds, refusals."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector.collectives.placement import groups, hop, ranks_per_node, shape_of
from projector.hardware import catalogue
from projector.hardware.types import GroupShape
from projector.many import project_many
from projector.projection import project
from projector.search.branch_and_bound import BranchAndBound
from projector.search.objective import Objective
from projector.search.space import space, with_fields
from projector.search.tree import Tree
from projector.workload import zoo
from projector.workload.fast_domain import inside, placements, written
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_recipe
from projector.workload.structure import to_mapping
from projector.workload.validate import problems
from projector.workload.workload import Workload
from tests.searched import every_layout

H100 = catalogue.cluster("h100")
GPT = zoo.load("gpt3_175b")


def work(**recipe: object) -> Workload:
    stated = {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 2048, "sequence_parallel": True, **recipe}
    stated = {"tp": 4, "pp": 8, "data_parallel_sharding": "optim", **stated}
    return Workload(model=GPT, recipe=Recipe(**stated), gpus=256)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sizes", "same"), tabled("collectives", "usual_orders"))
def test_the_order_that_ranks_have_anyway_changes_nothing(sizes: dict[str, int], same: str) -> None:
    plain = work(**sizes)
    stated = replace(plain, recipe=replace(plain.recipe, fast_domain=same))
    one, other = (groups(each.recipe, each.gpus, H100) for each in (plain, stated))
    dense = ("tp", "cp", "dp", "dp_shard", "pp")
    assert {name: other[name] for name in dense} == {name: one[name] for name in dense}
    assert project(stated, H100).step_seconds == project(plain, H100).step_seconds


def test_shapes_of_groups() -> None:
    """n ranks of a group in blocks of k: n/k domains, k in each, whatever the order of the others."""
    recipe = work(tp=4, pp=8).recipe  # dp 8
    for text, near in (("tp2.dp2.pp2", (2, 2, 2)), ("dp8", (1, 8, 1)), ("pp8", (1, 1, 8)), ("tp4.pp2", (4, 1, 2))):
        made = groups(replace(recipe, fast_domain=text), 256, H100)
        found = tuple(made[name] for name in ("tp", "dp", "pp"))
        assert found == tuple(GroupShape(n, k) for n, k in zip((4, 8, 8), near, strict=True)), text
    half = groups(replace(recipe, fast_domain="pp4"), 256, H100)  # a domain of 8 has two such blocks, neighbours in tp
    assert half["tp"] == GroupShape(4, 2)
    refusal(groups, replace(recipe, fast_domain="tp3"), 256, H100, match="fast_domain")


def test_messages_between_stages() -> None:
    """Two of four neighbours share a domain of pp2; every pair does where the pipeline lies inside."""
    stage, node = 32, 8
    domain = inside("tp4.pp2")
    assert [hop(i, i + 1, stage, node, None, domain) for i in range(4)] == ["pp_node", "pp_pod", "pp_node", "pp_pod"]
    assert {hop(i, i + 1, stage, node, None, inside("pp8")) for i in range(7)} == {"pp_node"}
    assert {hop(i, i + 1, stage, node) for i in range(7)} == {"pp_pod"}


def test_who_has_the_fast_domain_communicates_faster() -> None:
    parts = {d: project(work(fast_domain=d), H100).breakdown for d in ("tp4.dp2", "dp8", "tp4.pp2", "pp8")}
    assert parts["tp4.dp2"]["tp_s"] < parts["dp8"]["tp_s"]
    assert parts["dp8"]["dp_s"] < parts["tp4.pp2"]["dp_s"]
    assert parts["tp4.pp2"]["pp_s"] < parts["tp4.dp2"]["pp_s"]
    rack = catalogue.cluster("gb200")
    wide = project(replace(work(tp=4), gpus=288, recipe=replace(work().recipe, pp=8, global_batch_size=288)), rack)
    assert wide.step_seconds > 0


def test_text_and_mapping() -> None:
    assert inside("tp4.cp2.dp8") == (4, 1, 2, 8, 1)
    assert inside("tp24") == (24, 1, 1, 1, 1)
    assert inside("tp:2 tp2:4") == (2, 4, 1, 1, 1)
    assert inside(written({"tp": 2, "tp2": 4, "dp": 3})) == (2, 4, 1, 3, 1)
    mapping = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 8, "fast_domain": {"tp": 4, "dp": 2}}
    recipe, wrong = parse_recipe(mapping, "x.yaml")
    assert not wrong
    assert recipe.domain == (4, 1, 1, 2, 1)
    assert parse_recipe(to_mapping(recipe), "x.yaml") == (recipe, [])
    for nvs in (4, 8, 64, 72, 576):
        found = placements(nvs)
        assert len(set(found)) == len(found)
        assert {math.prod(inside(each) or ()) for each in found} == {nvs}


@pytest.mark.parametrize("text", ["tp3", "dp16", "cp2", "tp4.tp4", "xp2", "tp0", "", "tp4,dp2", "tp-2"])
def test_what_does_not_fit_is_refused(text: str) -> None:
    assert [p.key for p in problems(work(fast_domain=text))] == ["recipe.fast_domain"]
    refusal(project, work(fast_domain=text), H100)


def test_a_block_larger_than_the_domain_is_refused_before_anything_runs() -> None:
    refusal(project, work(fast_domain="tp4.dp4"), H100, match="divides the 8 of a domain")


def test_it_is_searched() -> None:
    made = space(work(), H100, only={"tp": (4,), "cp": (1,), "pp": (8,)}, vary={"fast_domain": ("any",)})
    offered = {option["fast_domain"] for option in made.layer_options}
    assert {None, "tp4.dp2", "dp8", "pp8"} <= offered


@pytest.mark.parametrize(
    ("fixed", "vary"),
    [
        ({"tp": (4,), "pp": (4,), "cp": (1,)}, {"fast_domain": ("any",)}),
        (
            {"tp": (2,), "pp": (2,), "cp": (1,)},
            {"tensor_parallel_algorithm": ("1d", "summa"), "tp2": (1, 2, 4), "summa_panels": (None, 8)},
        ),
    ],
)
def test_a_search_finds_what_brute_force_finds(fixed: dict[str, Any], vary: dict[str, Any]) -> None:
    held = {
        "recompute_granularity": ("none",),
        "overlap_grad_reduce": (True,),
        "micro_batch_size": (1,),
        "vpp": (1,),
        "sequence_parallel": (True,),
        "data_parallel_sharding": ("optim",),
    }
    stated = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048, "data_parallel_sharding": "optim"}
    base = Workload(model=zoo.load("gpt3_6.7b"), recipe=Recipe(**stated), gpus=32, framework="analytic")  # type: ignore[arg-type]
    made = space(base, H100, only={**fixed, **held}, vary=vary)
    every = every_layout(Tree(made))
    times = project_many([with_fields(made.base, each) for each in every], H100, best=None)
    solver = BranchAndBound(Tree(made), H100, Objective(), top=1)
    solver.run()
    assert 1 / solver.leaders[0].value == pytest.approx(np.nanmax(times.tgs), rel=1e-9)
    seen = {(each.get("fast_domain"), each.get("tp2"), each.get("summa_panels")) for each in every}
    assert len(seen) > 4


# Group shapes against groups enumerated from Megatron's rank order.

H100_SXM = catalogue.cluster("h100_sxm")
GB200 = catalogue.cluster("gb200")


def recipe(**sizes: Any) -> Recipe:
    return Recipe(micro_batch_size=1, global_batch_size=1, seq_length=1, **sizes)


def enumerate_groups(sizes: dict[str, int], varying: set[str]) -> list[list[int]]:
    """Ranks of every group in which ``varying`` dimensions change; ``sizes`` lists dimensions from the fastest."""
    strides, stride = {}, 1
    for name, size in sizes.items():
        strides[name], stride = stride, stride * size
    fixed = [name for name in sizes if name not in varying]
    found = []
    for place in itertools.product(*(range(sizes[name]) for name in fixed)):
        base = sum(strides[name] * i for name, i in zip(fixed, place, strict=True))
        moving = [name for name in sizes if name in varying]
        steps = itertools.product(*(range(sizes[name]) for name in moving))
        found.append([base + sum(strides[n] * i for n, i in zip(moving, step, strict=True)) for step in steps])
    return found


def expected(found: list[list[int]], node: int) -> tuple[int, ...]:
    size = len(found[0])
    spread = [tuple(sorted(Counter(rank // node for rank in ranks).values(), reverse=True)) for ranks in found]
    worst = max(spread, key=lambda counts: (len(counts), -counts[-1], counts[0]))
    return worst if size > 1 else (1,)


def spread(shape: GroupShape) -> tuple[int, ...]:
    """Ranks in each node, fullest first."""
    if shape.counts:
        return shape.counts
    return (*(shape.most,) * (shape.nodes - 1), shape.fewest)


small = st.sampled_from([1, 2, 3, 4, 8])


@given(tp=small, cp=small, dp=small, pp=small, node=st.sampled_from([1, 4, 6, 8, 16]))
def test_dense_groups_match_the_rank_order(tp: int, cp: int, dp: int, pp: int, node: int) -> None:
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    cluster = catalogue.default_cluster("h100_sxm", gpus_per_node=node)
    found = groups(recipe(tp=tp, cp=cp, pp=pp), tp * cp * dp * pp, cluster)
    for key, varying in {"tp": {"tp"}, "cp": {"cp"}, "dp": {"cp", "dp"}, "pp": {"pp"}}.items():
        assert spread(found[key]) == expected(enumerate_groups(sizes, varying), node), key


@given(etp=small, ep=small, edp=small, pp=small)
def test_expert_groups_match_the_rank_order(etp: int, ep: int, edp: int, pp: int) -> None:
    sizes = {"etp": etp, "ep": ep, "edp": edp, "pp": pp}
    found = groups(recipe(etp=etp, ep=ep, pp=pp), etp * ep * edp * pp, H100_SXM)
    for key, varying in {"etp": {"etp"}, "ep": {"ep"}, "edp": {"edp"}, "tp_ep": {"etp", "ep"}}.items():
        assert spread(found[key]) == expected(enumerate_groups(sizes, varying), 8), key


def test_hybrid_sharding_splits_the_gradient_group() -> None:
    found = groups(recipe(data_parallel_shard_size=8), 64, H100_SXM)
    assert found["dp_shard"] == GroupShape(8, 8)
    assert found["dp_replicate"] == GroupShape(8, 1)
    found = groups(recipe(ep=8, num_distributed_optimizer_instances=2), 64, H100_SXM)
    assert found["dp_shard"] == GroupShape(32, 8)
    assert found["edp_shard"] == GroupShape(4, 1)
    assert found["edp_replicate"] == GroupShape(2, 1)


def test_an_nvlink_domain_is_filled_evenly() -> None:
    assert ranks_per_node(256, GB200) == 64
    assert ranks_per_node(72, GB200) == 72
    assert ranks_per_node(144, GB200) == 72
    assert ranks_per_node(32, GB200) == 72
    assert groups(recipe(ep=64), 256, GB200)["ep"] == GroupShape(64, 64)
    assert groups(recipe(tp=4), 256, GB200)["dp"] == GroupShape(64, 16)


def test_a_group_that_straddles_nodes_unevenly_keeps_its_counts() -> None:
    # ranks 6..11 of groups of six on nodes of eight: two in one node, four in the next
    assert shape_of(1, 6, 24, 8) == GroupShape(6, 3, counts=(4, 2))
    assert (shape_of(1, 6, 24, 8).most, shape_of(1, 6, 24, 8).fewest) == (4, 2)


def test_pods_are_counted_where_the_network_has_a_third_level() -> None:
    pods = replace(H100_SXM, inter=replace(H100_SXM.inter, size=16), outer=H100_SXM.inter)
    found = groups(recipe(tp=2, pp=4, ep=8), 64, pods)
    assert {key: found[key].pods for key in ("tp", "dp", "pp", "world")} == {"tp": 1, "dp": 1, "pp": 4, "world": 4}
    assert groups(recipe(tp=2, pp=4, ep=8), 64, H100_SXM)["world"].pods is None
