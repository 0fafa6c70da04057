"""The trace file and the terminal sketch."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise

import numpy as np
import pytest

from projector import pipeline
from projector.errors import InputError
from projector.pipeline import sketch, trace


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


def test_actions_of_a_rank_never_overlap(tmp_path):
    for rank in range(3):
        own = sorted((e["ts"], e["dur"]) for e in trace.events(line("v_half")) if e["ph"] == "X" and e["pid"] == rank)
        assert all(a[0] + a[1] <= b[0] + 1e-3 for a, b in pairwise(own))


def test_trace_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "step.json"
    target.write_text("old")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=re.escape(str(target))):
        trace.write(line(), target)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["step.json"]


def test_trace_wants_a_folder_and_one_evaluation(tmp_path):
    with pytest.raises(InputError, match="an existing folder"):
        trace.write(line(), tmp_path / "no" / "step.json")
    compiled = pipeline.compile("1f1b", 2, 1, 2)
    batch = pipeline.evaluate(compiled, np.ones((2, 2)), np.ones(2), np.ones(2))
    with pytest.raises(InputError, match="one evaluation"):
        trace.events(batch)
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
    assert set(sketch.sketch(line(name), 80, by="microbatch").splitlines()[2].split("│ ")[1]) <= set("012345·")


def test_sketch_says_what_is_wrong():
    with pytest.raises(InputError) as caught:
        sketch.sketch(line(), 5, by="colour")
    assert [problem.key for problem in caught.value.problems] == ["width", "by"]


def test_sketch_of_nothing():
    assert "·" * 20 in sketch.sketch(line(unit=0.0), 60)
