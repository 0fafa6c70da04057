"""The collective model: closed forms, selection and overrides."""

import math
from dataclasses import replace

import pytest
from asked import refusal
from tabled import tabled

from projector.collectives.constants import constants
from projector.collectives.model import KINDS, Pricing, bandwidth_bound, best, costs, seconds, seconds_of
from projector.collectives.network import network
from projector.hardware import catalogue
from projector.hardware.types import TECHNOLOGIES, Efficiency, GroupShape
from projector.operators.types import Collective
from projector.parameter import Parameter

H100 = catalogue.cluster("h100_sxm")
A100 = catalogue.cluster("a100_sxm_80gb")
MI300X = catalogue.cluster("mi300x")


def pipelined(latency: float, wire: float, fill: float) -> float:
    return latency + wire + 2 * math.sqrt(fill * wire)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ring_closed_form_behind_a_switch(n: int) -> None:
    size, share, shape, hop = 16e9, constants(A100), GroupShape(n, n), 3.4e-6
    rate = A100.intra.bandwidth * share["link.intra"]
    base = (share["collective.launch_us"] + share["base_us.ring.simple"]) * 1e-6
    for kind, rounds in {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}.items():
        expected = pipelined(base + rounds * (n - 1) * hop, rounds * (n - 1) / n * size / rate, hop)
        assert float(seconds_of(kind, size, shape, A100)) == pytest.approx(expected)


def test_small_ring_is_the_library_s_own_latency() -> None:
    """NCCL's LL ring on 8 GPUs of NVLink: 6.6 us and 14 hops of 0.6 us, after the launch of a kernel."""
    assert float(seconds_of("all_reduce", 8, GroupShape(8, 8), H100)) == pytest.approx(17.0e-6, rel=1e-3)


def test_ring_latency_and_volume_are_exact() -> None:
    ring = {c.algorithm: c for c in costs("all_reduce", GroupShape(32, 8), H100)}["ring.simple"]
    share = constants(H100)
    hops = 2 * 3 * 14e-6 + (2 * 31 - 6) * 3.4e-6
    assert ring.latency == pytest.approx((share["collective.launch_us"] + share["base_us.ring.simple"]) * 1e-6 + hops)
    rate = min(450e9 * share["link.intra"], 8 * 50e9 * share["link.inter"])
    assert ring.per_byte == pytest.approx(2 * 31 / 32 / rate)
    assert ring.fill == pytest.approx(3.4e-6)


def test_hops_of_a_ring_between_nodes() -> None:
    """Closed forms of NCCL's own model: a network call bounds each step, one rank a node hides no hop, and each hop
    of a broadcast is one of the network."""

    def latency(kind: str, shape: GroupShape, protocol: str) -> float:
        found = {c.algorithm: c for c in costs(kind, shape, H100)}[f"ring.{protocol}"]
        share = constants(H100)
        base = share["collective.launch_us"] + share[f"base_us.ring.{protocol}"]
        return found.latency * 1e6 - base

    assert latency("all_gather", GroupShape(32, 8), "ll") == pytest.approx(3 * 2.7 + 28 * 1.0)
    assert latency("all_gather", GroupShape(32, 8), "ll128") == pytest.approx(3 * 4.0 + 28 * 1.9)
    assert latency("all_gather", GroupShape(8, 8), "ll") == pytest.approx(7 * 0.6)
    for protocol, hop in {"ll": 5.0, "ll128": 8.5, "simple": 14.0}.items():
        assert latency("all_reduce", GroupShape(16, 1), protocol) == pytest.approx(2 * 15 * hop)
    for protocol, hop in {"ll": 2.7, "ll128": 4.0, "simple": 14.0}.items():
        assert latency("broadcast", GroupShape(32, 8), protocol) == pytest.approx(31 * hop)
    many, few = (seconds_of("broadcast", 64e6, GroupShape(n, 8), H100) for n in (1024, 128))
    assert many > few > seconds_of("broadcast", 64e6, GroupShape(8, 8), H100)


