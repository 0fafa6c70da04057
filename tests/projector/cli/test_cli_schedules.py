"""``projector schedules`` and ``projector trace`` as a user runs them."""

import json

import pytest
from asked import put, says
from cli_command import DEEPSEEK, document, refused, told
from tabled import tabled

from projector.settle import launch

CASE = """
model: {base: llama2_7b, num_layers: 16}
cluster: mi300x
gpus: 8
framework: primus
recipe: {pp: 8, micro_batch_size: 1, global_batch_size: 16, seq_length: 4096, recompute_granularity: none}
"""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return str(put(tmp_path_factory.mktemp("case") / "llama.yaml", CASE))


@pytest.fixture(scope="module")
def compared(case):
    return document("schedules", "--config", case)


def test_every_schedule_has_a_row(compared):
    from projector import pipeline

    rows = compared["schedules"]
    runs = launch.schedules_of(compared["framework"]["name"])
    assert {row["schedule"] for row in rows} == {*pipeline.names(), *runs}
    assert {row["schedule"] for row in rows if row.get("in_framework")} <= set(runs)
    assert len({(row["schedule"], row["vpp"]) for row in rows}) == len(rows)
    for row in rows:
        if row["status"] == "refused":
            assert row["reason"]
            continue
        assert row["status"] in ("ok", "out-of-memory")
        assert len(row["ranks"]) == 8
        for rank in row["ranks"]:
            span = rank["end_seconds"] - rank["start_seconds"]
            assert rank["bubble_of_makespan"] == pytest.approx(1 - rank["busy_seconds"] / row["makespan_seconds"])
            assert rank["bubble_of_span"] == pytest.approx(1 - rank["busy_seconds"] / span)
            assert rank["bubble_of_span"] <= rank["bubble_of_makespan"] + 1e-12
        assert row["step_seconds"] >= row["makespan_seconds"]
    assert compared["derived"]["schedule"] == compared["shown"]["schedule"]


def test_vpp_that_does_not_divide_is_refused_in_its_row(compared):
    reasons = {row["vpp"]: row["reason"] for row in compared["schedules"] if row["status"] == "refused"}
    assert set(reasons) == {3, 4}
    assert "at most one stage per layer" in reasons[3]


def test_page_sketch_picture_and_trace(case, tmp_path):
    files = ("--draw", tmp_path / "a.svg", "--draw-best", "2", "--trace", tmp_path / "a.json")
    out = told("schedules", "--config", case, "--width", "90", *files)
    says(out, "Pipeline schedules", "bubble of makespan", "of span", "fullest rank GiB", "Ranks of ", "Refused: ")
    sketch = [line for line in out.splitlines() if "│" in line]
    assert len(sketch) == 8
    assert all(len(line) <= 90 for line in sketch)
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert json.loads((tmp_path / "a.json").read_text())["otherData"]["pp"] == 8


def test_one_schedule_by_name_and_its_optimum(case):
    flags = ("--pipeline-schedule-algorithm", "zb-h1", "--global-batch-size", "2")
    made = document("schedules", "--config", case, *flags, "--optimal", "2")
    assert [row["schedule"] for row in made["schedules"]] == ["zb_h1"]
    found = made["optimal"]
    assert found["status"] in ("proven", "time limit")
    assert found["bound_seconds"] <= found["makespan_seconds"] * (1 + 1e-9)
    assert found["makespan_seconds"] <= found["schedule_makespan_seconds"] * (1 + 1e-9)
    large = told("schedules", "--config", case, "--pipeline-schedule-algorithm", "zb-h1", "--optimal", "1")
    assert "Optimal order: none: pipeline: actions: found 384" in large


@pytest.mark.parametrize(("recipe", "expected"), tabled("refusals", "schedules"))
def test_bad_input(tmp_path, recipe, expected):
    path = tmp_path / "case.yaml"
    words = recipe if recipe.startswith("pp") and "pp:" in recipe else f"pp: 8, {recipe}"
    text = CASE.replace("global_batch_size: 16, ", "") if "global_batch_size" in words else CASE
    path.write_text(text.replace("pp: 8, ", f"{words}, "))
    lines = refused("trace", "--config", str(path), "-o", str(tmp_path / "x.json"))
    assert any(expected in line for line in lines), lines
    assert not (tmp_path / "x.json").exists()


def test_mistakes_of_schedule_and_sizes_come_together(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(CASE.replace("pp: 8, ", "pp: 8, tp: 3, pipeline_schedule: v-half, ").replace("gpus: 8", "gpus: 24"))
    lines = refused("schedules", "--config", str(path), "--pipeline-schedule-algorithm", "v-half")
    assert any("recipe.tp" in line for line in lines)
    assert any("expected 2 for v_half" in line for line in lines)


def test_trace_of_a_step(tmp_path):
    path = tmp_path / "step.json"
    assert "interleaved, 16 ranks, 128 micro-batches" in told("trace", "--config", DEEPSEEK, "--out", path)
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(16))
    assert {event["cat"] for event in events if event["ph"] == "X"} >= {"forward", "backward", "p2p", "optimizer"}
    assert {event["name"] for event in events if event["ph"] == "C"} == {"chunks alive", "memory GiB"}
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
