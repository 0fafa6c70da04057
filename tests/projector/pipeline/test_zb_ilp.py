"""The schedule that is searched for: never worse than the rules, within their memory, and honest about its gap."""

from __future__ import annotations

import pytest

from projector import pipeline
from projector.pipeline import residency
from projector.pipeline.schedules import zb_2p, zb_ilp
from projector.pipeline.types import Costs, Schedule

UNEVEN = Costs((3.0, 2.0, 2.0, 2.5), (3.0, 2.0, 2.0, 3.5), (3.0, 2.0, 2.0, 2.5), (0.2, 0.2, 0.2))


def makespan(schedule: Schedule, costs: Costs) -> float:
    parts = (costs.forward, costs.backward_input, costs.backward_weight, costs.p2p)
    compiled = pipeline.compiler.compile_schedule(schedule)
    return float(pipeline.evaluate(compiled, *parts, overlap_p2p=True).makespan)


@pytest.mark.parametrize("microbatches", [4, 6, 40])
def test_no_worse_than_the_rules_and_no_better_than_the_bound(microbatches: int) -> None:
    ours, rules = zb_ilp.tuned(4, microbatches, UNEVEN), zb_2p.tuned(4, microbatches, UNEVEN)
    took = makespan(ours, UNEVEN)
    assert took <= makespan(rules, UNEVEN) * (1 + 1e-9)
    assert 0.0 <= zb_ilp.gap(ours, UNEVEN, took) < 0.3
    assert residency.peak(pipeline.compiler.compile_schedule(ours), 1.0).max() <= 8


def test_it_is_found_by_its_names_and_not_offered_unasked() -> None:
    for name in ("seaailab-ilp", "zb_ilp", "SeaAILab ILP"):
        assert pipeline.generator(name).name == "zb_ilp"
    assert "zb_ilp" not in pipeline.names()
