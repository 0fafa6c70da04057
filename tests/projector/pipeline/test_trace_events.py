"""The trace as a viewer reads it: sorted, no overlaps on a track, counters that come back to where they began."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import sizes

from projector import pipeline
from projector.pipeline import trace
from projector.pipeline.trace import Span


def tracks(events):
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=40, deadline=None)
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
