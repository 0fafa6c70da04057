"""The collective model against published figures: levels by fabric, sources held out, thresholds as bounds."""

from pathlib import Path
from statistics import median

import command_line
import import_collectives
import pytest
from asked import put, refusal

from harness.kernels import collectives_table
from harness.kernels.collectives_score import Figure, Host, held_out, levels, score, strange
from harness.report.view_collectives import by_fabric
from projector.collectives.constants import constants
from projector.hardware import catalogue

MEASURED = Path(__file__).resolve().parents[2] / "measured" / "collectives"
HEADER = "source,gpu,dtype,op,num_gpus,num_nodes,interconnect,algorithm,message_bytes,metric,value,time_us,notes\n"
LARGE, SMALL = 0.10, 0.25
SLINGSHOT = 0.30  # its small messages take more than launch, library and hops explain
ALONE = 0.20  # a level of one figure: nothing tells its own scatter


@pytest.fixture(scope="module")
def found() -> tuple[Figure, ...]:
    return score(collectives_table.read(MEASURED))


def test_levels_by_fabric(found: tuple[Figure, ...]) -> None:
    assert len(found) >= 170
    for level in levels(found):
        goal = LARGE if level["large"] else SLINGSHOT if "slingshot" in level["fabric"] else SMALL
        assert level["median"] <= (ALONE if level["count"] == 1 else goal), level


def test_no_level_rests_on_one_source(found: tuple[Figure, ...]) -> None:
    errors = held_out(found)
    assert len({source for _, _, source in errors}) >= 4
    for (fabric, large, source), error in errors.items():
        assert error <= (LARGE if large else SMALL), (fabric, large, source)


def test_a_fabric_without_a_table(found: tuple[Figure, ...]) -> None:
    """Inside a node the library's shares carry over; between nodes nothing told of Slingshot's."""
    for level in levels(found):
        if level["large"] and "one node" in level["fabric"]:
            assert level["strange"] < ALONE, level
    far = next(level for level in levels(found) if level["large"] and level["fabric"].endswith("slingshot4, nodes"))
    assert far["median"] < 0.10 < 0.25 < far["strange"] < 0.40
    cluster = strange(catalogue.cluster("b200_efa"))
    assert (cluster.inter.technology, cluster.inter.bandwidth) == ("", 50e9)
    assert constants(cluster)["link.nvls"] == constants(catalogue.cluster("a100_sxm_80gb"))["link.nvls"]


def test_acceptance_thresholds_are_met(found: tuple[Figure, ...]) -> None:
    limits = [figure for figure in found if figure.limit]
    kinds = {figure.record.kind for figure in limits}
    assert kinds >= {"all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"}
    assert all(figure.error <= 0.0 for figure in limits)


def test_the_stored_tables_are_what_the_third_party_one_gives(shared: Path) -> None:
    printed = import_collectives.convert_nccl_tests(shared / "kernels" / "collectives_perlmutter.csv")
    assert len(printed) == 741
    records = (*import_collectives.convert(shared / "kernels" / "collectives.csv"), *printed)
    assert {record.cluster for record in records} == {path.stem for path in MEASURED.glob("*.csv")}
    for path in MEASURED.glob("*.csv"):
        assert collectives_table.text(r for r in records if r.cluster == path.stem) == path.read_text("utf-8")


def test_bandwidth_over_slingshot_by_ranks_a_node(found: tuple[Figure, ...]) -> None:
    """741 figures of Perlmutter, 64 MiB and more: no group of 1, 2 or 4 ranks a node is off as a whole."""
    far = [
        f for f in found if f.record.cluster.endswith("slingshot4") and f.record.nodes > 1 and f.record.bytes >= 2**26
    ]
    for ranks in (1, 2, 4):
        errors = [figure.error for figure in far if figure.record.gpus == ranks * figure.record.nodes]
        assert len(errors) > 40
        assert abs(median(errors)) < 0.06, ranks