@pytest.mark.parametrize(("nodes", "depth"), [(2, 1), (4, 2), (5, 3), (64, 6)])
def test_tree_latency_is_logarithmic_and_exact(nodes: int, depth: int) -> None:
    tree = {c.algorithm: c for c in costs("all_reduce", GroupShape(8 * nodes, 8), H100)}
    base = constants(H100)["collective.launch_us"] * 1e-6
    assert tree["tree.simple"].latency == pytest.approx(base + 8.4e-6 + 2 * (7 * 3.4e-6 + depth * 14e-6))
    assert tree["tree.ll"].latency == pytest.approx(base + 6.8e-6 + 2 * (7 * 0.6e-6 + depth * 5e-6))


def test_channels_cap_the_low_latency_protocol() -> None:
    rates = {n: {c.algorithm: c for c in costs("all_reduce", GroupShape(8 * n, 8), H100)}["ring.ll"] for n in (1, 2, 4)}
    found = {n: 2 * (8 * n - 1) / (8 * n) / cost.per_byte for n, cost in rates.items()}
    assert found == pytest.approx({1: 141e9, 2: 45e9, 4: 35e9})


def test_few_channels_bound_rings_and_trees() -> None:
    shape, size = GroupShape(32, 8), 1e12
    few = replace(H100, overrides={"channels.max": 4})
    rings = [c for c in costs("all_reduce", shape, few) if c.algorithm.startswith("ring")]
    trees = [c for c in costs("all_reduce", shape, few) if c.algorithm.startswith("tree")]
    assert min(c.per_byte for c in rings) == pytest.approx(2 * 31 / 32 / (4 * 36.7e9))
    assert min(c.per_byte for c in trees) == pytest.approx(2 / (4 * 36.0e9) / constants(H100)["rate.tree"])
    forced = [float(seconds_of("all_reduce", size, shape, where, algorithm="ring")) for where in (few, H100)]
    assert forced[0] > 2 * forced[1]


@pytest.mark.parametrize("g", [2, 3, 5, 8])
def test_a_mesh_group_uses_its_own_links_only(g: int) -> None:
    size, share, shape = 1e12, constants(MI300X), GroupShape(g, g)
    link = 64e9 * share["link.intra.all_gather"]
    assert float(seconds_of("all_gather", size, shape, MI300X)) == pytest.approx(size / g / link, rel=5e-3)
    one = 64e9 * share["link.send_recv.intra"]
    assert float(seconds_of("send_recv", size, shape, MI300X)) == pytest.approx(size / one, rel=5e-3)


def test_one_rank_a_node_is_bound_by_its_adapter() -> None:
    size = 4e11
    expected = 15 / 16 * size / (50e9 * constants(H100)["link.inter"])
    assert float(seconds_of("all_gather", size, GroupShape(16, 1), H100)) == pytest.approx(expected, rel=0.01)


def test_the_emptiest_node_sets_the_rate_between_nodes() -> None:
    size, even, uneven = 1e12, GroupShape(12, 6), GroupShape(12, 6, counts=(8, 4))
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        ratio = seconds_of(kind, size, uneven, A100) / seconds_of(kind, size, even, A100)
        assert float(ratio) == pytest.approx(6 / 4, rel=0.01), kind
    ratio = seconds_of("all_to_all", size, uneven, A100) / seconds_of("all_to_all", size, even, A100)
    assert float(ratio) == pytest.approx(8 / 6, rel=0.01)


def test_reduction_in_the_network_halves_the_traffic_of_many_nodes() -> None:
    size, shape = 1e12, GroupShape(512, 8)
    plain = replace(A100, inter=replace(A100.inter, bandwidth=10e9))
    sharp = replace(plain, inter=replace(plain.inter, in_switch_reduction=True))
    assert best("all_reduce", size, shape, sharp) == "collnet"
    ratio = seconds_of("all_reduce", size, shape, sharp) / seconds_of("all_reduce", size, shape, plain)
    assert float(ratio) == pytest.approx(0.5, rel=0.02)


