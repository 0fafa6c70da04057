"""Laws over random configurations: more work is never faster, better hardware never slower, an overlap never a loss."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from projector.frameworks.flops import flops_per_token
from projector.hardware import catalogue, primus
from projector.projection import Projection, project
from tests.projector.law_cases import EASIER, HARDER, SWITCHES, Case, cases, seconds
from tests.workloads import workload

FEW, MANY = range(60), range(1000, 1200)
EXACT = 1.0 + 1e-9
STILL = {
    "sequence": 1e-2, "micro-batch": 1e-2, "top-k": 1e-2, "smaller nodes": 1e-3, "peak": 1e-3, "memory bandwidth": 1e-3,
    "network bandwidth": 1e-3, "link bandwidth": 1e-2,
}  # fmt: skip
"""What is left among many cases (docs/proof/laws.md says why)."""


@cache
def known(numbers: range) -> tuple[tuple[Case, Projection], ...]:
    """Every case that can run, with its projection."""
    return tuple((case, made) for case in cases(numbers) if (made := seconds(case)) is not None)


def broken(law: str, numbers: range, least: float = 1e-9) -> list[str]:
    """What breaks a law of :data:`HARDER` or :data:`EASIER`, and by how much, where that is more than ``least``."""
    found = []
    for case, made in known(numbers):
        changed = {**HARDER, **EASIER}[law](case)
        other = None if changed is None else seconds(changed)
        if other is not None:
            first, last = (made, other) if law in HARDER else (other, made)
            if first.step_seconds > last.step_seconds * (1.0 + least):
                found.append(f"{first.step_seconds / last.step_seconds - 1.0:+.3%} {case}")
    return found


def chunks(case: Case) -> float:
    """Seconds of the first chunks of pipelined tensor-parallel collectives in a step."""
    made = project(case.work, case.cluster, communication=True)
    return sum(row.seconds for row in made.communication if row.name.endswith(".chunk"))


def exchange(case: Case) -> float:
    """Seconds of a step's reductions and gathers over replicas, hidden or not."""
    made = project(case.work, case.cluster, communication=True)
    return sum(row.seconds for row in made.communication if row.name.startswith(("grad", "param")))


def losses(switch: str, numbers: range) -> list[str]:
    """Cases that an overlap makes slower; under ``tp_comm_overlap`` by more than the first chunks of all collectives that
    it pipelines and what it costs to run the products beside them piece by piece, in each of the m + pp − 1 micro-batches
    that the longest way through a pipeline passes; else by more than it costs to exchange bucket by bucket."""
    found = []
    for case, _ in known(numbers):
        off, on = (seconds(case.recipe(**{switch: value})) for value in (False, True))
        if off is None or on is None or on.step_seconds <= off.step_seconds * EXACT:
            continue
        whole, split = (case.recipe(**{switch: value}) for value in (False, True))
        filled = 1.0 + (case.work.recipe.pp - 1) / case.work.num_microbatches
        pieces = sum(max(0.0, on.breakdown[part] - off.breakdown[part]) for part in ("compute_s", "host_s"))
        buckets = max(0.0, exchange(split) - exchange(whole))
        if on.step_seconds > off.step_seconds + filled * (chunks(split) + pieces) + buckets:
            found.append(f"{on.step_seconds / off.step_seconds - 1.0:+.3%} {case}")
    return found


@pytest.mark.parametrize("law", [*HARDER, *EASIER])
def test_more_work_is_never_faster_and_better_hardware_never_slower(law: str) -> None:
    assert not broken(law, FEW)


@pytest.mark.night
@pytest.mark.parametrize("law", [*HARDER, *EASIER])
def test_of_hundreds(law: str) -> None:
    assert not broken(law, MANY, STILL.get(law, 1e-9))


@pytest.mark.parametrize("switch", SWITCHES)
def test_an_overlap_is_never_a_loss(switch: str) -> None:
    assert not losses(switch, FEW)


@pytest.mark.night
@pytest.mark.parametrize("switch", SWITCHES)
def test_an_overlap_is_never_a_loss_of_hundreds(switch: str) -> None:
    assert not losses(switch, MANY)


def test_no_step_beats_the_peak_and_its_parts_add_up() -> None:
    for case, made in known(FEW):
        work = case.work
        flops = flops_per_token(work, "megatron-2025-04") * work.tokens_per_step / work.gpus
        assert flops / made.step_seconds < case.cluster.gpu.peak_of(work.recipe.precision), case
        assert sum(made.breakdown.values()) == pytest.approx(made.step_seconds, rel=1e-9), case
        assert min(made.breakdown.values()) >= -1e-9, case


def test_replicas_add_no_throughput() -> None:
    """Twice the ranks on twice the batch take as long at least, but for an optimizer that they share."""
    for case, made in known(FEW):
        work = case.work
        twice = replace(work, gpus=2 * work.gpus)
        other = seconds(replace(case, work=twice).recipe(global_batch_size=2 * work.recipe.global_batch_size))
        if other is not None and case.cluster.intra.topology != "mesh":
            assert other.step_seconds * EXACT >= made.step_seconds - made.breakdown["optimizer_s"], case


# Every key of a Primus hardware file reaches the step time of a run that uses what it describes.

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


def seconds_on_file(folder: Path, shape: dict[str, object], **values: object) -> float:
    file = folder / "hardware.yaml"
    file.write_text("hardware_config:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items()))
    plain = {"recompute_granularity": "none", "data_parallel_sharding": "no_shard"}  # gradients are all-reduced
    work = workload("qwen3_30b_a3b", 64, moe_token_dispatcher_type="alltoall", **plain, **shape)
    return project(work, primus.apply(file, MI325X)).step_seconds


def test_every_key_that_changes_a_cluster_is_in_the_list() -> None:
    assert {field[0] for field in FIELDS} == {*primus.keys()["numbers"], *primus.keys()["words"]}


@pytest.mark.parametrize(("key", "good", "bad", "others"), FIELDS)
def test_a_worse_value_makes_a_step_longer(
    tmp_path, key: str, good: object, bad: object, others: dict[str, object]
) -> None:
    """Of two runs, with experts across nodes and inside one, at least one feels it and none gains from it."""
    ratios = [
        seconds_on_file(tmp_path, shape, **{key: bad}, **others)
        / seconds_on_file(tmp_path, shape, **{key: good}, **others)
        for shape in (EXCHANGE, INSIDE)
    ]
    if key == "node_size":  # fewer neighbours over fast links, but fewer ranks that share an adapter
        assert max(abs(ratio - 1.0) for ratio in ratios) > 1e-6
    else:
        assert max(ratios) > 1.0 + 1e-6
        assert min(ratios) >= 1.0 - 1e-9
