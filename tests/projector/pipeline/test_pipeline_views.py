"""The trace file and the terminal sketch."""

import json
import os
import re
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from asked import put, refusal
from hypothesis import given
from hypothesis import strategies as st
from test_schedules import sizes

from projector import pipeline
from projector.pipeline import draw, sketch, trace
from projector.pipeline.trace import Span


def line(name="zbv", vpp=2, m=6, unit=1e-3):
    compiled = pipeline.compile(name, 3, vpp, m)
    full = np.full(3 * vpp, unit)
    return pipeline.evaluate(compiled, full, full, full)


def test_trace_holds_every_action(tmp_path):
    timeline = line()
    path = trace.write(timeline, tmp_path / "step.json")
    content = json.loads(path.read_text())
    complete = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == timeline.compiled.size == 3 * 2 * 6 * 3
    assert {event["pid"] for event in complete} == {0, 1, 2}
    assert max(event["ts"] + event["dur"] for event in complete) == pytest.approx(float(timeline.makespan) * 1e6)
    assert sum(event["dur"] for event in complete if event["pid"] == 1) == pytest.approx(timeline.rank_busy[1] * 1e6)
    assert complete[0]["args"] == {"microbatch": 0, "chunk": 0, "virtual_stage": 0}
    assert [p.name for p in tmp_path.iterdir()] == ["step.json"]


def test_trace_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target = put(tmp_path / "step.json", "old")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    refusal(trace.write, line(), target, match=re.escape(str(target)), kind=OSError)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["step.json"]


def test_trace_wants_a_folder_and_one_evaluation(tmp_path):
    refusal(trace.write, line(), tmp_path / "no" / "step.json", match="an existing folder")
    compiled = pipeline.compile("1f1b", 2, 1, 2)
    batch = pipeline.evaluate(compiled, np.ones((2, 2)), np.ones(2), np.ones(2))
    refusal(trace.events, batch, match="one evaluation")
    assert sum(event["ph"] == "X" for event in trace.events(batch.at(1))) == 8


def test_sketch_of_1f1b():
    compiled = pipeline.compile("1f1b", 2, 1, 2)
    timeline = pipeline.evaluate(compiled, np.full(2, 1e-3), np.full(2, 1e-3), np.full(2, 1e-3))
    head, names, *ranks = sketch.sketch(timeline, 14 + 9).splitlines()
    assert head == "1f1b pp=2 vpp=1 m=2: 9.000 ms, bubble 33.3%"
    assert names.split() == ["rank", "idle"]
    assert [row.split("│ ")[1] for row in ranks] == ["FF··BB·BB", "·FBBFBB··"]


@pytest.mark.parametrize("name", ["zbv", "v_min", "dualpipe_v"])
def test_sketch_is_one_line_a_rank_in_the_width(name):
    rows = sketch.sketch(line(name), 80).splitlines()[2:]
    assert len(rows) == 3
    assert all(len(row) <= 80 for row in rows)
    assert set("".join(row.split("│ ")[1] for row in rows)) <= set("FBWfbw·")


def test_sketch_says_what_is_wrong():
    assert [problem.key for problem in refusal(sketch.sketch, line(), 5).problems] == ["width"]


# Pictures of a timeline: written, of the right kind, and refused in words.


def drawn_line(name="zbv", vpp=2, m=6):
    compiled = pipeline.compile(name, 3, vpp, m)
    return pipeline.evaluate(compiled, *np.full((3, 3 * vpp), 1e-3), 1e-4)