def test_beyond_a_pod_the_third_level_counts() -> None:
    size = 1e12
    pods = replace(H100, inter=replace(H100.inter, size=64), outer=replace(H100.inter, bandwidth=25e9, latency=10e-6))
    for kind in KINDS:
        inside, beyond = GroupShape(64, 8), GroupShape(128, 8)
        assert seconds_of(kind, size, inside, pods) == seconds_of(kind, size, inside, H100), kind
        slow, fast = (float(seconds_of(kind, size, beyond, where)) for where in (pods, H100))
        # an exchange sends 15/16 of its bytes to other nodes, half of them to the other pod at half the rate
        assert slow / fast == pytest.approx(16 / 15 if kind == "all_to_all" else 2.0, rel=0.05), kind
        assert float(seconds_of(kind, 8.0, beyond, pods)) > float(seconds_of(kind, 8.0, beyond, H100)), kind


@pytest.mark.parametrize(
    ("name", "size", "busbw"), [("a100_sxm_80gb_opa4", 4e9, 5.06e9), ("gh200_slingshot4", 2**34, 91.04e9)]
)
def test_a_ring_of_32_reaches_what_was_measured_on_its_fabric(name: str, size: float, busbw: float) -> None:
    """Jean Zay (bigscience experiments/bandwidth) and Alps (cscs-reframe-tests): eight nodes of four GPUs."""
    told = float(seconds_of("all_reduce", size, GroupShape(32, 4), catalogue.cluster(name)))
    assert 2 * 31 / 32 * size / told == pytest.approx(busbw, rel=0.02)


def test_rings_beyond_a_pod_reach_the_share_that_a_file_states_and_messages_the_line() -> None:
    omni = catalogue.cluster("a100_sxm_80gb_opa4")
    beyond, whole = GroupShape(32, 4), replace(omni, overrides={**omni.overrides, "link.outer": 1.0})
    told, line = (float(seconds_of("all_reduce", 4e9, beyond, where)) for where in (omni, whole))
    assert told / line == pytest.approx(1 / omni.overrides["link.outer"], rel=0.02)
    for kind, shape in (("all_reduce", GroupShape(8, 4)), ("send_recv", GroupShape(2, 1, pods=2))):
        assert seconds_of(kind, 4e9, shape, omni) == seconds_of(kind, 4e9, shape, whole), kind


def test_a_forced_algorithm_is_kept_and_an_impossible_one_named() -> None:
    size, shape = 8 * 2**30, GroupShape(8, 8)
    ring, nvls = (float(seconds_of("all_reduce", size, shape, H100, algorithm=name)) for name in ("ring", "nvls"))
    assert nvls == float(seconds_of("all_reduce", size, shape, H100)) < ring
    refusal(seconds_of, "all_reduce", size, shape, H100, algorithm="nvl", match="nvls")


def test_the_algorithm_follows_size_and_fabric() -> None:
    intra = GroupShape(8, 8)
    assert best("all_reduce", 1e3, intra, H100) == "ring.ll"
    assert best("all_reduce", 1e9, intra, H100) == "nvls"
    assert best("all_reduce", 1e9, intra, A100) == "ring.simple"
    assert best("all_reduce", 1e3, intra, MI300X) == "one_shot.ll"
    assert best("all_reduce", 1e4, GroupShape(512, 8), A100).startswith("tree")
    assert best("all_gather", 1e7, GroupShape(256, 1), H100) == "pat.simple"
    assert best("all_reduce", 1e9, GroupShape(1, 1), H100) == ""


