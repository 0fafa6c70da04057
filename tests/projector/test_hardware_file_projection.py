"""Every key of a Primus hardware file reaches the step time of a run that uses what it describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.hardware import catalogue, primus
from projector.projection import project
from tests.workloads import workload

MI325X = catalogue.cluster("mi325x")

# key, value, value that is worse, other keys of the file
FIELDS: list[tuple[str, object, object, dict[str, object]]] = [
    ("node_bw", 448, 200, {}),
    ("node_lat", 0.45, 50.0, {}),
    ("node_size", 8, 4, {"nics_per_node": 1}),
    ("node_topology", "switch", "mesh", {}),
    ("pod_bw", 50, 25, {}),
    ("pod_lat", 2.0, 200.0, {}),
    ("nics_per_node", 8, 4, {}),
    ("switch_topology", True, False, {}),
    ("pod_size", 128, 16, {"cluster_bw": 10}),
    ("cluster_bw", 50, 10, {"pod_size": 16}),
    ("cluster_lat", 2.0, 500.0, {"pod_size": 16}),
    ("bw_eff", 0.8, 0.5, {}),
    ("p2p_bw_eff", 0.9, 0.1, {}),
    ("hbm_latency", 0.09, 20.0, {}),
    ("write_latency", 0.28, 20.0, {}),
    ("write_resp", 0.09, 50.0, {}),
    ("kernel_launch_latency", 2.8, 50.0, {}),
    ("vector_flops", 163e12, 1e10, {}),
    ("rccl_overhead_us", 0, 2000, {}),
    ("ar_overlap_factor", 0.9, 0.1, {}),
    ("ar_warmup_chunk_bytes", 2**20, 2**30, {}),
    ("nic_rdma_setup_us", 0, 2600, {"nic_warmup_bytes": 2**30}),
    ("nic_warmup_bytes", 2**10, 2**30, {"nic_rdma_setup_us": 2600}),
    ("a2a_rccl_overhead_us", 0, 500, {}),
    ("a2a_intra_sync_overhead", 0, 500, {}),
    ("a2a_peer_lat", 0.45, 45.0, {}),
    ("a2a_intra_node_peer_lat", 0.5, 25.0, {}),
    ("a2a_mesh_contention", 0, 0.5, {}),
    ("a2a_remote_contention", 0, 0.5, {}),
]

EXCHANGE = {"tp": 2, "pp": 2, "ep": 32, "sequence_parallel": True}  # over four nodes
INSIDE = {"tp": 4, "pp": 2, "ep": 4, "etp": 1, "sequence_parallel": True}  # groups that share a node


def seconds(folder: Path, shape: dict[str, object], **values: object) -> float:
    file = folder / "hardware.yaml"
    file.write_text("hardware_config:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items()))
    plain = {"recompute_granularity": "none", "data_parallel_sharding": "no_shard"}  # gradients are all-reduced
    work = workload("qwen3_30b_a3b", 64, moe_token_dispatcher_type="alltoall", **plain, **shape)
    return project(work, primus.apply(file, MI325X)).step_seconds


def test_every_key_that_changes_a_cluster_is_in_the_list() -> None:
    assert {field[0] for field in FIELDS} == {*primus.NUMBERS, "node_topology", "switch_topology"}


@pytest.mark.parametrize(("key", "good", "bad", "others"), FIELDS)
def test_a_worse_value_makes_a_step_longer(
    tmp_path: Path, key: str, good: object, bad: object, others: dict[str, object]
) -> None:
    """Of two runs, with experts across nodes and inside one, at least one feels it and none gains from it."""
    ratios = [
        seconds(tmp_path, shape, **{key: bad}, **others) / seconds(tmp_path, shape, **{key: good}, **others)
        for shape in (EXCHANGE, INSIDE)
    ]
    if key == "node_size":  # fewer neighbours over fast links, but fewer ranks that share an adapter
        assert max(abs(ratio - 1.0) for ratio in ratios) > 1e-6
    else:
        assert max(ratios) > 1.0 + 1e-6
        assert min(ratios) >= 1.0 - 1e-9