def test_conditions_hold_the_host() -> None:
    assert Host().seconds(17e-6, 8) == 17e-6
    assert Host(call=25e-6).seconds(17e-6, 8) == pytest.approx(42e-6)
    one_thread = Host(launch=4.5e-6)
    assert one_thread.seconds(17e-6, 8) == pytest.approx(36e-6)
    assert one_thread.seconds(1e-3, 8) == 1e-3


def test_rows_are_read_as_they_were_taken(tmp_path) -> None:
    rows = [
        "x,H200-SXM,fp32,all_reduce,8,1,NVLink,Ring (NVLS off),8589934592,busbw_gbs,366,41117,",
        "x,H200-SXM,fp32,all_reduce,8,1,NVLink,NVLS,8589934592,busbw_gbs,473,31774,",
        "x,A100-SXM-80GB,fp32,all_reduce,8,1,NVLink,NVLS,8589934592,busbw_gbs,231,64912,",
        "x,A100-SXM-80GB,fp32,all_reduce,8,1,NVLink,,1048576,busbw_gbs,1,1,MSCCL++ kernel",
        "x,MI300X,fp32,sendrecv,16,2,RoCE,,1048576,busbw_gbs,47,22,acceptance threshold",
        "x,H100-SXM,fp32,barrier,8,1,NVLink,,8,time_us,9,9,",
        "x,H100-SXM,fp32,all_reduce,8,1,NVLink,,,busbw_gbs,470,,",
        "x,B200-SXM,fp32,all_reduce,32,4,NVLink5 / EFA v4,,1048576,busbw_gbs,1,400,",
        "d,H800-SXM,fp8,moe_dispatch,64,8,RDMA,DeepEP,,bottleneck_bandwidth_gbs,51,,V1 normal kernels",
        "d,H800-SXM,fp8,moe_dispatch_low_latency,16,2,RDMA,DeepEP,,bottleneck_bandwidth_gbs,63,118,128 tokens/rank",
    ]
    file = put(tmp_path / "collectives.csv", HEADER + "\n".join(rows) + "\n")
    ring, nvls, fallback, threshold, cloud, tokens, low = score(import_collectives.convert(file))
    assert ring.seconds > 1.2 * nvls.seconds
    assert abs(fallback.error) < 0.05
    assert threshold.limit
    assert threshold.record.kind == "send_recv"
    assert cloud.fabric == "b200_efa, nodes"
    assert abs(tokens.error) < 0.10
    assert abs(low.error) < 0.05
    assert {level["count"] for level in levels([ring, nvls, threshold])} == {2}
    assert [row[0] for row in by_fabric([ring, threshold]).rows] == ["h200, one node"]


def test_every_mistake_of_a_table_is_named(tmp_path) -> None:
    good = (MEASURED / "mi355x.csv").read_text("utf-8")
    (tmp_path / "mi355x.csv").write_text(good + "barrier,8,1,8,,9,,,kernel,x\nall_reduce,8,1,8,,9,,,guess,x\n")
    (tmp_path / "h100_sxm.csv").write_text("kind,gpus\nall_reduce,8\n")
    found = [problem.found for problem in refusal(collectives_table.read, tmp_path).problems]
    assert len(found) == 3
    assert {"barrier", "guess"} <= set(map(str, found))


def test_the_command_scores_one_cluster_and_writes_every_figure(tmp_path) -> None:
    out = tmp_path / "collectives.md"
    said = command_line.told("harness", "collectives", MEASURED, "--cluster", "h200", "--out", out)
    assert "h200, one node" in said
    assert "mi300x" not in said
    rows = [line for line in out.read_text("utf-8").splitlines() if line.startswith("| h200 |")]
    assert len(rows) == sum(not f.limit for f in score(collectives_table.read(MEASURED)) if f.record.cluster == "h200")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["nowhere"], "no such folder or file"), ([str(MEASURED), "--cluster", "h2oo"], "--cluster: found 'h2oo'")],
)  # fmt: skip
def test_bad_input_of_the_command(arguments: list[str], said: str) -> None:
    assert said in command_line.refused("harness", "collectives", *arguments)
