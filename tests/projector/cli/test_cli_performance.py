"""``projector performance`` as a user runs it: figures that add up, tables, JSON, trace."""

import json
import re
import subprocess
import sys

import pytest
from asked import says
from cli_command import DEEPSEEK, ON_MI355X, ROOT, document, told


def check_projection(made):
    assert sum(made["breakdown"].values()) == pytest.approx(made["step_seconds"], rel=1e-12)
    assert all(seconds >= 0 for seconds in made["breakdown"].values())
    assert made["bubble"] == pytest.approx(made["breakdown"]["bubble_s"] / made["step_seconds"])
    assert 0 <= made["measured_share"] <= 1


def check_memory(memory):
    for rank in memory["ranks"]:
        assert sum(rank["components"].values()) == pytest.approx(rank["allocated"], rel=1e-12)
    for size in ("allocated", "device"):
        assert memory[size] == max(rank[size] for rank in memory["ranks"])
    assert memory["margin"] == pytest.approx(memory["usable"] - memory["required"])
    assert memory["fits"] == (memory["margin"] >= 0)


def test_primus_experiment_as_json():
    found = document("performance", *ON_MI355X)
    made = found["projections"]["simulate"]
    check_projection(made)
    check_memory(found["memory"])
    assert (found["model"]["name"], found["cluster"]["gpu"]) == ("mixtral_8x22b", "mi355x")
    assert (found["cluster"]["gpus"], found["framework"]["name"]) == (64, "primus")
    assert found["derived"]["tokens_per_step"] == 256 * 8192
    assert made["tgs"] == pytest.approx(256 * 8192 / made["step_seconds"] / 64)
    assert (found["schema_version"], found["derived"]["dp_scaling_factor"] >= 1) == (1, True)


def test_plain_text_is_aligned_and_adds_up():
    out = told("performance", *ON_MI355X)
    assert "\x1b" not in out
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Where the step goes"))
    rows = lines[start + 3 : lines.index("", start)]
    parts = [line for line in rows if not line.startswith("---")]
    assert len({line.index(" %") for line in parts}) == 1
    seconds = [float(line.partition(" %")[0].split()[-2]) for line in parts]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], abs=1e-3)
    says(out, "Projection", "Pipeline stages", "Fits: ", "Assumed: ", "tokens/s/GPU", "MFU")


def test_trace_opens_as_json_and_ends_with_the_pipeline(tmp_path):
    file = tmp_path / "trace.json"
    made = document("performance", *ON_MI355X, "--trace", file)
    content = json.loads(file.read_text())
    actions = [event for event in content["traceEvents"] if event.get("cat") in ("forward", "backward")]
    assert len(actions) == 2 * 8 * 8  # forward and backward, virtual stages, micro-batches
    assert {event["pid"] for event in actions} == set(range(4))
    end = max(event["ts"] + event["dur"] for event in actions) / 1e6
    assert 0 < end <= made["projections"]["simulate"]["step_seconds"]


def test_benchmark_and_both_rest_on_measured_kernels():
    both = document("performance", *ON_MI355X, "--profiling-mode", "both")["projections"]
    assert set(both) == {"simulate", "benchmark"}
    for made in both.values():
        check_projection(made)
    assert both["simulate"]["measured_share"] == 0 < both["benchmark"]["measured_share"]
    alone = document("performance", *ON_MI355X, "--profiling-mode", "benchmark")["projections"]
    assert alone == {"benchmark": both["benchmark"]}
    text = told("performance", *ON_MI355X, "--profiling-mode", "both")
    says(text, "seconds (benchmark)", "simulate against benchmark: ")


def test_all_schedules_are_compared_and_the_best_is_taken():
    found = document("performance", "--config", DEEPSEEK, "--pipeline-schedule-algorithm", "all")
    rows = found["schedules"]
    assert {"interleaved", "zbv", "v_half", "v_min", "dualpipe_v"} <= {row["schedule"] for row in rows}
    fitting = [row for row in rows if row["status"] == "ok" and row["in_framework"]]
    best = min(fitting, key=lambda row: row["step_seconds"])
    assert (found["derived"]["schedule"], found["recipe"]["vpp"]) == (best["schedule"], best["vpp"])
    assert found["projections"]["simulate"]["step_seconds"] == pytest.approx(best["step_seconds"])


def test_closed_pipe_is_no_failure():
    line = f"{sys.executable} -m projector performance --config {DEEPSEEK} | head -n 1"
    made = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert made.stdout.startswith("deepseek_v3 on")
    assert made.stderr == ""


def test_what_decides_most_and_was_left_open_is_told():
    run = ("performance", "--model", "deepseek_v2_lite", "--gpu", "h100", "--gpus", "16", "--ep", "8", "--gbs", "64")
    sizes = ("--mbs", "1", "--seq-length", "4096")
    left = document(*run, *sizes)["left_to_framework"]
    assert left["moe_token_dispatcher_type"] == "allgather"
    assert "tp_comm_overlap" not in left  # of one tensor-parallel rank there is nothing to leave
    stated = ("--moe-token-dispatcher-type", "alltoall", "--recompute-granularity", "full", "--overlap-grad-reduce")
    now = document(*run, *sizes, *stated)["left_to_framework"]
    assert left.keys() - now.keys() == {"moe_token_dispatcher_type", "recompute_granularity", "overlap_grad_reduce"}
    assert {"attention_kernel": "cudnn", "framework_date": "today"}.items() <= left.items()
    text = " ".join(told(*run, *sizes).split())
    text = text[text.index("Assumed where nothing is said: ") : text.index(". Per cent: how far")]
    moved = [int(each) for each in re.findall(r"(\d+) %, --", text)]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] >= 1
    assert "attention_kernel=cudnn (" in text
    old = (*run, *sizes, "--framework-date", "2023-06", "--attention-backend", "unfused")
    dated = told(*old)
    assert "attention_kernel=" not in dated
    assert "framework_date=" not in dated
    assert document(*old)["left_to_framework"]["attention_dropout"] == 0.1


def test_what_a_slow_rank_and_a_slow_link_do(tmp_path):
    asked = ("performance", "--config", DEEPSEEK, "--slow-rank", "3=1.5", "--slow-link", "inter=2")
    slow = document(*asked)["slow"]
    assert (slow["ranks"], slow["links"], slow["longest_rank"]) == ({"3": 1.5}, {"inter": 2.0}, 3)
    out = " ".join(told(*asked).split())
    says(out, "If slow: pipeline rank 3 × 1.5, inter links × 2", f"takes {slow['slowdown']:.3f} times as long")
    says(out, "Which steps of the timeline move")
    assert max(slow["by_rank"], key=lambda each: each["slow_working_seconds"])["rank"] == 3
    waits = [each["slow_waiting_seconds"] - each["waiting_seconds"] for each in slow["by_rank"]]
    assert min(waits) == waits[3] < 0 < max(waits)  # the others wait for it
    said = {}
    for name, words in (("usual", asked[:3]), ("slow", asked)):
        told(*words, "--trace", tmp_path / name)
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        said[name] = max(each["ts"] + each.get("dur", 0.0) for each in events if "ts" in each) / 1e6
    assert said["slow"] / said["usual"] == pytest.approx(slow["slowdown"], rel=0.02)
