"""DeepEP-like kernels: two legs side by side, deduplication, and the published figures that follow from them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.collectives.constants import constants
from projector.collectives.model import seconds
from projector.hardware import catalogue
from projector.hardware.types import Cluster, GroupShape
from projector.operators.types import Collective

H100 = catalogue.cluster("h100_sxm")
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
HYBRID = {
    8: (713.98, 764.03, 737.13),
    16: (650.48, 706.95, 666.26),
    24: (577.96, 665.97, 639.80),
    32: (538.86, 642.23, 605.15),
    36: (489.27, 632.31, 596.99),
}


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
