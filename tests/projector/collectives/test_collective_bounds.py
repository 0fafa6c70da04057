"""Bounds of the collective model, on random groups and sizes of every fabric."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from projector.collectives.bounds import bandwidth_bound
from projector.collectives.file_terms import NAMES
from projector.collectives.model import KINDS, costs, seconds_of
from projector.hardware import catalogue
from projector.hardware.types import Cluster, GroupShape

CLUSTERS = [catalogue.cluster(name) for name in catalogue.cluster_names()]
NVLINK = [cluster for cluster in CLUSTERS if cluster.intra.topology == "switch"]
H100 = catalogue.cluster("h100_sxm")

clusters = st.sampled_from(CLUSTERS)
kinds = st.sampled_from(KINDS)
nbytes = st.floats(1.0, 1e12)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Cluster, GroupShape]:
    """A group on a cluster: even, with a part-filled last node, or with any number of ranks in each."""
    cluster = draw(clusters)
    if draw(st.booleans()):
        cluster = replace(cluster, outer=cluster.inter, inter=replace(cluster.inter, size=4 * cluster.gpus_per_node))
    ranks = st.integers(1, cluster.gpus_per_node)
    if draw(st.booleans()):
        counts = tuple(draw(st.lists(ranks, min_size=1, max_size=40)))
        return cluster, GroupShape(sum(counts), max(1, sum(counts) // len(counts)), counts=counts)
    local = draw(ranks)
    return cluster, GroupShape(local * draw(st.integers(1, 300)) + draw(st.integers(0, local - 1)), local)


@st.composite
def with_terms(draw: st.DrawFn) -> tuple[Cluster, GroupShape]:
    """The same, on a cluster for which a hardware file states terms of its own."""
    cluster, shape = draw(shapes())
    ranges = {
        "phases.overlap": st.floats(0.0, 1.0),
        "phases.warmup_bytes": st.floats(1e3, 1e9),
        "adapter.setup_us": st.floats(0.0, 1e4),
        "adapter.warmup_bytes": st.floats(1e3, 1e9),
        "reduction.flops": st.floats(1e9, 1e15),
    }
    assert set(ranges) == set(NAMES)
    terms = {name: draw(values) for name, values in ranges.items() if draw(st.booleans())}
    return replace(cluster, overrides=terms), shape


everywhere = st.one_of(shapes(), with_terms())


@given(everywhere, kinds, nbytes)
def test_never_faster_than_the_cut_allows(where: tuple[Cluster, GroupShape], kind: str, size: float) -> None:
    cluster, shape = where
    time = float(seconds_of(kind, size, shape, cluster))
    assert time >= bandwidth_bound(kind, size, shape, cluster) * (1 - 1e-12)
    assert (time > 0) == (shape.size > 1)


@given(everywhere, kinds, nbytes, st.floats(1.0, 100.0))
def test_grows_with_the_bytes(where: tuple[Cluster, GroupShape], kind: str, size: float, factor: float) -> None:
    cluster, shape = where
    small, large = seconds_of(kind, [size, size * factor], shape, cluster)
    assert small <= large * (1 + 1e-12)


@given(shapes(), kinds, nbytes, st.floats(1.0, 100.0))
def test_never_grows_faster_than_the_bytes(
    where: tuple[Cluster, GroupShape], kind: str, size: float, factor: float
) -> None:
    cluster, shape = where
    small, large = seconds_of(kind, [size, size * factor], shape, cluster)
    assert large <= small * factor * (1 + 1e-12)


@given(everywhere, kinds, nbytes)
def test_continuous(where: tuple[Cluster, GroupShape], kind: str, size: float) -> None:
    cluster, shape = where
    here, beside = seconds_of(kind, [size, size * (1 + 1e-9)], shape, cluster)
    assert beside == pytest.approx(here, rel=1e-6)


@given(shapes(), kinds)
def test_a_switch_of_algorithm_changes_the_slope_by_less_than_a_factor_of_two(
    where: tuple[Cluster, GroupShape], kind: str
) -> None:
    """At every switch of algorithm or protocol, twice the bytes cost at most twice the time, and never less."""
    cluster, shape = where
    sizes = np.geomspace(1.0, 1e12, 241)
    candidates = costs(kind, shape, cluster)
    assume(candidates)
    winner = np.argmin([[cost.seconds(size) for cost in candidates] for size in sizes], axis=1)
    times = seconds_of(kind, sizes, shape, cluster)
    ratio = times[1:] / times[:-1]
    switched = winner[1:] != winner[:-1]
    assert np.all(ratio[switched] <= 2.0)
    assert np.all(ratio >= 1.0 - 1e-12)


@given(clusters, kinds, nbytes)
def test_nothing_to_do_costs_nothing(cluster: Cluster, kind: str, size: float) -> None:
    assert float(seconds_of(kind, size, GroupShape(1, 1), cluster)) == 0.0
    assert float(seconds_of(kind, 0.0, GroupShape(8, 1), cluster)) == 0.0


@given(everywhere, kinds, st.lists(nbytes, min_size=1, max_size=5))
def test_arrays_and_numbers_agree(where: tuple[Cluster, GroupShape], kind: str, sizes: list[float]) -> None:
    cluster, shape = where
    together = seconds_of(kind, np.array(sizes), shape, cluster)
    assert together.shape == (len(sizes),)
    assert list(together) == [float(seconds_of(kind, size, shape, cluster)) for size in sizes]


@given(kinds, nbytes, st.sampled_from([1, 2, 4, 8]), st.integers(2, 64))
def test_a_faster_network_is_never_slower(kind: str, size: float, local: int, nodes: int) -> None:
    shape = GroupShape(local * nodes, local)
    faster = replace(H100, inter=replace(H100.inter, bandwidth=2 * H100.inter.bandwidth))
    assert float(seconds_of(kind, size, shape, faster)) <= float(seconds_of(kind, size, shape, H100))


@given(clusters, kinds, nbytes, st.integers(1, 64), st.data())
def test_the_same_group_on_more_nodes_is_never_faster(
    cluster: Cluster, kind: str, size: float, nodes: int, data: st.DataObject
) -> None:
    """The same ranks on fewer nodes, where links inside a node outrun adapters.

    They do not between two ranks of a mesh, which share one link, nor over a PCIe bridge. PAT serves gathers of one
    rank a node only, as in NCCL.
    """
    assume(cluster.intra.topology != "pcie")
    fitting = [n for n in (2, 4, 8, 16, 32, 64) if n <= cluster.gpus_per_node]
    assume(fitting)
    per_node = data.draw(st.sampled_from(fitting))
    spread = data.draw(st.sampled_from([n for n in (1, 2, 4, 8, 16, 32) if n < per_node]))
    assume(per_node > 2 or cluster.intra.topology != "mesh")
    assume(spread > 1 or kind not in ("all_gather", "reduce_scatter"))
    packed = float(seconds_of(kind, size, GroupShape(per_node * nodes, per_node), cluster))
    assert packed <= float(seconds_of(kind, size, GroupShape(per_node * nodes, spread), cluster)) * (1 + 1e-9)


@given(st.sampled_from(NVLINK), kinds, nbytes, st.integers(1, 8), st.integers(1, 8))
def test_an_uneven_group_is_never_faster_than_an_even_one(
    cluster: Cluster, kind: str, size: float, most: int, fewest: int
) -> None:
    assume((most + fewest) % 2 == 0 and max(most, fewest) <= cluster.gpus_per_node)
    ranks = most + fewest
    uneven = GroupShape(ranks, ranks // 2, counts=(most, fewest))
    assert float(seconds_of(kind, size, GroupShape(ranks, ranks // 2), cluster)) <= float(
        seconds_of(kind, size, uneven, cluster)
    ) * (1 + 1e-9)