@pytest.mark.parametrize(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_formats(tmp_path, ending, begins):
    target = draw.save(
        [drawn_line(), drawn_line("1f1b", 1)], tmp_path / f"step{ending}", bytes_per_stage=np.full(6, 1e9)
    )
    assert target.read_bytes().startswith(begins)


def test_both_bubbles_and_every_rank_are_named(tmp_path):
    import re

    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        text = draw.save([drawn_line()], tmp_path / "step.svg").read_text()
    for words in ("rank 0", "rank 2", "idle of makespan / of span", "weight gradient", "zbv, pp 3, vpp 2"):
        assert words in text
    timeline = drawn_line()
    for rank in range(3):
        first, second = (100 * share[rank] for share in (timeline.bubble_of_makespan, timeline.bubble_of_span))
        assert re.search(rf"{first:.1f} % / {second:.1f} %", text)


def test_what_is_refused_all_at_once(tmp_path):
    caught = refusal(draw.save, [], tmp_path / "no" / "step.bmp")
    assert len(caught.problems) == 3
    (tmp_path / "folder.png").mkdir()
    refusal(draw.save, [drawn_line()], tmp_path / "folder.png", match="a file that can be written")


# The trace as a viewer reads it: sorted, no overlaps on a track, counters that come back to where they began.


def tracks(events):
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


@given(sizes(), st.integers(0, 2**31), st.booleans())
def test_sorted_named_and_never_overlapping(case, seed, overlap):
    compiled = pipeline.compile(*case)
    random = np.random.default_rng(seed)
    parts = random.uniform(0.0, 1e-2, (3, compiled.stages))
    hops = random.uniform(0.0, 2e-2, compiled.stages - 1)
    timeline = pipeline.evaluate(compiled, *parts, hops, overlap_p2p=overlap)
    spans = [Span(0, "data-parallel", "a", 0.0, 2e-3), Span(0, "data-parallel", "b", 1e-3, 3e-3)]
    events = json.loads(json.dumps(trace.events(timeline, spans, np.full(compiled.stages, 2.0**30)), allow_nan=False))
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    assert all(
        event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X" and event["cat"] != "p2p"
    )
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    for track, own in tracks(events).items():
        assert track in named
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-5 for a, b in pairwise(own)), named[track]
    compute = [event for event in events if event["ph"] == "X" and named[event["pid"], event["tid"]] == "compute"]
    assert len(compute) == compiled.size
    assert {track for track, title in named.items() if title.startswith("data-parallel")} == {
        track for track, own in tracks(events).items() if own[0]["cat"] == "data-parallel"
    }


@given(sizes())
def test_counters_begin_and_end_with_what_always_stays(case):
    compiled = pipeline.compile(*case)
    timeline = pipeline.evaluate(compiled, *np.full((3, compiled.stages), 1e-3))
    pp = compiled.schedule.pp
    events = trace.events(timeline, (), np.full(compiled.stages, 2.0**30), np.full(pp, 10 * 2.0**30))
    top = pipeline.peak(compiled, 1.0)
    for rank in range(pp):
        for name, base in (("chunks alive", 0.0), ("memory GiB", 10.0)):
            values = [e["args"][name] for e in events if e["ph"] == "C" and (e["pid"], e["name"]) == (rank, name)]
            assert values[0] == values[-1] == base
            assert max(values) == pytest.approx(base + top[rank])
            assert min(values) == base


def test_messages_stand_between_sender_and_receiver():
    compiled = pipeline.compile("1f1b", 3, 1, 4)
    timeline = pipeline.evaluate(compiled, *np.full((3, 3), 1e-3), 2e-4, overlap_p2p=True)
    events = trace.events(timeline)
    sent = {(e["pid"], e["name"]): e for e in events if e["ph"] == "X" and e["cat"] != "p2p"}
    for event in (e for e in events if e["ph"] == "X" and e["cat"] == "p2p"):
        kind = "F" if "activation" in event["name"] else "B"
        microbatch, sender = event["args"]["microbatch"], event["args"]["sender"]
        source, target = (sent[rank, f"{kind}{microbatch}"] for rank in (sender, event["pid"]))
        assert event["ts"] == pytest.approx(source["ts"] + source["dur"])
        assert event["ts"] + event["dur"] <= target["ts"] + 1e-6
        assert event["dur"] == pytest.approx(200.0)
    blocking = pipeline.evaluate(compiled, *np.full((3, 3), 1e-3), 2e-4)
    assert sum(e["ph"] == "X" and e["cat"] == "p2p" for e in trace.events(blocking)) == 16