def test_efficiency_and_cluster_override_constants() -> None:
    shape, size = GroupShape(8, 8), 16e9
    half = Efficiency(gpu="a100", parameters={"link.intra": Parameter(0.395, "fitted", "test")})
    base = float(seconds_of("all_gather", size, shape, A100))
    assert float(seconds_of("all_gather", size, shape, A100, half)) == pytest.approx(2 * base, rel=0.03)
    user = replace(A100, overrides={"link.intra": 0.79, "overhead_us.all_gather": 1e6})
    assert float(seconds_of("all_gather", size, shape, user, half)) == pytest.approx(1 + base, rel=0.01)
    kind = replace(A100, overrides={"link.intra.all_gather": 0.395})
    assert float(seconds_of("all_gather", size, shape, kind)) == pytest.approx(2 * base, rel=0.03)
    greedy = replace(A100, overrides={"link.intra": 7.0})
    assert float(seconds_of("all_gather", size, shape, greedy)) >= bandwidth_bound("all_gather", size, shape, greedy)


def test_pricing_equals_the_function() -> None:
    groups = {"tp": GroupShape(8, 8), "dp": GroupShape(64, 8), "ep": GroupShape(1, 1)}
    pricing = Pricing(groups, MI300X)
    for group in groups:
        for kind in KINDS:
            op = Collective(name="x", kind=kind, group=group, bytes=3e7)
            assert pricing.seconds(op) == pytest.approx(float(seconds_of(kind, 3e7, groups[group], MI300X)))
            assert pricing.seconds(op) == pricing.seconds(op) == seconds(op, groups, MI300X)


def test_a_compiler_s_exchange_is_slow_and_pays_one_latency() -> None:
    groups = {"ep": GroupShape(8, 8)}
    ops = {
        name: Collective(name="x", kind="all_to_all", group="ep", bytes=1e9, transport=name)
        for name in ("nccl", "one_shot")
    }
    library, compiled = (seconds(op, groups, MI300X) for op in ops.values())
    assert compiled == pytest.approx(library / constants(MI300X)["link.one_shot"], rel=0.1)
    tiny = replace(ops["one_shot"], bytes=8.0)
    assert seconds(tiny, groups, MI300X) == pytest.approx(
        seconds(replace(tiny, transport="nccl"), groups, MI300X), rel=0.01
    )


def test_unknown_kind_and_group_are_named() -> None:
    refusal(seconds_of, "allreduce", 1.0, GroupShape(8, 8), H100, match="all_reduce")
    op = Collective(name="x", kind="all_reduce", group="tpp", bytes=1.0)
    refusal(seconds, op, {"tp": GroupShape(8, 8)}, H100, match="tp")


def test_a_network_states_its_own_shares() -> None:
    """RoCE and Slingshot reach less of their line than InfiniBand, and change nothing inside a node."""
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    before = constants(H100)["link.inter"]
    for technology in TECHNOLOGIES:
        other = replace(H100, inter=replace(H100.inter, technology=technology))
        assert 0.4 < constants(other)["link.inter"] <= before
        for kind in kinds:
            assert seconds_of(kind, 1e9, GroupShape(8, 8), other) == seconds_of(kind, 1e9, GroupShape(8, 8), H100)
            across = [float(seconds_of(kind, 1e9, GroupShape(32, 8), one)) for one in (H100, other)]
            assert across[1] >= across[0]


def test_one_rank_a_node_reaches_less_of_its_adapter() -> None:
    """Over Slingshot: 0.575 of an adapter alone, 0.71 of each where several ranks share a node."""
    cluster = catalogue.cluster("a100_sxm_40gb_slingshot4")
    share = constants(cluster)
    for ranks, reached in ((1, share["link.inter.alone"]), (2, share["link.inter"]), (4, share["link.inter"])):
        assert network(GroupShape(8 * ranks, ranks), cluster).rail_rate() == pytest.approx(ranks * 25e9 * reached)
    assert network(GroupShape(8, 1), H100).rail_rate() == pytest.approx(50e9 * constants(H100)["link.inter"])


