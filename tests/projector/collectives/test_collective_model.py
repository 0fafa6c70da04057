"""The collective model: bounds, monotony and closed forms on every fabric; its error on measured collectives."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.collectives.constants import constants, sections
from projector.collectives.model import KINDS, Pricing, bandwidth_bound, best, costs, seconds, seconds_of
from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.types import Cluster, Efficiency, GroupShape, Parameter
from projector.operators.types import Collective

CLUSTERS = [catalogue.cluster(name) for name in catalogue.cluster_names()]
H100 = catalogue.cluster("h100_sxm")
A100 = catalogue.cluster("a100_sxm_80gb")
MI300X = catalogue.cluster("mi300x")

clusters = st.sampled_from(CLUSTERS)
kinds = st.sampled_from(KINDS)
nbytes = st.floats(1.0, 1e12)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Cluster, GroupShape]:
    cluster = draw(clusters)
    local = draw(st.integers(1, cluster.gpus_per_node))
    return cluster, GroupShape(local * draw(st.integers(1, 300)), local)


@given(shapes(), kinds, nbytes)
def test_never_faster_than_the_cut_allows(where: tuple[Cluster, GroupShape], kind: str, size: float) -> None:
    cluster, shape = where
    time = float(seconds_of(kind, size, shape, cluster))
    assert time >= bandwidth_bound(kind, size, shape, cluster) * (1 - 1e-12)
    assert (time > 0) == (shape.size > 1)


@given(shapes(), kinds, nbytes, st.floats(1.0, 100.0))
def test_grows_with_the_bytes_but_not_faster_than_they_do(
    where: tuple[Cluster, GroupShape], kind: str, size: float, factor: float
) -> None:
    cluster, shape = where
    small, large = seconds_of(kind, [size, size * factor], shape, cluster)
    assert small <= large <= small * factor * (1 + 1e-12)


@given(shapes(), kinds, nbytes)
def test_continuous(where: tuple[Cluster, GroupShape], kind: str, size: float) -> None:
    cluster, shape = where
    here, beside = seconds_of(kind, [size, size * (1 + 1e-9)], shape, cluster)
    assert beside == pytest.approx(here, rel=1e-8)


@given(clusters, kinds, nbytes)
def test_nothing_to_do_costs_nothing(cluster: Cluster, kind: str, size: float) -> None:
    assert float(seconds_of(kind, size, GroupShape(1, 1), cluster)) == 0.0
    assert float(seconds_of(kind, 0.0, GroupShape(8, 1), cluster)) == 0.0


@given(shapes(), kinds, st.lists(nbytes, min_size=1, max_size=5))
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


@pytest.mark.parametrize("n", [2, 4, 8])
def test_large_ring_closed_form_behind_a_switch(n: int) -> None:
    size = 16e9
    rate = A100.intra.bandwidth * constants(A100)["link.intra"]
    shape = GroupShape(n, n)
    assert float(seconds_of("all_reduce", size, shape, A100)) == pytest.approx(2 * (n - 1) / n * size / rate, rel=5e-3)
    for kind in ("all_gather", "reduce_scatter"):
        assert float(seconds_of(kind, size, shape, A100)) == pytest.approx((n - 1) / n * size / rate, rel=5e-3)


def test_ring_latency_and_volume_are_exact() -> None:
    ring = {c.algorithm: c for c in costs("all_reduce", GroupShape(32, 8), H100)}["ring.simple"]
    share = constants(H100)
    hops = 2 * 3 * 2.7e-6 * share["hop.inter.simple"] + (2 * 31 - 6) * 0.6e-6 * share["hop.intra.simple"]
    assert ring.latency == pytest.approx((share["collective.launch_us"] + share["base_us.ring.simple"]) * 1e-6 + hops)
    rate = min(450e9 * share["link.intra"], 8 * 50e9 * share["link.inter"])
    assert ring.per_byte == pytest.approx(2 * 31 / 32 / rate)


@pytest.mark.parametrize(("nodes", "depth"), [(2, 1), (4, 2), (5, 3), (64, 6)])
def test_tree_latency_is_logarithmic_and_exact(nodes: int, depth: int) -> None:
    tree = {c.algorithm: c for c in costs("all_reduce", GroupShape(8 * nodes, 8), H100)}["tree.simple"]
    share = constants(H100)
    inside = 7 * 0.6e-6 * share["hop.intra.simple"]
    between = depth * 2.7e-6 * share["hop.inter.simple"] * share["hop.tree.simple"]
    base = (share["collective.launch_us"] + share["base_us.tree.simple"]) * 1e-6
    assert tree.latency == pytest.approx(base + 2 * (inside + between))


@pytest.mark.parametrize("g", [2, 3, 5, 8])
def test_a_mesh_group_uses_its_own_links_only(g: int) -> None:
    size = 16e9
    link = 64e9 * constants(MI300X)["link.intra.all_gather"]
    shape = GroupShape(g, g)
    assert float(seconds_of("all_gather", size, shape, MI300X)) == pytest.approx(size / g / link, rel=5e-3)
    assert float(seconds_of("send_recv", size, shape, MI300X)) == pytest.approx(size / (64e9 * 0.745), rel=5e-3)


def test_one_rank_a_node_is_bound_by_its_adapter() -> None:
    size = 4e9
    expected = 15 / 16 * size / (50e9 * constants(H100)["link.inter"])
    assert float(seconds_of("all_gather", size, GroupShape(16, 1), H100)) == pytest.approx(expected, rel=0.01)


def test_the_algorithm_follows_size_and_fabric() -> None:
    intra = GroupShape(8, 8)
    assert best("all_reduce", 1e3, intra, H100) == "ring.ll"
    assert best("all_reduce", 1e9, intra, H100) == "nvls"
    assert best("all_reduce", 1e9, intra, A100) == "ring.simple"
    assert best("all_reduce", 1e3, intra, MI300X) == "one_shot.ll"
    assert best("all_reduce", 1e4, GroupShape(512, 8), A100).startswith("tree")
    assert best("all_gather", 1e7, GroupShape(256, 1), H100) == "pat.simple"
    assert best("all_to_all", 1e6, GroupShape(64, 8), H100) == "pxn"
    assert best("all_reduce", 1e9, GroupShape(1, 1), H100) == ""


def test_efficiency_and_cluster_override_constants() -> None:
    shape, size = GroupShape(8, 8), 16e9
    half = Efficiency(gpu="a100", parameters={"link.intra": Parameter(0.3875, "fitted", "test")})
    base = float(seconds_of("all_gather", size, shape, A100))
    assert float(seconds_of("all_gather", size, shape, A100, half)) == pytest.approx(2 * base, rel=0.01)
    user = replace(A100, overrides={"link.intra": 0.775, "overhead_us.all_gather": 1e6})
    assert float(seconds_of("all_gather", size, shape, user, half)) == pytest.approx(1 + base, rel=0.01)
    kind = replace(A100, overrides={"link.intra.all_gather": 0.3875})
    assert float(seconds_of("all_gather", size, shape, kind)) == pytest.approx(2 * base, rel=0.01)
    greedy = replace(A100, overrides={"link.intra": 7.0})
    assert float(seconds_of("all_gather", size, shape, greedy)) >= bandwidth_bound("all_gather", size, shape, greedy)


def test_token_dispatch_overlaps_its_legs_and_honours_deduplication() -> None:
    groups = {"ep": GroupShape(32, 8), "dp": GroupShape(1, 1)}

    def dispatch(nodes_bytes: float | None, transport: str = "deepep") -> float:
        op = Collective(
            name="d", kind="all_to_all", group="ep", bytes=1e9, transport=transport, nodes_bytes=nodes_bytes
        )
        return seconds(op, groups, H100)

    share = constants(H100)
    assert dispatch(0.75e9) == dispatch(None)
    assert dispatch(0.75e9) == pytest.approx(0.75e9 / (50e9 * share["link.dispatch.inter"]), rel=0.01)
    links = 7 / 8 * 1e9 / (450e9 * share["link.dispatch.intra"])
    assert dispatch(1e3) == pytest.approx(links, rel=0.05)
    assert dispatch(0.3e9) < dispatch(0.3e9, transport="nccl")


def test_pricing_equals_the_function() -> None:
    groups = {"tp": GroupShape(8, 8), "dp": GroupShape(64, 8), "ep": GroupShape(1, 1)}
    pricing = Pricing(groups, MI300X)
    for group in groups:
        for kind in KINDS:
            op = Collective(name="x", kind=kind, group=group, bytes=3e7)
            assert pricing.seconds(op) == pytest.approx(float(seconds_of(kind, 3e7, groups[group], MI300X)))
            assert pricing.seconds(op) == pricing.seconds(op) == seconds(op, groups, MI300X)


def test_unknown_kind_and_group_are_named() -> None:
    with pytest.raises(InputError, match="all_reduce"):
        seconds_of("allreduce", 1.0, GroupShape(8, 8), H100)
    op = Collective(name="x", kind="all_reduce", group="tpp", bytes=1.0)
    with pytest.raises(InputError, match="tp"):
        seconds(op, {"tp": GroupShape(8, 8)}, H100)


def test_every_constant_has_its_provenance() -> None:
    for entries in sections().values():
        for name, parameter in entries.items():
            assert parameter.kind in ("datasheet", "derived", "published", "fitted", "assumed"), name
            assert len(parameter.source) > 5, name
            assert parameter.value <= 1.0 or not name.startswith(("link.", "rate.")), name
    assert set(sections()["nccl"]) <= set(sections()["rccl"])


def measured(shared: Path) -> list[tuple[str, float, float]]:
    """(fabric, bytes, signed error) of every timed collective of the measured set that a library ran."""
    kinds_of = {"sendrecv": "send_recv"}
    found = []
    for row in csv.DictReader((shared / "kernels" / "collectives.csv").open(encoding="utf-8")):
        kind = kinds_of.get(row["op"], row["op"])
        doubtful = any(word in row["notes"] for word in ("threshold", "MSCCL")) or "NVLS off" in row["algorithm"]
        if kind not in KINDS or doubtful or not (row["time_us"] and row["message_bytes"]):
            continue
        gpus, nodes = int(row["num_gpus"]), int(row["num_nodes"])
        cloud = nodes > 1 and "EFA" in row["interconnect"]
        cluster = catalogue.cluster("b200_efa") if cloud else catalogue.cluster(row["gpu"])
        size = float(row["message_bytes"])
        time = float(seconds_of(kind, size, GroupShape(gpus, gpus // nodes), cluster))
        fabric = f"{cluster.name}, {'one node' if nodes == 1 else 'nodes'}"
        found.append((fabric, size, time / (float(row["time_us"]) * 1e-6) - 1.0))
    return found


def test_error_on_measured_collectives(shared: Path) -> None:
    rows = measured(shared)
    assert len(rows) > 120
    large = [abs(error) for _, size, error in rows if size >= 2**20]
    small = [abs(error) for _, size, error in rows if size < 2**20]
    assert median(large) < 0.05
    assert median(small) < 0.25
    for fabric in {name for name, _, _ in rows}:
        errors = [abs(error) for name, size, error in rows if name == fabric and size >= 2**20]
        assert median(errors) < 0.12, fabric
