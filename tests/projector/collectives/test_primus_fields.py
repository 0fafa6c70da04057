"""Every key of a Primus hardware file moves the time of the collective that it describes, in the direction it says."""

from pathlib import Path

import pytest
from asked import put, refusal
from tabled import tabled
from workloads import workload

from projector import project
from projector.collectives.constants import constants
from projector.collectives.model import seconds_of
from projector.hardware import catalogue, primus
from projector.hardware.types import Cluster, GroupShape

MI325X = catalogue.cluster("mi325x")
NODE, NODES, MANY = GroupShape(8, 8), GroupShape(32, 8), GroupShape(128, 8)
PODS = {"pod_size": 64, "cluster_bw": 25, "cluster_lat": 10}

# key, value, value that is worse, what feels it: kind, group, bytes, other keys of the file
FIELDS = tabled("collectives", "hardware_keys")
EXCHANGE = {"tp": 2, "pp": 2, "ep": 32, "sequence_parallel": True}  # over four nodes
INSIDE = {"tp": 4, "pp": 2, "ep": 4, "etp": 1, "sequence_parallel": True}  # groups that share a node


def cluster(folder: Path, **values: object) -> Cluster:
    file = folder / "hardware.yaml"
    file.write_text("hardware_config:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items()))
    return primus.read(file, MI325X).cluster


def on(found: Cluster, kind: str, shape: GroupShape, nbytes: float) -> float:
    """The group as the ranks of ``found`` lie on its nodes."""
    local = min(shape.per_node, found.gpus_per_node)
    return float(seconds_of(kind, nbytes, GroupShape(shape.size, local), found))


def step_on(found: Cluster, shape: dict[str, object]) -> float:
    plain = {"recompute_granularity": "none", "data_parallel_sharding": "no_shard"}  # gradients are all-reduced
    work = workload("qwen3_30b_a3b", 64, moe_token_dispatcher_type="alltoall", **plain, **shape)
    return project(work, found).step_seconds


def test_every_key_that_changes_a_cluster_is_in_the_list() -> None:
    assert {field[0] for field in FIELDS} == {*primus.keys()["numbers"], *primus.keys()["words"]}


@pytest.mark.parametrize(("key", "good", "bad", "kind", "shape", "nbytes", "others"), FIELDS)
def test_a_worse_value_costs_time(tmp_path, key, good, bad, kind, shape, nbytes, others) -> None:
    """In the collective that it describes, and in a step: of two runs, with experts across nodes and inside one, at least
    one feels it and none gains from it."""
    fast, slow = (cluster(tmp_path, **{key: value}, **others) for value in (good, bad))
    assert on(slow, kind, GroupShape(*shape), nbytes) > on(fast, kind, GroupShape(*shape), nbytes) * 1.005
    ratios = [step_on(slow, each) / step_on(fast, each) for each in (EXCHANGE, INSIDE)]
    if key == "node_size":  # fewer neighbours over fast links, but fewer ranks that share an adapter
        assert max(abs(ratio - 1.0) for ratio in ratios) > 1e-6
    else:
        assert max(ratios) > 1.0 + 1e-6
        assert min(ratios) >= 1.0 - 1e-9


def test_overheads_and_bandwidths_are_exact(tmp_path) -> None:
    base = on(MI325X, "all_reduce", NODE, 1e6)
    assert on(cluster(tmp_path, rccl_overhead_us=200), "all_reduce", NODE, 1e6) == pytest.approx(base + 200e-6)
    found = cluster(tmp_path, bw_eff=0.5, pod_bw=50, nics_per_node=8)
    assert on(found, "all_gather", NODES, 1e12) == pytest.approx(31 / 32 * 1e12 / (8 * 50e9 * 0.5), rel=0.01)


def test_pods_slow_the_rate_beyond_them_only(tmp_path) -> None:
    found = cluster(tmp_path, pod_bw=50, **PODS)
    plain = cluster(tmp_path, pod_bw=50)
    inside = GroupShape(64, 8)
    assert on(found, "all_reduce", inside, 1e12) == on(plain, "all_reduce", inside, 1e12)
    ratio = on(found, "all_reduce", MANY, 1e12) / on(plain, "all_reduce", MANY, 1e12)
    share = constants(MI325X)
    assert ratio == pytest.approx(448 * share["link.intra"] / (8 * 25 * share["link.inter"]), rel=0.02)


def test_a_third_level_without_pods_has_no_effect_and_says_so(tmp_path) -> None:
    file = put(tmp_path / "hardware.yaml", "hardware_config: {cluster_bw: 25, cluster_lat: 10, num_nodes: 4}\n")
    found = primus.read(file, MI325X)
    assert set(found.ignored) == {"cluster_bw", "cluster_lat", "num_nodes"}
    assert found.cluster.outer is None
    assert on(found.cluster, "all_reduce", MANY, 1e9) == on(MI325X, "all_reduce", MANY, 1e9)


def test_a_cluster_file_may_state_a_third_level(tmp_path) -> None:
    text = (Path(primus.__file__).parent / "clusters" / "h100_sxm.yaml").read_text("utf-8")
    text = text.replace("  latency_us: 2.7\n", "  latency_us: 2.7\n  size: 64\n").replace(
        "sources:\n",
        "outer: {name: spine, topology: switch, bandwidth_gbs: 25, latency_us: 5}\n"
        "sources:\n  - {title: operator, kind: published, values: [outer.bandwidth_gbs, outer.latency_us]}\n",
    )
    file = put(tmp_path / "ours.yaml", text)
    found = catalogue.cluster(str(file))
    assert found.outer is not None
    assert found.inter.size == 64
    plain = catalogue.cluster("h100_sxm")
    assert on(found, "all_gather", GroupShape(64, 8), 1e12) == on(plain, "all_gather", GroupShape(64, 8), 1e12)
    assert on(found, "all_gather", MANY, 1e12) > 1.9 * on(plain, "all_gather", MANY, 1e12)
    file.write_text(text.replace("bandwidth_gbs: 25", "bandwidth: 25"))
    refusal(catalogue.cluster, str(file), match="outer")