@pytest.mark.parametrize(("name", "path", "within", "across"), tabled("collectives", "ll128"))
def test_ll128_runs_over_nvlink_and_near_adapters(name: str, path: str | None, within: bool, across: bool) -> None:
    """NCCL src/graph/tuning.cc: up to PATH_NVB inside a node; between nodes up to PATH_PXB, from Hopper on PATH_PXN."""
    cluster = catalogue.cluster(name)
    cluster = replace(cluster, inter=replace(cluster.inter, path=path or cluster.inter.path))
    each = cluster.gpus_per_node
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "send_recv"):
        for shape, runs in ((GroupShape(each, each), within), (GroupShape(4 * each, each), across)):
            found = {cost.algorithm.partition(".")[2] for cost in costs(kind, shape, cluster)}
            assert found >= {"simple"}
            assert ("ll128" in found) == runs, (kind, shape)


def test_calls_cost_their_latency_each_and_no_bandwidth_more() -> None:
    groups = {"dp": GroupShape(256, 8)}
    one = Collective(name="x", kind="reduce_scatter", group="dp", bytes=2.0**33)
    parts = [seconds(replace(one, calls=calls), groups, H100) for calls in (1, 2, 8, 64, 512)]
    assert parts == sorted(parts)
    assert parts[-1] > 2 * parts[0]
    assert seconds(replace(one, calls=8), groups, H100) == pytest.approx(
        8 * seconds(replace(one, bytes=2.0**30), groups, H100)
    )
    still = {name: 0.0 for name in constants(H100)._values if name.startswith(("base_us", "extra_us"))}
    still |= {"collective.launch_us": 0.0, "net_call_us": 0.0}
    quick = replace(
        H100, intra=replace(H100.intra, latency=0.0), inter=replace(H100.inter, latency=0.0), overrides=still
    )
    same = [seconds(replace(one, calls=calls), groups, quick) for calls in (1, 512)]
    assert same[0] == pytest.approx(same[1])


def test_sockets_run_no_ll128() -> None:
    cluster = replace(H100, inter=replace(H100.inter, technology="tcp"))
    assert not network(GroupShape(16, 8), cluster).ll128
    assert network(GroupShape(8, 8), cluster).ll128


def test_two_nodes_exchange_halves() -> None:
    """An all-reduce reduced in the switches crosses each adapter once on two nodes, twice on more."""
    slow = replace(H100, inter=replace(H100.inter, bandwidth=5e9))
    rate = {
        n: {c.algorithm: c for c in costs("all_reduce", GroupShape(8 * n, 8), slow)}["nvls_tree"].per_byte
        for n in (2, 3, 8)
    }
    assert rate[2] == pytest.approx(
        bandwidth_bound("all_reduce", 1.0, GroupShape(16, 8), slow) / constants(slow)["link.inter"]
    )
    assert rate[3] == rate[8] == pytest.approx(2 * rate[2])


def test_two_nodes_of_a_cloud() -> None:
    """GCP A3 Mega, 2 nodes of 8 H100: 181 of 200 GB/s of algorithm bandwidth at 8 GiB, more than rings of 16 could carry."""
    cluster, shape = catalogue.cluster("h100_sxm_tcpxo"), GroupShape(16, 8)
    assert 2.0**33 / float(seconds_of("all_reduce", 2.0**33, shape, cluster)) == pytest.approx(181e9, rel=0.05)
    assert 2.0**33 / float(seconds_of("all_reduce", 2.0**33, shape, cluster, algorithm="ring")) < 107e9


def test_a_tree_between_nodes_hands_chunks_over_at_the_hop_of_the_network() -> None:
    for cluster in (H100, catalogue.cluster("mi300x")):
        found = {cost.algorithm: cost for cost in costs("all_reduce", GroupShape(64, 8), cluster)}
        net = network(GroupShape(64, 8), cluster)
        assert found["tree.simple"].fill == net.hop("inter", "simple") > found["ring.simple"].fill
        assert found["tree.ll"].fill == 0.0
        if "nvls_tree" in found:  # its own hop; the wire's latency hides behind chunks in flight
            assert found["nvls_tree"].fill == pytest.approx(net.hop("inter", "nvls") - cluster.inter.latency)
            assert found["nvls_tree"].latency == pytest.approx(27e-6 + 2 * 3 * 20.9e-6)
