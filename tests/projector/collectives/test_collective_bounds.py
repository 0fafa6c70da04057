"""Bounds of the collective model, on random groups and sizes of every fabric."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tabled import tabled

from projector.collectives.bounds import bandwidth_bound
from projector.collectives.constants import constants
from projector.collectives.file_terms import NAMES
from projector.collectives.model import KINDS, costs, seconds, seconds_of
from projector.hardware import catalogue
from projector.hardware.types import Cluster, GroupShape
from projector.operators.types import Collective

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


@given(clusters, nbytes, st.data())
def test_a_node_more_is_never_faster(cluster: Cluster, size: float, data: st.DataObject) -> None:
    """Except for an exchange over the one bridge of a PCIe host: of more nodes less of it crosses that bridge."""
    local = data.draw(st.integers(1, cluster.gpus_per_node))
    for kind in KINDS:
        if kind == "all_to_all" and cluster.intra.topology == "pcie":
            continue
        times = [float(seconds_of(kind, size, GroupShape(local * n, local), cluster)) for n in (1, 2, 3, 4, 8, 9, 64)]
        assert all(more >= fewer * (1 - 1e-9) for fewer, more in pairwise(times)), kind


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


# DeepEP-like kernels: two legs side by side, deduplication, and the published figures that follow from them.

H800 = catalogue.cluster("h800")
MI355X = catalogue.cluster("mi355x")
TOKEN = 7168 * (1 + 4 / 128)  # one fp8 row with its scales


def priced(
    cluster: Cluster,
    shape: GroupShape,
    nbytes: float,
    nodes_bytes: float | None = None,
    transport: str = "deepep",
    rows: float = 0.0,
) -> float:
    op = Collective(
        name="d", kind="all_to_all", group="ep", bytes=nbytes, transport=transport, nodes_bytes=nodes_bytes, rows=rows
    )
    return seconds(op, {"ep": shape}, cluster)


def test_the_longer_leg_counts_and_deduplication_shortens_one() -> None:
    shape, share = GroupShape(32, 8), constants(H100)
    assert priced(H100, shape, 1e9, 0.75e9) == priced(H100, shape, 1e9)
    assert priced(H100, shape, 1e9) == pytest.approx(0.75e9 / (50e9 * share["link.dispatch.inter"]), rel=0.01)
    links = 7 / 8 * 1e9 / (450e9 * share["link.dispatch.intra"])
    assert priced(H100, shape, 1e9, 1e3) == pytest.approx(links, rel=0.05)
    assert priced(H100, shape, 1e9, 0.3e9) < priced(H100, shape, 1e9, 0.3e9, transport="nccl")


@pytest.mark.parametrize(
    ("nodes", "reached", "ranks", "published"),
    # distinct nodes and ranks of 8 draws among 256 experts on (at most) 4 nodes
    [(2, 1.99, 6.5, 43e9), (4, 3.62, 7.2, 58e9), (8, 3.63, 7.6, 51e9)],
)
def test_logical_bandwidth_between_nodes(nodes: int, reached: float, ranks: float, published: float) -> None:
    """DeepEP README, 4,096 tokens on H800: with two nodes NVLink is the longer leg, with more the adapters."""
    logical = 4096 * reached * TOKEN
    leaves = logical * (nodes - 1) / nodes
    time = priced(H800, GroupShape(8 * nodes, 8), 4096 * ranks * TOKEN, leaves)
    assert logical / time == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize(("ranks", "us"), [(16, 118), (64, 173), (128, 192), (256, 194)])
def test_low_latency_dispatch(ranks: int, us: float) -> None:
    """DeepEP README: 128 tokens a rank, top-8, every copy by its own message."""
    time = priced(H800, GroupShape(ranks, 8), 128 * 8 * TOKEN, transport="deepep_low_latency")
    assert time == pytest.approx(us * 1e-6, rel=0.05)


# GB/s of logical bytes by ranks: rows of 7392 bytes (fp8 and scales), of 14336, and those on their way back.
HYBRID = tabled("collectives", "hybridep")


@pytest.mark.parametrize("ranks", HYBRID)
def test_short_rows_of_hybridep_cost_more_than_their_bytes_and_more_ranks_cost_more(ranks: int) -> None:
    """DeepEP@94a9f8f docs/README_Hybrid-EP.md: 4,096 tokens, top-8 of 8 experts a rank, GB200, 32 SMs, kernels alone."""
    gb200, experts = catalogue.cluster("gb200"), 8 * ranks
    rows = 4096 * ranks * (1 - math.comb(experts - 8, 8) / math.comb(experts, 8))
    for width, published in zip((7392, 14336, 14336), HYBRID[ranks], strict=True):
        time = priced(gb200, GroupShape(ranks, ranks), rows * width, transport="hybridep", rows=rows)
        assert rows * width / time == pytest.approx(published * 1e9, rel=0.08)
    short, wide = (
        priced(gb200, GroupShape(ranks, ranks), rows * width, transport="hybridep", rows=rows)
        for width in (2048, 14336)
    )
    assert short > wide * 2048 / 14336


@given(st.sampled_from([H100, H800, MI355X]), st.integers(1, 32), st.floats(1.0, 1e10), st.floats(1.0, 10.0))
def test_monotone_and_never_below_its_links(cluster: Cluster, nodes: int, nbytes: float, factor: float) -> None:
    shape = GroupShape(8 * nodes, 8)
    for transport in ("deepep", "hybridep", "deepep_low_latency"):
        time = priced(cluster, shape, nbytes, transport=transport)
        assert time <= priced(cluster, shape, nbytes * factor, transport=transport)
        assert time >= nbytes * (nodes - 1) / nodes / cluster.inter.bandwidth
        assert time >= (nbytes * 7 / 8 / cluster.intra.bandwidth if nodes == 1 else 0.0)


def test_few_multiprocessors_bound_deepep_on_fast_links_only() -> None:
    """DeepEP README, 8 B200: 643 to 675 GB/s of logical bytes with 24 SMs, 726 to 740 with 64."""
    rates = {}
    for sms in (24, 64):
        b200 = replace(catalogue.cluster("b200"), overrides={"units.dispatch": sms})
        rates[sms] = 1e9 / priced(b200, GroupShape(8, 8), 1e9)
    assert rates[24] == pytest.approx(659e9, rel=0.1)
    assert rates[64] == pytest.approx(733e9, rel=0.1)
    few = replace(H800, overrides={"units.dispatch": 12})
    assert priced(few, GroupShape(8, 8), 1e9) == priced(H800, GroupShape(8, 8), 1e9)


def test_a_node_with_few_ranks_waits_longest() -> None:
    even, uneven = GroupShape(12, 6), GroupShape(12, 6, counts=(10, 2))
    assert priced(H100, uneven, 1e9) > 1.5 * priced(H100, even, 1e9)
