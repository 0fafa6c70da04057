"""What communication takes from compute: published counts of compute units, memory traffic of its steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.collectives.footprint import Footprint
from projector.collectives.model import KINDS, Pricing
from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import Cluster, GroupShape
from projector.operators.types import Collective

H100, MI300X = catalogue.cluster("h100_sxm"), catalogue.cluster("mi300x")
GROUPS = {"tp": GroupShape(8, 8), "pair": GroupShape(2, 2), "dp": GroupShape(16, 1), "one": GroupShape(1, 1)}


def taken(cluster: Cluster, kind: str, group: str, nbytes: float = 1e9, transport: str = "nccl") -> Footprint:
    op = Collective(name="x", kind=kind, group=group, bytes=nbytes, transport=transport)
    return Pricing(GROUPS, cluster).footprint(op)


def test_units_are_the_published_ones_and_follow_the_rate() -> None:
    assert taken(H100, "all_gather", "tp").units == pytest.approx(24)
    assert taken(H100, "all_reduce", "tp").units == 16  # NVLS
    assert taken(MI300X, "reduce_scatter", "tp").units == pytest.approx(56)
    assert taken(MI300X, "all_reduce", "pair").units == pytest.approx(56 / 7)
    assert 1 <= taken(H100, "all_gather", "dp").units < 4  # one adapter feeds a few channels
    assert taken(H100, "all_to_all", "tp", transport="deepep").units == 20
    assert taken(MI300X, "all_to_all", "tp", transport="deepep").units == 64


def test_traffic_counts_reads_and_writes() -> None:
    assert taken(H100, "all_gather", "tp").traffic == pytest.approx(3 * 7 / 8 * 1e9)
    assert taken(H100, "reduce_scatter", "tp").traffic == pytest.approx(3 * 7 / 8 * 1e9)
    assert taken(MI300X, "all_reduce", "tp").traffic == pytest.approx(6 * 7 / 8 * 1e9)
    assert taken(H100, "all_reduce", "tp").traffic == pytest.approx(2e9)
    assert taken(H100, "send_recv", "pair").traffic == pytest.approx(
        4e9
    )  # read, into a buffer, out of it, to its place


@given(st.sampled_from([H100, MI300X]), st.sampled_from(KINDS), st.sampled_from(sorted(GROUPS)), st.floats(1.0, 1e11))
def test_shares_are_shares(cluster: Cluster, kind: str, group: str, nbytes: float) -> None:
    op = Collective(name="x", kind=kind, group=group, bytes=nbytes)
    pricing = Pricing(GROUPS, cluster)
    found, seconds = pricing.footprint(op), pricing.seconds(op)
    assert 0.0 <= found.unit_share(cluster.gpu) <= 0.25
    assert 0.0 <= found.bandwidth_share(cluster.gpu, seconds) <= 0.5
    assert (found.units > 0) == (GROUPS[group].size > 1)


def test_an_unknown_group_is_named() -> None:
    with pytest.raises(InputError, match="tp"):
        taken(H100, "all_reduce", "tpp")
