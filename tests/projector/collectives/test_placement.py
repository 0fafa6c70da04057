"""Group shapes against groups enumerated from Megatron's rank order."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.collectives.placement import groups, ranks_per_node, shape_of
from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import GroupShape

H100 = catalogue.cluster("h100_sxm")
GB200 = catalogue.cluster("gb200")


def recipe(**sizes: Any) -> Any:
    base = dict.fromkeys(("tp", "tp2", "pp", "cp", "ep", "etp"), 1)
    none = {"data_parallel_shard_size": None, "num_distributed_optimizer_instances": None, "domain": None}
    return SimpleNamespace(**{**base, **none, **sizes})


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
    found = groups(recipe(etp=etp, ep=ep, pp=pp), etp * ep * edp * pp, H100)
    for key, varying in {"etp": {"etp"}, "ep": {"ep"}, "edp": {"edp"}, "tp_ep": {"etp", "ep"}}.items():
        assert spread(found[key]) == expected(enumerate_groups(sizes, varying), 8), key


def test_a_usual_moe_run() -> None:
    found = groups(recipe(tp=2, pp=4, ep=8), 64, H100)
    assert found["tp"] == GroupShape(2, 2)
    assert found["dp"] == GroupShape(8, 4)
    assert found["ep"] == GroupShape(8, 8)
    assert found["edp"] == GroupShape(2, 1)
    assert found["pp"] == GroupShape(4, 1)
    assert found["world"] == GroupShape(64, 8)


def test_neighbouring_stages_of_a_small_run_share_a_node() -> None:
    assert groups(recipe(tp=2, pp=4), 8, H100)["pp"] == GroupShape(4, 4)
    assert groups(recipe(tp=2, pp=4), 16, H100)["pp"] == GroupShape(4, 2)


def test_hybrid_sharding_splits_the_gradient_group() -> None:
    found = groups(recipe(data_parallel_shard_size=8), 64, H100)
    assert found["dp_shard"] == GroupShape(8, 8)
    assert found["dp_replicate"] == GroupShape(8, 1)
    found = groups(recipe(ep=8, num_distributed_optimizer_instances=2), 64, H100)
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


def test_sizes_that_do_not_divide_are_all_reported() -> None:
    with pytest.raises(InputError) as caught:
        groups(recipe(tp=3, ep=5), 64, H100)
    assert len(caught.value.problems) == 2
    with pytest.raises(InputError, match="data_parallel_shard_size"):
        groups(recipe(data_parallel_shard_size=3), 64, H100)
    with pytest.raises(InputError, match="at least 1"):
        groups(recipe(tp=0), 64, H100)


def test_the_widest_group_of_a_kind_counts() -> None:
    # {0,1,2}, {3,4,5}, {6,7,8}, … on nodes of 8: the third group crosses a boundary.
    assert shape_of(1, 3, 24, 8) == GroupShape(3, 2)


def test_a_group_that_straddles_nodes_unevenly_keeps_its_counts() -> None:
    # ranks 6..11 of groups of six on nodes of eight: two in one node, four in the next
    assert shape_of(1, 6, 24, 8) == GroupShape(6, 3, counts=(4, 2))
    assert (shape_of(1, 6, 24, 8).most, shape_of(1, 6, 24, 8).fewest) == (4, 2)


def test_pods_are_counted_where_the_network_has_a_third_level() -> None:
    pods = replace(H100, inter=replace(H100.inter, size=16), outer=H100.inter)
    found = groups(recipe(tp=2, pp=4, ep=8), 64, pods)
    assert {key: found[key].pods for key in ("tp", "dp", "pp", "world")} == {"tp": 1, "dp": 1, "pp": 4, "world": 4}
    assert groups(recipe(tp=2, pp=4, ep=8), 64, H100)["world"].pods is None
